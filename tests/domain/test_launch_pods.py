"""From what a pod's status says, moment by moment, to the timelines of its launches."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from caches.domain.launches.labels import weights_label
from caches.domain.launches.observations import Observation
from caches.domain.launches.pods import latest_run, pod_observations
from caches.domain.launches.timeline import assemble
from caches.domain.launches.words import Cached, LaunchState, Mark, Phase, PhaseState
from controlplane.clusters.kubernetes.pod_starts import observed_pod
from controlplane.clusters.pod_runs import ObservedPod
from tests.clusters.pod_documents import FOUND, container, ended, moment, pod, running, waiting

CREATING, CRASHED = waiting("PodInitializing"), waiting("CrashLoopBackOff")


def told(document: dict[str, Any]) -> ObservedPod:
    made = observed_pod(document)
    assert made is not None
    return made


def runs(*documents: dict[str, Any]) -> dict[int, list[Observation]]:
    found: dict[int, list[Observation]] = defaultdict(list)
    for document in documents:
        for run, one in pod_observations(told(document), "uid-1"):
            found[run].append(one)
    return found


def ensure(state: dict[str, Any], count: int = 0, last: dict[str, Any] | None = None) -> dict[str, Any]:
    return container(state, name="ensure", count=count, last=last)


DONE = ensure(ended(2, 9, message=FOUND))
A_START = [
    pod(node="", scheduled=None),
    pod(container(CREATING), ensure=ensure(waiting("ContainerCreating"))),
    pod(container(CREATING), ensure=ensure(running(2))),
    pod(container(CREATING), ensure=DONE),
    pod(container(running(10)), ensure=DONE),
    pod(container(running(10), ready=True), ensure=DONE, ready=20),
]


def test_a_start_from_the_beginning_to_being_ready() -> None:
    [seen] = runs(*A_START).values()
    made = assemble(seen)
    assert (made.state, made.started_at, made.ready_seconds) == (LaunchState.READY, moment(0), 20)
    assert (made.seconds(Phase.WAITING), made.seconds(Phase.WEIGHTS_FETCH)) == (1, 7.5)
    assert made.phases[3].state is PhaseState.UNKNOWN, "its log has not been read"
    assert weights_label(seen) is Cached.MISS
    facts = {name: value for one in seen for name, value in one.facts}
    assert (facts["pod"], facts["endpoint"], facts["node"], facts["node_uid"]) == (
        "default/chat-0", "default/chat", "n-1", "uid-1",
    )  # fmt: skip


def test_the_last_word_says_all_and_hearing_each_says_no_more() -> None:
    assert set(runs(*A_START)[0]) - set(runs(A_START[-1])[0]) == set()
    shuffled = A_START * 2
    random.Random(7).shuffle(shuffled)
    assert assemble(runs(*shuffled)[0]) == assemble(runs(A_START[-1])[0])


def test_a_pod_that_is_deleted_before_it_was_placed_waited_for_a_node() -> None:
    [seen] = runs(A_START[0], pod(node="", scheduled=None, deletionTimestamp="2030-03-31T00:31:00Z")).values()
    made = assemble(seen)
    assert (made.state, made.reached, made.end_reason, made.ready_at) == (
        LaunchState.ENDED,
        Phase.WAITING,
        "Deleted",
        None,
    )
    assert made.total_seconds == 60 and made.seconds(Phase.IMAGE_PULL) is None


def test_an_ensure_step_that_failed_and_was_run_again_counts_with_both() -> None:
    failed = ended(2, 5, 1, message="no store")
    seen = runs(
        pod(container(CREATING), ensure=ensure(failed)),
        pod(container(CREATING), ensure=ensure(waiting("CrashLoopBackOff"), last=failed)),
        pod(container(CREATING), ensure=ensure(running(15), count=1, last=failed)),
        pod(container(running(23)), ensure=ensure(ended(15, 22, message=FOUND), count=1, last=failed)),
    )
    assert list(seen) == [0]
    made = assemble(seen[0])
    assert made.seconds(Phase.WEIGHTS_FETCH) == 3 + 7.5, "nobody fetched between the two"
    assert weights_label(seen[0]) is Cached.MISS
    ends = [one for one in set(seen[0]) if one.mark is Mark.ENSURE_ENDED]
    assert sorted(one.fact("found") for one in ends) == ["failed", "miss"]


def test_a_container_that_crashes_and_crashes_has_a_launch_for_each() -> None:
    first, second = ended(10, 20, 1), ended(21, 31, 137, reason="OOMKilled")
    seen = runs(
        pod(container(running(10))),
        pod(container(first)),
        pod(container(running(21), count=1, last=first)),
        pod(container(CRASHED, count=1, last=second)),
        pod(container(running(61), count=2, last=second, ready=True), ready=70),
    )
    made = {run: assemble(some) for run, some in seen.items()}
    assert [(one.state, one.end_reason) for one in made.values()] == [
        (LaunchState.ENDED, "Error 1"), (LaunchState.ENDED, "OOMKilled"), (LaunchState.READY, ""),
    ]  # fmt: skip
    assert [one.started_at for one in made.values()] == [moment(0), moment(20), moment(31)]
    assert (made[2].ready_seconds, made[2].seconds(Phase.WAITING), made[2].seconds(Phase.WEIGHTS_FETCH)) == (39, 0, 0)
    assert [one.reached for one in made.values()][:2] == [Phase.INITIALISATION] * 2


def test_a_run_that_is_waited_for_is_a_launch_that_has_begun() -> None:
    document = pod(container(CRASHED, count=4, last=ended(30, 40, 1)))
    assert latest_run(told(document)) == 5
    seen = runs(document)
    assert assemble(seen[5]).state is LaunchState.STARTING and assemble(seen[5]).started_at == moment(40)
    assert assemble(seen[4]).end_reason == "Error 1"


def test_the_readiness_of_the_run_before_is_not_that_of_the_next_one() -> None:
    """A pod stays ready for a moment when its container has been started again."""
    status = container(running(25), count=1, last=ended(10, 20, 1), ready=True)
    made = assemble(runs(pod(status, ready=12))[1])
    assert (made.state, made.reached, made.ready_at) == (LaunchState.STARTING, Phase.INITIALISATION, None)


def test_a_pod_that_began_anew_ensures_again_and_that_belongs_to_the_later_run() -> None:
    """A machine that was started again runs the pod's init containers again."""
    again = ensure(ended(102, 112, message='{"found": "hit", "seconds": 0.1}'), count=1)
    seen = runs(
        pod(container(running(10)), ensure=DONE),
        pod(container(running(113), count=1, last=ended(10, 100, 255)), ensure=again),
    )
    assert (weights_label(seen[0]), weights_label(seen[1])) == (Cached.MISS, Cached.HIT)
    assert assemble(seen[1]).seconds(Phase.WEIGHTS_FETCH) == 0.1


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("DeletionByTaintManager", LaunchState.ENDED),
        ("DeletionByPodGC", LaunchState.ENDED),
        ("PreemptionByScheduler", LaunchState.ENDED),
    ],
)
def test_a_node_that_is_lost_ends_what_was_on_its_way_there(reason: str, state: LaunchState) -> None:
    seen = runs(pod(container(CREATING), ensure=ensure(running(2)), disrupted=(60, reason)))
    made = assemble(seen[0])
    assert (made.state, made.end_reason, made.reached) == (state, reason, Phase.WEIGHTS_FETCH)
    assert made.ended_at == moment(60) and made.phases[3].state is PhaseState.NOT_REACHED


def test_one_that_was_ready_stays_so_when_it_leaves() -> None:
    seen = runs(pod(container(running(10), ready=True), ready=20, disrupted=(600, "DeletionByTaintManager")))
    made = assemble(seen[0])
    assert (made.state, made.ended_at, made.end_reason) == (LaunchState.READY, moment(600), "DeletionByTaintManager")


@pytest.mark.parametrize("message", ["", "no json", "[1]", '{"found": 5, "seconds": "x"}', '{"seconds": -1}', "\x00"])
def test_an_ensure_step_that_says_nothing_readable_says_when_it_ended(message: str) -> None:
    [seen] = runs(pod(ensure=ensure(ended(2, 9, message=message)))).values()
    assert weights_label(seen) is Cached.UNKNOWN and assemble(seen).seconds(Phase.WEIGHTS_FETCH) == 7
    [seen] = runs(pod(ensure=ensure(ended(2, 9, 1, message=message)))).values()
    assert weights_label(seen) is Cached.MISS, "a step that failed did not find them"


@pytest.mark.parametrize("skew", [-3600.0, -30.0, 30.0, 3600.0])
def test_a_nodes_clock_that_is_wrong_moves_no_phase(skew: float) -> None:
    """Created and placed by the server's clock, the rest by the node's."""
    done = ensure(ended(2 + skew, 9 + skew, message=FOUND))
    seen = runs(pod(container(running(10 + skew), ready=True), ensure=done, ready=20 + skew))
    made = assemble(seen[0])
    assert made.seconds(Phase.WEIGHTS_FETCH) == 7.5 and made.seconds(Phase.WAITING) == 1
    if skew < 0:  # a node behind is moved until it was placed before it fetched
        assert made.ready_seconds is not None and abs(made.ready_seconds - 20) <= 2


def test_one_that_its_node_would_not_have_has_ended_where_it_came_to() -> None:
    document = pod()
    document["status"] |= {"phase": "Failed", "reason": "UnexpectedAdmissionError", "startTime": "2030-03-31T00:30:03Z"}
    made = assemble(runs(document)[0])
    assert (made.state, made.reached, made.end_reason) == (
        LaunchState.ENDED, Phase.IMAGE_PULL, "UnexpectedAdmissionError",
    )  # fmt: skip
    assert made.seconds(Phase.WAITING) == 1 and made.total_seconds == 3


def test_a_run_whose_predecessor_ended_nobody_knows_when_has_no_beginning() -> None:
    """A machine that was started again forgot it: how long the next one took is not known, and no number is made up."""
    lost = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}}
    seen = runs(pod(container(running(50), count=1, last=lost, ready=True), ready=60))
    made = assemble(seen[1])
    assert made.state is LaunchState.READY and (made.ready_seconds, made.total_seconds) == (None, None)


@pytest.mark.parametrize("annotation", ["sha256:\0", "\ud800", "x" * 5000, " , ,", "模型"])
def test_what_a_pod_says_that_it_uses_is_text_that_can_be_stored(annotation: str) -> None:
    [seen] = runs(pod(container(running(10)), annotations={"cache.hearth.dev/weights": annotation})).values()
    for one in seen:
        digest = one.fact("digest")
        assert len(digest) <= 80 and "\0" not in digest and digest.encode().decode() == digest
