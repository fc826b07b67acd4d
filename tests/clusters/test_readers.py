"""Readers go on whatever a cluster answers: after every gap they list again, and they never run ahead of the taker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias, cast

import pytest

from controlplane.clusters import readers
from controlplane.clusters.gateway import (
    ClusterGateway,
    EventType,
    Gone,
    Kind,
    Listing,
    Throttled,
    Unreachable,
    WatchEvent,
)
from controlplane.clusters.readers import Changed, Failed, KindReader, Message, Relisted, backoff
from tests.clusters.sightings import event, seen

Step: TypeAlias = list[WatchEvent]


class Scripted:
    """A cluster that answers by a script: one step for each list or watch, then silence."""

    def __init__(self, *steps: Callable[[], Step] | Exception) -> None:
        self.calls: list[str] = []
        self.silent = threading.Event()
        self._steps = list(steps)

    def list(self, kind: Kind) -> Listing:
        self.calls.append("list")
        self._next()
        return Listing((seen("a-1"),), f"t{len(self.calls)}")

    def watch(self, kind: Kind, token: str, timeout_seconds: float) -> Iterator[WatchEvent]:
        self.calls.append(f"watch {token}")
        if not self._steps:
            self.silent.set()
            threading.Event().wait(timeout_seconds)
        yield from self._next()

    def _next(self) -> Step:
        step = self._steps.pop(0) if self._steps else list
        if isinstance(step, Exception):
            raise step
        return step()


@pytest.fixture
def into() -> queue.Queue[Message]:
    return queue.Queue(50)


@pytest.fixture
def read(into: queue.Queue[Message], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Scripted], KindReader]]:
    monkeypatch.setattr(readers, "FIRST_BACKOFF_SECONDS", 0.01)
    stopping = threading.Event()
    started: list[KindReader] = []

    def start(cluster: Scripted, after: threading.Event | None = None) -> KindReader:
        reader = KindReader(
            name="test",
            kind=Kind.NODE,
            gateway=lambda: cast(ClusterGateway, cluster),
            into=into,
            stopping=stopping,
            after=after,
            watch_seconds=0.05,
        )
        started.append(reader)
        reader.start()
        return reader

    yield start
    stopping.set()
    for reader in started:
        reader.join(60)
        assert not reader.is_alive()


def _take(into: queue.Queue[Message], count: int) -> list[Message]:
    return [into.get(timeout=60) for _ in range(count)]


ADDED = WatchEvent(EventType.ADDED, Kind.NODE, "t9", seen("a-2"))


def test_it_lists_and_then_watches_from_there(into: queue.Queue[Message], read: Callable[..., KindReader]) -> None:
    cluster = Scripted(list, lambda: [ADDED])
    read(cluster)
    listed, changed, bookmark = _take(into, 3)
    assert isinstance(listed, Relisted) and isinstance(changed, Changed) and isinstance(bookmark, Changed)
    assert listed.items == (seen("a-1"),)
    assert changed.event == ADDED
    assert bookmark.event == WatchEvent(EventType.BOOKMARK, Kind.NODE, "t9", None)
    assert cluster.silent.wait(60)
    assert cluster.calls[:3] == ["list", "watch t1", "watch t9"]


def test_it_lists_again_when_its_token_is_gone(into: queue.Queue[Message], read: Callable[..., KindReader]) -> None:
    cluster = Scripted(list, Gone("too old"), list, Gone("again"))
    read(cluster)
    assert cluster.silent.wait(60)
    assert cluster.calls[:6] == ["list", "watch t1", "list", "watch t3", "list", "watch t5"]
    assert all(isinstance(message, Relisted) for message in _take(into, 3)), "Gone is no failure"


@pytest.mark.parametrize("error", [Unreachable("no route"), Throttled("slowly", 0.02), ValueError("a bug")])
@pytest.mark.parametrize("healthy", [0, 1])
def test_it_says_what_failed_and_lists_again(
    into: queue.Queue[Message], read: Callable[..., KindReader], error: Exception, healthy: int
) -> None:
    cluster = Scripted(*([list] * healthy), error)
    read(cluster)
    messages = _take(into, healthy + 2)
    assert messages[healthy] == Failed(Kind.NODE, f"Node: {error}")
    assert isinstance(messages[healthy + 1], Relisted)


def test_it_lists_again_when_asked(into: queue.Queue[Message], read: Callable[..., KindReader]) -> None:
    cluster = Scripted()
    reader = read(cluster)
    assert isinstance(into.get(timeout=60), Relisted)
    reader.relist.set()
    while not isinstance(into.get(timeout=60), Relisted):
        pass


def test_it_waits_for_the_nodes_before_it_lists(into: queue.Queue[Message], read: Callable[..., KindReader]) -> None:
    first, cluster = threading.Event(), Scripted()
    read(cluster, after=first)
    with pytest.raises(queue.Empty):
        into.get(timeout=0.3)
    assert cluster.calls == []
    first.set()
    assert isinstance(into.get(timeout=60), Relisted)


def test_it_does_not_run_ahead_of_the_taker(into: queue.Queue[Message], read: Callable[..., KindReader]) -> None:
    told: list[int] = []

    class Flooding(Scripted):
        def watch(self, kind: Kind, token: str, timeout_seconds: float) -> Iterator[WatchEvent]:
            yield from _counted(told, 500)

    read(Flooding())
    while not into.full():
        threading.Event().wait(0.01)
    assert len(told) <= into.maxsize + 1
    assert isinstance(_take(into, into.maxsize)[-1], Changed)


def _counted(told: list[int], count: int) -> Iterator[WatchEvent]:
    for number in range(count):
        told.append(number)
        yield event(EventType.MODIFIED, seen("a-1"))


def test_it_waits_longer_each_time_but_not_for_ever() -> None:
    for failures, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (50, readers.LONGEST_BACKOFF_SECONDS)):
        waits = [backoff(failures) for _ in range(50)]
        assert longest / 2 <= min(waits) <= max(waits) <= longest
        assert len(set(waits)) > 10, "a fleet of watchers must not come back at once"
    told = [backoff(1, Throttled("slowly", 20.0)) for _ in range(50)]
    assert 20.0 <= min(told) < max(told) <= 20.5, "never sooner than it was told, and not all at once"
    assert max(backoff(50, Throttled("slowly", 1.0)) for _ in range(50)) > 2.0, "nor sooner because it was told once"
