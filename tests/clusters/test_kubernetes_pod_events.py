"""Events and pods come over two watches: an event is told once its pod is, in whatever order they come."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from controlplane.clusters.gateway import ClusterEvent
from controlplane.clusters.kubernetes.pod_events import AFTER_SECONDS, MOST_WAITING, WAITS_SECONDS, Launching, pod_event
from tests.clusters.pod_documents import moment, stamp


def document(reason: str = "Pulled", uid: str = "p-1", **fields: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "name": "chat-0", "namespace": "default", "uid": uid, **fields.pop("about", {})}
    return {
        "metadata": {"uid": f"{uid}-{reason}", "creationTimestamp": stamp(5)},
        "involvedObject": about,
        "reason": reason,
        "message": "said",
        "firstTimestamp": stamp(5),
        "lastTimestamp": stamp(9),
        "source": {"component": "kubelet", "host": "n-1"},
        **fields,
    }


def event(uid: str = "p-1", number: int = 0) -> ClusterEvent:
    made = pod_event(document(uid=uid, metadata={"uid": f"{uid}/{number}", "creationTimestamp": stamp(5)}))
    assert made is not None
    return made


class Time:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def time() -> Time:
    return Time()


def test_an_event_says_of_which_container_it_is_and_when() -> None:
    made = pod_event(document(about={"fieldPath": "spec.containers{server}"}))
    assert made is not None
    assert (made.object_uid, made.container, made.init, made.reporter) == ("p-1", "server", False, "kubelet")
    assert (made.first_at, made.at) == (moment(5), moment(9))


@pytest.mark.parametrize(
    ("path", "container", "init"),
    [
        ("spec.containers{server}", "server", False),
        ("spec.initContainers{ensure}", "ensure", True),
        ("spec.ephemeralContainers{debug}", "", False),
        ("spec.containers{}", "", False),
        ("", "", False),
        (None, "", False),
    ],
)
def test_it_tells_init_containers_from_the_others(path: str | None, container: str, init: bool) -> None:
    made = pod_event(document(about={"fieldPath": path}))
    assert made is not None and (made.container, made.init) == (container, init)


def test_one_that_happened_once_has_one_time() -> None:
    made = pod_event(document(lastTimestamp=stamp(5)))
    assert made is not None and (made.first_at, made.at) == (None, moment(5))
    named = pod_event(document(firstTimestamp=None, lastTimestamp=None, eventTime=stamp(7), source={},
                               reportingComponent="default-scheduler"))  # fmt: skip
    assert named is not None and (named.first_at, named.at, named.reporter) == (None, moment(7), "default-scheduler")


@pytest.mark.parametrize(
    "fields",
    [{"reason": "Unhealthy"}, {"reason": "Started"}, {"about": {"kind": "Node"}}, {"about": {"uid": ""}},
     {"about": {"name": ""}}, {"involvedObject": None}],
)  # fmt: skip
def test_what_says_nothing_of_a_start_is_left_out(fields: dict[str, Any]) -> None:
    assert pod_event(document(**fields)) is None


def test_an_event_that_comes_before_its_pod_waits_for_it(time: Time) -> None:
    launching = Launching(time)
    launching.turn()
    assert not launching.takes(event()) and launching.late() == []
    launching.add("p-1")
    assert launching.late() == [], "whoever reads the pods has not handed it on yet"
    time.at += AFTER_SECONDS
    assert launching.late() == [event()]
    assert launching.late() == [] and launching.takes(event())


def test_events_of_pods_that_were_listed_wait_for_nothing(time: Time) -> None:
    """When a watcher starts there may be more of them than may wait."""
    launching = Launching(time)
    launching.turn()
    for number in range(3 * MOST_WAITING):
        launching.add(f"p-{number}", listed=True)
    assert all(launching.takes(event(f"p-{number}")) for number in range(3 * MOST_WAITING))
    launching.add("p-0")
    assert launching.takes(event("p-0")), "and it stays known"


def test_a_pod_is_known_for_two_listings(time: Time) -> None:
    launching = Launching(time)
    launching.turn()
    launching.add("p-1")
    time.at += AFTER_SECONDS
    launching.turn()
    assert launching.takes(event()), "its listing has not come to it yet"
    launching.add("p-1")
    assert launching.takes(event()), "and it is no new one"
    launching.turn()
    launching.turn()
    assert not launching.takes(event())


def test_events_of_pods_that_nobody_asked_for_are_forgotten(time: Time) -> None:
    launching = Launching(time)
    for number in range(MOST_WAITING + 10):
        launching.takes(event("other", number))
    launching.takes(event("p-1"))
    launching.learn(["other", "p-1"])
    told = launching.late()
    assert len(told) == MOST_WAITING and told[-1] == event("p-1")
    launching = Launching(time)
    launching.takes(event())
    time.at += WAITS_SECONDS + 1
    launching.learn(["p-1"])
    assert launching.late() == []


def test_the_same_event_waits_once_and_as_it_was_last(time: Time) -> None:
    launching = Launching(time)
    launching.takes(event())
    again = pod_event(document(metadata={"uid": "p-1/0", "creationTimestamp": stamp(5)}, lastTimestamp=stamp(30)))
    assert again is not None
    launching.takes(again)
    launching.learn(["p-1"])
    assert launching.late() == [again]


def test_five_thousand_open_launches_take_little_memory(time: Time) -> None:
    """What the readers of one cluster hold between two messages, whatever was told."""
    tracemalloc.start()
    try:
        launching = Launching(time)
        for _ in range(3):
            launching.turn()
            for number in range(5000):
                launching.add(f"00000000-0000-0000-0000-{number:012}")
        time.at += AFTER_SECONDS
        for number in range(4000, 5000 + MOST_WAITING + 100):
            launching.takes(event(f"00000000-0000-0000-0000-{number:012}"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8 * 1024 * 1024, held
