"""What pages tell people to do about a round that did not get through."""

from __future__ import annotations

from datetime import datetime

import pytest

from caches.models import PoolLoop
from caches.selectors.loop_words import next_step_of
from caches.selectors.overview import troubles
from tests import factories


@pytest.mark.parametrize(
    ("error", "step"),
    [
        ("", ""),
        ("No node gets an agent, because HEARTH_AGENT_IMAGE is not set. Set it and restart the workers.", ""),
        ("n1: another controller (kubectl) keeps changing its NodeCache. Stop it; the next repair is at 12:00:00.", ""),
        ("Unreachable: connection refused", "its address"),
        ("Refused: nodecaches.hearth.dev is forbidden", "rights"),
        ("The agents of lab.gpu could not be applied: quota", "rights"),
        ("Throttled: slow down", "by itself"),
        ("something nobody thought of", "worker's log"),
    ],
)
def test_it_says_what_to_do_unless_the_error_does(error: str, step: str) -> None:
    found = next_step_of(error)

    assert step in found and bool(found) is bool(step)


def test_it_is_said_where_the_person_on_call_looks_first(now: datetime) -> None:
    pool = factories.pool()
    PoolLoop.objects.create(pool=pool, error="Unreachable: connection refused", reconciled_at=now)

    [trouble] = troubles(now=now)

    assert trouble.sentence == f"Planning {pool.full_name} has problems: Unreachable: connection refused"
    assert "its address" in trouble.next_step and (trouble.page, trouble.query) == ("pool", pool.full_name)
