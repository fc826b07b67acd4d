"""Rollouts are found by their endpoint's name, its full name and its id."""

from __future__ import annotations

import pytest

from tests import factories
from tests.api.conftest import Api

pytestmark = pytest.mark.django_db


def test_rollouts_are_found_by_whatever_an_endpoint_is_called(viewer_api: Api) -> None:
    cluster = factories.cluster()
    chat = factories.endpoint(of=cluster, namespace="default", name="chat")
    mine = factories.rollout(of=chat)
    theirs = factories.rollout(of=factories.endpoint(of=cluster, namespace="other", name="chat"))
    # A name may look like an id.
    odd = factories.rollout(of=factories.endpoint(of=cluster, namespace="other", name=str(theirs.endpoint_id)))

    def found(endpoint: str) -> set[str]:
        return {one["id"] for one in viewer_api.get(f"rollouts?endpoint={endpoint}").json()["items"]}

    assert found("chat") == {str(mine.pk), str(theirs.pk)}
    assert found("default/chat") == {str(mine.pk)}
    assert found(str(chat.pk)) == {str(mine.pk)}
    assert found(str(theirs.endpoint_id)) == {str(theirs.pk), str(odd.pk)}
    assert found("nobody/chat") == found("cha") == found("/") == set()
