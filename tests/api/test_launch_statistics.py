"""Comparisons, moves and the report over REST: what they say, what they refuse, and to whom."""

from __future__ import annotations

from datetime import datetime

import pytest

from controlplane.accounts.models import Scope, User
from tests import factories
from tests.api.conftest import Api, api_for
from tests.selectors.test_launch_moves import Night

pytestmark = pytest.mark.django_db


@pytest.fixture
def night() -> Night:
    return Night()


@pytest.fixture
def reader(operator: User) -> Api:
    return api_for(operator, Scope.READ)


def test_two_selections_are_compared(night: Night, reader: Api) -> None:
    night.launches(30, fetch=1, weights="Hit")
    night.launches(30, fetch=50, weights="Miss")
    query = "a_since=now-24h&a_until=now&a_weights=Hit&b_weights=Miss"
    answer = reader.get(f"launches/comparison?{query}")
    assert answer.status_code == 200, answer.content
    found = answer.json()
    assert (found["first"]["ready"], found["first"]["weights"], found["second"]["compared"]) == (30, "Hit", 30)
    whole = found["effects"][0]
    assert (whole["phase"], whole["first_count"], whole["p95"]["verdict"]) == (None, 30, "Slower")
    assert whole["p95"]["low_seconds"] <= whole["p95"]["change_seconds"] <= whole["p95"]["high_seconds"]
    assert found["moved"] == "WeightsFetch"
    again = reader.get(f"launches/comparison?{query}").json()
    assert again["effects"] == found["effects"], "the same launches give the same intervals"


def test_too_few_are_said_to_be_too_few(night: Night, reader: Api) -> None:
    night.launches(19, fetch=1)
    whole = reader.get("launches/comparison?a_since=now-24h&a_until=now").json()["effects"][0]
    assert whole["median"] == {
        "first_seconds": pytest.approx(33.3), "second_seconds": pytest.approx(33.3), "change_seconds": None,
        "low_seconds": None, "high_seconds": None, "verdict": "NotEnoughLaunches",
    }  # fmt: skip


def test_moves_name_phase_and_changes(night: Night, reader: Api) -> None:
    night.launches(40, fetch=1, weights="Hit")
    event = night.change(39.5)
    night.launches(40, fetch=200, weights="Miss")
    (move,) = reader.get("launches/moves?since=now-24h").json()["moves"]
    assert (move["event_class"], move["phase"], move["shift"], move["slower"]) == (
        "ColdPodOnWarmNode", "WeightsFetch", "Step", True,
    )  # fmt: skip
    assert move["before"] == {"launches": 40, "missed": 0, "known": 40}
    assert move["after"] == {"launches": 40, "missed": 40, "known": 40}
    assert move["shares"][0]["change_seconds"] == pytest.approx(199)
    assert [one["id"] for one in move["events"]] == [str(event.pk)]
    assert datetime.fromisoformat(move["first_after"]) == night.at(40)
    assert reader.get("launches/moves?since=now-24h&event_class=WarmPodRestart").json()["moves"] == []


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("launches/comparison?a_since=yesterday", "a_since"),
        ("launches/comparison?b_weights=hit", "b_weights"),
        ("launches/comparison?weights=Hit", "weights"),
        ("launches/moves?event_class=Nap", "event_class"),
        ("launches/moves?since=now&until=now-1h", "since"),
        ("launches/report?since=soon", "since"),
        ("launches/report?event_class=WarmPodRestart", "event_class"),
    ],
)
def test_what_is_asked_wrongly_is_named(reader: Api, address: str, field: str) -> None:
    answer = reader.get(address)
    assert answer.status_code == 400
    assert field in [error["field"] for error in answer.json()["errors"]]


def test_the_report_says_what_a_model_took_with_and_without(night: Night, reader: Api) -> None:
    night.launches(25, fetch=100, weights="Miss", version_name="llama v1", digest="sha256:a")
    (version,) = reader.get("launches/report?since=now-24h").json()["versions"]
    assert (version["version"], version["worth"], version["basis"]) == ("llama v1", "Expected", "Phases")
    assert (version["launches"], version["fetch_seconds"]) == (25, 100)
    assert version["sentence"].startswith("Nobody pinned it. Its launches fetch their weights in 1 min 40 s")


def test_other_pools_are_not_in_it(night: Night) -> None:
    night.launches(30, fetch=1, version_name="llama v1")
    api = api_for(factories.user(role="Viewer", target="far.gpu"), Scope.READ)
    assert api.get("launches/comparison").json()["first"]["launches"] == 0
    assert api.get("launches/report").json()["versions"] == []
    assert api.get("launches/moves").json()["moves"] == []
