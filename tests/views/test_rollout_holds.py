"""What pages say of a hold that somebody ended, before and after a round has let go of what it held."""

from __future__ import annotations

import pytest
from django.test import Client

from caches.models import Rollout
from tests.views.test_rollouts import held, hours_left, words

__all__ = ["held"]  # a fixture
pytestmark = pytest.mark.django_db


def test_an_ended_hold_shows_as_ended_and_by_whom(held: Rollout, olga: Client, victor: Client) -> None:
    page = f"/endpoints/{held.endpoint_id}"
    assert olga.post(f"/rollouts/{held.pk}/release", {"ends": "hold"}).status_code == 302
    shown = words(olga, page)
    assert "The hold of rollout 2 was ended by olga" in shown
    assert "olga ended the hold of what it replaced (rollout 1)" in shown and "and ends in" not in shown
    assert "Hold it after all" in shown and "End the hold" not in shown
    assert "It waits for nobody. olga ended the hold at" in words(olga, f"/rollouts/{held.pk}/release")
    Rollout.objects.filter(pk=held.pk).update(state="Done")
    for reader in (olga, victor):
        seen = words(reader, page)
        assert "olga ended the hold of what it replaced" in seen and "Hold it after all" not in seen


def test_holding_it_after_all_says_whose_word_that_overrules(held: Rollout, olga: Client) -> None:
    page = f"/endpoints/{held.endpoint_id}"
    olga.post(f"/rollouts/{held.pk}/release", {"ends": "hold"})
    assert olga.post(f"/rollouts/{held.pk}/hold", {"amount": "2", "unit": "hours"}).status_code == 302
    assert 1.9 < hours_left(held) <= 2
    shown = words(olga, page)
    assert "although olga had ended that" in shown and "as olga said" in shown and "End the hold" in shown
