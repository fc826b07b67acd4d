"""Launches over REST: reports in batches and one by one, what they become, and what they took."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from caches.domain.launches.words import launch_id
from caches.models import Launch, LaunchObservation
from controlplane.accounts.models import Scope, User
from controlplane.clusters.models import Cluster
from tests import factories
from tests.api.conftest import Api, api_for
from tests.services.launches import put_launches, settle

pytestmark = pytest.mark.django_db
POD = {"cluster": "lab", "pod_uid": "u-1", "container": "engine", "restart_count": 0}
ID = launch_id(cluster="lab", pod_uid="u-1", container="engine", restart_count=0)


def at(seconds: float) -> str:
    return (timezone.now() - timedelta(minutes=10) + timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def lab() -> Cluster:
    return factories.cluster(name="lab")


@pytest.fixture
def reporter(operator: User) -> Api:
    return api_for(operator, Scope.READ, Scope.LAUNCHES_INGEST)


def report(api: Api, *items: Any) -> Any:
    answer = api.post("launches/observations", {"items": list(items)})
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_batch_becomes_a_launch(lab: Cluster, reporter: Api) -> None:
    begun = timezone.now() - timedelta(minutes=10)
    moment = {"Created": 0, "Scheduled": 2, "Started": 10, "Ready": 60}
    items = [
        {**POD, "mark": mark, "at": (begun + timedelta(seconds=after)).isoformat(), "observer": "Cluster"}
        for mark, after in moment.items()
    ]
    items.append({**POD, "phase": "WeightsLoad", "seconds": 30.5})
    assert report(reporter, *items) == {"recorded": 5, "repeated": 0, "refused": []}
    assert report(reporter, *items) == {"recorded": 0, "repeated": 5, "refused": []}
    settle()

    shown = reporter.get(f"launches/{ID}").json()
    assert (shown["state"], shown["ready_seconds"], shown["pod_uid"]) == ("Ready", 60, "u-1")
    seconds = {one["phase"]: one["seconds"] for one in shown["phases"]}
    assert (seconds["WaitingForNode"], seconds["WeightsLoad"], seconds["ImagePull"]) == (2, 30.5, None)
    assert len(shown["observations"]) == 5
    assert shown["unmeasured"] == ""
    assert shown["links"]["ui"].endswith(f"/launches/{ID}")


def test_a_hit_takes_what_its_step_says_and_the_rest_of_the_step_is_told(lab: Cluster, reporter: Api) -> None:
    begun = timezone.now() - timedelta(minutes=10)
    for mark, after in {"Created": 0, "Scheduled": 0, "EnsureStarted": 0, "Started": 2, "Ready": 9}.items():
        report(reporter, {**POD, "mark": mark, "at": (begun + timedelta(seconds=after)).isoformat()})
    ended = {"mark": "EnsureEnded", "at": (begun + timedelta(seconds=2)).isoformat(), "seconds": 0.5}
    report(reporter, {**POD, **ended, "observer": "Ensure", "facts": {"found": "hit"}})
    settle()
    shown = reporter.get(f"launches/{ID}").json()
    (fetch,) = [one for one in shown["phases"] if one["phase"] == "WeightsFetch"]
    assert (fetch["seconds"], fetch["observer"], shown["reached"]) == (0.5, "Ensure", "HealthChecks")
    assert shown["waited"] == {"for_weights_seconds": 0, "to_restart_seconds": 0, "for_step_seconds": 1.5}
    assert (shown["unknown_seconds"], shown["total_seconds"]) == (8.5, 9)


def test_a_launch_whose_request_nobody_saw_says_why_it_has_no_seconds(lab: Cluster, reporter: Api) -> None:
    """Engines after the fleet was stopped and started: they are back, and nobody knows since when they were wanted."""
    begun = timezone.now() - timedelta(minutes=10)
    for after, mark in enumerate(("Started", "Ready")):
        item = {**POD, "mark": mark, "at": (begun + timedelta(seconds=after)).isoformat(), "observer": "Cluster"}
        report(reporter, item)
    settle()
    shown = reporter.get(f"launches/{ID}").json()
    assert (shown["state"], shown["ready_seconds"]) == ("Ready", None)
    assert shown["unmeasured"].startswith("Its request was not seen")
    (listed,) = reporter.get("launches").json()["items"]
    assert listed["unmeasured"] == shown["unmeasured"]


def test_what_is_wrong_is_named_and_spoils_nothing_else(lab: Cluster, reporter: Api) -> None:
    answer = report(
        reporter,
        {**POD, "mark": "Ready", "at": "yesterday"},
        {**POD, "phase": "WeightsLoad", "seconds": 4},
        {**POD, "cluster": "nowhere", "phase": "WeightsLoad", "seconds": 4},
        "what?",
        {**POD, "prompt": "hello", "phase": "WeightsLoad", "seconds": 4},
        {**POD, "cluster": "nowhere", "pod_uid": "u-2", "phase": "WeightsLoad", "seconds": 4},
        None,
        [],
        4,
    )
    assert (answer["recorded"], answer["repeated"]) == (1, 0)
    assert [(one["index"], one["field"], one["code"]) for one in answer["refused"]] == [
        (0, "at", "invalid"),
        (2, "cluster", "launch:user:cluster"),
        (3, "", "invalid"),
        (4, "prompt", "unknown"),
        (5, "cluster", "launch:user:cluster"),
        *((index, "", "invalid") for index in (6, 7, 8)),
    ]
    assert Launch.objects.count() == 1


def test_a_token_of_another_cluster_reports_nothing_here(lab: Cluster, operator: User) -> None:
    factories.cluster(name="far")
    far = api_for(operator, Scope.LAUNCHES_INGEST, targets=["far"])
    answer = report(
        far, {**POD, "phase": "ImagePull", "seconds": 1}, {**POD, "cluster": "far", "phase": "ImagePull", "seconds": 1}
    )
    assert (answer["recorded"], answer["refused"][0]["code"]) == (1, "token:user:target")
    assert (
        far.post(f"launches/{ID}/phases", {**POD, "phases": [{"phase": "ImagePull", "seconds": 1}]}).status_code == 403
    )
    assert {launch.cluster.name for launch in Launch.objects.all()} == {"far"}


@pytest.mark.parametrize("body", [{}, {"items": []}, {"items": "x"}, {"items": [{}] * 5001}])
def test_a_batch_that_is_none_is_refused_whole(lab: Cluster, reporter: Api, body: Any) -> None:
    assert reporter.post("launches/observations", body).status_code == 400
    assert LaunchObservation.objects.count() == 0


def test_a_runtime_pushes_its_phases_before_anybody_saw_it(lab: Cluster, reporter: Api) -> None:
    phases = {
        "phases": [
            {"phase": "WeightsLoad", "seconds": 12},
            {"phase": "RuntimeInitialisation", "seconds": 3, "at": at(0)},
        ]
    }
    missing = reporter.post(f"launches/{ID}/phases", phases)
    assert (missing.status_code, missing.json()["code"]) == (404, "launch:user:not-found")
    wrong = reporter.post(f"launches/{uuid4()}/phases", {**POD, **phases})
    assert wrong.status_code == 404
    taken = reporter.post(f"launches/{ID}/phases", {**POD, **phases})
    assert (taken.status_code, taken.json()["recorded"]) == (200, 2)
    # Once it is known its id is enough.
    again = reporter.post(f"launches/{ID}/phases", phases)
    assert (again.status_code, again.json()["repeated"]) == (200, 2)


@pytest.mark.parametrize(
    ("phase", "field"),
    [
        ({"phase": "Nap", "seconds": 1}, "phases.0.phase"),
        ({"phase": "ImagePull", "seconds": -1}, "phases.0.seconds"),
        ({"phase": "ImagePull", "seconds": "1"}, "phases.0.seconds"),
        ({"phase": "ImagePull", "seconds": 1, "at": "noon"}, "phases.0.at"),
        ({"phase": "ImagePull"}, "phases.0.seconds"),
        ({"phase": "ImagePull", "seconds": 1, "mark": "Ready"}, "phases.0.mark"),
    ],
)
def test_a_wrong_phase_is_named_and_none_is_taken(lab: Cluster, reporter: Api, phase: Any, field: str) -> None:
    good = {"phase": "WeightsLoad", "seconds": 1}
    answer = reporter.post(f"launches/{ID}/phases", {**POD, "phases": [phase, good]})
    assert answer.status_code == 400
    assert [one["field"] for one in answer.json()["errors"]] == [field]
    assert LaunchObservation.objects.count() == 0


def test_it_filters_by_time(lab: Cluster, reporter: Api) -> None:
    now = timezone.now()
    for hours in (1, 5):
        put_launches(lab, [10.0], at=now - timedelta(hours=hours))
    found = reporter.get("launches", query_params={"began_after": (now - timedelta(hours=2)).isoformat()}).json()
    assert len(found["items"]) == 1
    found = reporter.get("launches", query_params={"began_before": (now - timedelta(hours=2)).isoformat()}).json()
    assert len(found["items"]) == 1


def test_statistics_have_counts_and_dots_below_twenty(lab: Cluster, reporter: Api) -> None:
    now = timezone.now()
    put_launches(lab, [20.0] * 95, at=now, weights="Hit")
    put_launches(lab, [900.0] * 5, at=now, weights="Miss")
    classes = {row["weights"]: row for row in reporter.get("launches/statistics").json()["classes"]}
    assert set(classes) == {"", "Hit", "Miss"}
    assert (classes[""]["launches"], classes[""]["measured"]) == (100, 100)
    assert classes[""]["p99_seconds"] == pytest.approx(900, rel=0.01)
    assert (classes["Miss"]["p99_seconds"], classes["Miss"]["seconds"]) == (None, [900.0] * 5)
    only = reporter.get("launches/statistics?weights=Miss&since=now-6h").json()["classes"]
    assert {row["launches"] for row in only} == {5}


@pytest.mark.parametrize(
    "query", ["since=noon", "since=now&until=now-1h", "weights=hit", "event_class=x", "colour=red"]
)
def test_statistics_refuse_what_they_do_not_understand(reporter: Api, query: str) -> None:
    assert reporter.get(f"launches/statistics?{query}").status_code == 400


def test_a_launch_of_another_pool_is_not_there(lab: Cluster) -> None:
    put_launches(lab, [10.0], at=timezone.now(), pool_name="gpu")
    reader = api_for(factories.user(role="Viewer", target="lab.cpu"), Scope.READ)
    key = Launch.objects.get().pk
    assert reader.get("launches").json()["items"] == []
    assert reader.get(f"launches/{key}").status_code == 404
    assert reader.get("launches/statistics").json()["classes"] == []
