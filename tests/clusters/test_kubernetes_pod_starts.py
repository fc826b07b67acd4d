"""A pod's status read as the runs of its containers: which number each has, and what may be called ready."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.clusters.kubernetes.pod_starts import MESSAGE_LENGTH, has_launches, observed_pod
from controlplane.clusters.pod_runs import ObservedPod
from tests.clusters.pod_documents import (
    DIGEST,
    FOUND,
    container,
    ended,
    moment,
    pod,
    running,
    stamp,
    waiting,
)


def seen(*statuses: dict[str, Any], **fields: Any) -> ObservedPod:
    made = observed_pod(pod(*statuses, **fields))
    assert made is not None
    return made


def numbers(made: ObservedPod) -> list[tuple[int, bool]]:
    """Of each run its number, and whether it has ended."""
    return [(one.restart_count, one.ended_at is not None) for one in made.runs]


def test_a_pod_that_serves_says_all_that_is_known_of_it() -> None:
    ensure = container(ended(2, 9, message=FOUND), name="ensure")
    made = seen(container(running(10), ready=True), ensure=ensure, ready=20)
    assert (made.uid, made.name, made.endpoint, made.digest) == ("pod-uid", "default/chat-0", "chat", DIGEST)
    assert (made.node_name, made.container, made.created_at, made.scheduled_at) == (
        "n-1",
        "server",
        moment(0),
        moment(1),
    )
    assert (made.ready_at, made.leaving_at, numbers(made)) == (moment(20), None, [(0, False)])
    [step] = made.ensures
    assert (step.started_at, step.ended_at, step.message, step.exit_code) == (moment(2), moment(9), FOUND, 0)


def test_one_that_is_not_placed_has_only_begun() -> None:
    made = seen(node="", scheduled=None)
    assert (made.node_name, made.scheduled_at, made.runs, made.ensures, made.ready_at) == ("", None, (), (), None)


@pytest.mark.parametrize(
    ("state", "last", "count", "told"),
    [
        (waiting("ContainerCreating"), None, 0, []),
        (waiting("ImagePullBackOff"), None, 0, []),
        (running(10), None, 0, [(0, False)]),
        (ended(10, 20, 1), None, 0, [(0, True)]),
        # It waits for its next run: the last state is the run of this number.
        (waiting("CrashLoopBackOff"), ended(10, 20, 1), 0, [(0, True)]),
        (waiting("CrashLoopBackOff"), ended(30, 40, 1), 4, [(4, True)]),
        # The next one runs: the last state is the run before it.
        (running(25), ended(10, 20, 1), 1, [(0, True), (1, False)]),
        (ended(25, 26, 1), ended(10, 20, 1), 1, [(0, True), (1, True)]),
        # A node that forgot how often.
        (running(25), ended(10, 20, 1), 0, [(0, False)]),
        ({}, None, 0, []),
    ],
)
def test_runs_have_the_numbers_that_their_kubelet_gives(
    state: dict[str, Any], last: dict[str, Any] | None, count: int, told: list[tuple[int, bool]]
) -> None:
    made = seen(container(state, count=count, last=last))
    assert numbers(made) == told
    assert made.waits_to_restart == ("waiting" in state and bool(told))


@pytest.mark.parametrize(
    ("status", "ready", "at"),
    [
        (container(running(10), ready=True), 20, 20),
        (container(running(10), ready=True), 10, 10),
        (container(running(10), ready=False), 20, None),
        (container(running(10), ready=True), None, None),
        (container(running(25), count=1, last=ended(10, 20, 1), ready=True), 12, None),  # of the run before
        (container(running(25), count=1, last=ended(10, 20, 1), ready=True), 30, 30),
        (container(waiting("CrashLoopBackOff"), last=ended(10, 20, 1), ready=True), 12, None),
        (container(ended(10, 20, 1), ready=True), 12, None),
    ],
)
def test_only_the_run_that_goes_on_is_ready(status: dict[str, Any], ready: float | None, at: float | None) -> None:
    assert seen(status, ready=ready).ready_at == (None if at is None else moment(at))


@pytest.mark.parametrize(
    ("reason", "code", "told"),
    [("Error", 1, "Error 1"), ("OOMKilled", 137, "OOMKilled"), ("Completed", 0, "Completed"), ("", 137, "137")],
)
def test_it_says_why_a_run_ended(reason: str, code: int, told: str) -> None:
    state = ended(10, 20, code)
    state["terminated"]["reason"] = reason
    assert seen(container(state)).runs[0].reason == told


@pytest.mark.parametrize(
    ("fields", "at", "reason"),
    [
        ({}, None, ""),
        # The time until which it has to be gone is not the one at which it was asked to go.
        ({"deletionTimestamp": stamp(90), "deletionGracePeriodSeconds": 30}, 60, "Deleted"),
        ({"deletionTimestamp": stamp(90), "disrupted": (80, "DeletionByTaintManager")}, 80, "DeletionByTaintManager"),
        ({"disrupted": (80, "PreemptionByScheduler")}, 80, "PreemptionByScheduler"),
    ],
)
def test_it_says_since_when_a_pod_leaves_and_why(fields: dict[str, Any], at: float | None, reason: str) -> None:
    made = seen(container(running(10)), **fields)
    assert (made.leaving_at, made.leaving_reason) == (None if at is None else moment(at), reason)


@pytest.mark.parametrize(
    ("status", "at", "reason"),
    [
        ({"reason": "UnexpectedAdmissionError", "startTime": stamp(3)}, 3, "UnexpectedAdmissionError"),
        ({"reason": "OutOfcpu", "startTime": stamp(3)}, 3, "OutOfcpu"),
        ({"reason": "NodeAffinity"}, 0, "NodeAffinity"),
        ({}, 0, "Failed"),
        # What its containers say of their ends is better.
        ({"reason": "Evicted", "containerStatuses": [container(ended(10, 20, 1))]}, None, ""),
    ],
)
def test_one_that_its_node_would_not_have_has_ended(status: dict[str, Any], at: float | None, reason: str) -> None:
    """Nobody deletes it: another pod takes its place, and this one would be starting for ever."""
    document = pod()
    document["status"] |= {"phase": "Failed", **status}
    made = observed_pod(document)
    assert made is not None and (made.leaving_at, made.leaving_reason) == (None if at is None else moment(at), reason)
    document["status"]["phase"] = "Pending"
    made = observed_pod(document)
    assert made is not None and made.leaving_at is None


def test_a_disruption_says_more_than_a_failed_phase() -> None:
    document = pod(disrupted=(50, "DeletionByPodGC"))
    document["status"] |= {"phase": "Failed", "reason": "OutOfmemory", "startTime": stamp(3)}
    made = observed_pod(document)
    assert made is not None and (made.leaving_at, made.leaving_reason) == (moment(50), "DeletionByPodGC")


def test_a_run_of_which_its_node_knows_no_more_than_that_it_ended() -> None:
    """After a machine was started again: neither when, nor how."""
    lost = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}}
    made = seen(container(running(50), count=1, last=lost, ready=True), ready=60)
    assert [(one.restart_count, one.started_at, one.ended_at) for one in made.runs] == [
        (0, None, None), (1, moment(50), None),
    ]  # fmt: skip
    assert made.runs[0].reason == "ContainerStatusUnknown" and made.ready_at == moment(60)


@pytest.mark.parametrize(("grace", "at"), [(None, 90), (0, 90), (30, 60), (86400, 90 - 86400)])
def test_a_grace_period_is_taken_off_whatever_it_is(grace: int | None, at: float) -> None:
    made = seen(container(running(10)), deletionTimestamp=stamp(90), deletionGracePeriodSeconds=grace)
    assert made.leaving_at == moment(at)


def test_one_that_leaves_waits_for_no_other_run() -> None:
    status = container(waiting("CrashLoopBackOff"), last=ended(10, 20, 1))
    assert seen(status).waits_to_restart
    assert not seen(status, deletionTimestamp=stamp(90)).waits_to_restart


@pytest.mark.parametrize(
    ("fields", "container_name"),
    [
        ({}, "server"),
        ({"containers": ("proxy", "server")}, "server"),
        ({"containers": ("warm-up", "engine", "proxy")}, "engine"),
        ({"labels": {}}, "server"),  # by its annotation
        ({"annotations": {}}, "server"),  # by its label
        ({"labels": {}, "annotations": {}}, None),
        ({"annotations": {"cache.hearth.dev/weights": ""}, "labels": {"app": "chat"}}, None),
        ({"labels": {"app.kubernetes.io/name": "hearth-agent"}}, None),
        ({"containers": ()}, None),
        ({"containers": ("warm-up",)}, None),
        ({"creationTimestamp": None}, None),
    ],
)
def test_it_knows_whose_starts_are_launches(fields: dict[str, Any], container_name: str | None) -> None:
    made = observed_pod(pod(**fields))
    assert (made.container if made else None) == container_name


def test_pods_are_told_apart_by_their_metadata_alone() -> None:
    assert has_launches(pod()["metadata"]) and not has_launches({"name": "x"})
    assert not has_launches({"labels": None, "annotations": None})


def test_a_message_is_bounded_and_of_several_digests_the_first_counts() -> None:
    step = container(ended(2, 9, message="x" * 5000), name="ensure")
    made = seen(ensure=step, annotations={"cache.hearth.dev/weights": f"{DIGEST}, other"})
    assert len(made.ensures[0].message) == MESSAGE_LENGTH and made.digest == DIGEST


def test_what_a_status_leaves_out_is_not_known() -> None:
    bare = {
        "metadata": {"name": "x", "uid": "u", "creationTimestamp": stamp(0), "labels": {"hearth.dev/endpoint": "e"}}
    }
    made = observed_pod({**bare, "spec": {"containers": [{"name": "server"}]}})
    assert made is not None and (made.runs, made.ready_at, made.scheduled_at) == ((), None, None)
    state: dict[str, Any] = {"name": "server", "restartCount": None, "state": {"running": {}}, "lastState": None}
    [run] = seen(state).runs
    assert (run.restart_count, run.started_at) == (0, None)
