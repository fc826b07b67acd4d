"""What a watcher does with what its readers bring: batches, failures, sinks that raise, a database that is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from django.db import DataError, InterfaceError, OperationalError

from controlplane.clusters import sinks, watching
from controlplane.clusters.gateway import ClusterGateway, EventType, Kind, Observed, WatchEvent
from controlplane.clusters.models import Cluster
from controlplane.clusters.readers import Changed, Failed, Message, Relisted
from controlplane.clusters.watching import BATCH_SIZE, ClusterWatcher
from controlplane.management.commands import watch_cluster
from tests.clusters.sightings import T0, report, seen

LATER = T0 + timedelta(seconds=5)


class Rows:
    """Stands in for the services: remembers the calls, and fails as often as it has ``trouble``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.trouble: list[Exception] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(**arguments: Any) -> None:
            if self.trouble:
                raise self.trouble.pop()
            self.calls.append((name, arguments))

        return call

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    @property
    def errors(self) -> list[str]:
        return [arguments["error"] for name, arguments in self.calls if "error" in arguments]


class Ear:
    """A sink that remembers, and raises as often as it has ``trouble``."""

    def __init__(self) -> None:
        self.trouble: list[Exception] = []
        self.heard: list[tuple[str, Any]] = []

    def relisted(self, cluster_id: str, kind: Kind, items: tuple[Observed, ...], at: datetime) -> None:
        self._hear("relisted", kind)

    def changed(self, cluster_id: str, events: tuple[WatchEvent, ...], at: datetime) -> None:
        self._hear("changed", tuple(event.type for event in events))

    def _hear(self, what: str, told: Any) -> None:
        if self.trouble:
            raise self.trouble.pop()
        self.heard.append((what, told))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    made = Rows()
    monkeypatch.setattr(watching, "services", made)
    return made


@pytest.fixture
def ears(monkeypatch: pytest.MonkeyPatch) -> list[Ear]:
    made = [Ear(), Ear()]
    monkeypatch.setattr(sinks, "_sinks", made)
    return made


@pytest.fixture
def watcher(rows: Rows, ears: list[Ear], monkeypatch: pytest.MonkeyPatch) -> ClusterWatcher:
    made = ClusterWatcher(cluster_id=uuid4(), name="home", gateway=lambda: cast(ClusterGateway, None))
    monkeypatch.setattr(made._stopping, "wait", lambda seconds: None)
    return made


def _changed(type_: EventType = EventType.MODIFIED, *, at: datetime = T0, kind: Kind = Kind.NODE) -> Changed:
    thing = None if type_ is EventType.BOOKMARK else (seen("a-1") if kind is Kind.NODE else report("one", T0))
    return Changed(WatchEvent(type_, kind, "t", thing), at)


LISTED = Relisted(Kind.NODE, (seen("a-1"),), T0)


def test_it_delivers_runs_of_increments_together_and_keeps_the_order(
    watcher: ClusterWatcher, rows: Rows, ears: list[Ear]
) -> None:
    batch: Sequence[Message] = [_changed(), _changed(), LISTED, _changed(EventType.DELETED)]
    watcher._deliver(batch)
    modified, deleted = EventType.MODIFIED, EventType.DELETED
    assert ears[0].heard == [("changed", (modified, modified)), ("relisted", Kind.NODE), ("changed", (deleted,))]
    assert ears[1].heard == ears[0].heard
    told = ["nodes_changed", "cluster_identified", "nodes_relisted", "cluster_contacted", "nodes_changed"]
    assert rows.names == told


def test_it_takes_the_time_of_the_last_increment(watcher: ClusterWatcher, rows: Rows) -> None:
    watcher._deliver([_changed(at=T0), _changed(at=LATER)])
    assert rows.calls[0][1]["at"] == LATER


def test_it_confirms_by_bookmarks_and_tells_them_to_no_sink(
    watcher: ClusterWatcher, rows: Rows, ears: list[Ear]
) -> None:
    watcher._deliver([_changed(EventType.BOOKMARK), _changed(EventType.BOOKMARK, kind=Kind.CONSUMER)])
    assert ears[0].heard == []
    assert rows.calls[-1][0] == "cluster_contacted" and rows.calls[-1][1]["nodes_too"] is True
    watcher._deliver([_changed(EventType.BOOKMARK, kind=Kind.CONSUMER)])
    assert rows.calls[-1][1]["nodes_too"] is False, "a watch of something else confirms no node"


def test_it_writes_reports_of_caches_but_of_no_deleted_one(watcher: ClusterWatcher, rows: Rows) -> None:
    kind = Kind.NODE_CACHE
    watcher._deliver([_changed(EventType.DELETED, kind=kind)])
    assert "node_statuses" not in rows.names
    watcher._deliver([_changed(EventType.ADDED, kind=kind), Relisted(kind, (report("one", T0),), T0)])
    assert rows.names.count("node_statuses") == 2


@pytest.mark.parametrize("error", [OperationalError("cut"), InterfaceError("closed")])
def test_it_repeats_the_whole_batch_until_the_database_is_back(
    watcher: ClusterWatcher, rows: Rows, ears: list[Ear], error: Exception
) -> None:
    rows.trouble = [error] * 3
    watcher._deliver([LISTED, _changed()])
    assert [what for what, _ in ears[0].heard] == ["relisted", "changed"]
    assert not watcher._readers[Kind.NODE].relist.is_set(), "nothing is wrong with the cluster"
    assert rows.errors == [""]


def test_it_tells_a_sink_again_what_a_later_one_could_not_store(watcher: ClusterWatcher, ears: list[Ear]) -> None:
    ears[1].trouble = [OperationalError("cut")]
    watcher._deliver([LISTED])
    assert len(ears[0].heard) == 2 and len(ears[1].heard) == 1


@pytest.mark.parametrize("error", [ValueError("a bug"), DataError("out of range"), KeyError("x")])
def test_it_lists_just_that_kind_again_when_a_sink_fails(
    watcher: ClusterWatcher, rows: Rows, ears: list[Ear], error: Exception
) -> None:
    ears[0].trouble = [error]
    watcher._deliver([_changed(kind=Kind.NODE_CACHE), LISTED])
    assert {kind for kind, reader in watcher._readers.items() if reader.relist.is_set()} == {Kind.NODE_CACHE}
    assert ears[0].heard == [("relisted", Kind.NODE)], "what follows is delivered all the same"
    assert "could not take in" in rows.errors[-1] and rows.errors[-1].startswith("NodeCache: ")

    watcher._deliver([Relisted(Kind.NODE_CACHE, (), T0)])
    assert rows.errors[-1] == "", "a listing that is taken in heals it"


def test_it_names_every_kind_that_fails_until_that_kind_is_back(watcher: ClusterWatcher, rows: Rows) -> None:
    watcher._deliver([Failed(Kind.CONSUMER, "Consumer: no"), Failed(Kind.NODE, "Node: no")])
    assert rows.errors == ["Consumer: no", "Node: no; Consumer: no"]
    watcher._deliver([_changed(EventType.BOOKMARK)])
    assert rows.errors[-1] == "Consumer: no"
    watcher._deliver([_changed(EventType.BOOKMARK, kind=Kind.CONSUMER)])
    assert rows.errors[-1] == ""


def test_it_says_a_failure_once_however_often_it_repeats(
    watcher: ClusterWatcher, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        watcher._deliver([Failed(Kind.NODE, "Node: no route")])
    assert [record.getMessage() for record in caplog.records] == ["watch home: Node: no route"]


def test_it_takes_a_bounded_batch_and_waits_for_none(watcher: ClusterWatcher) -> None:
    for _ in range(BATCH_SIZE + 5):
        watcher._queue.put(_changed())
    assert [len(watcher._take()) for _ in range(2)] == [BATCH_SIZE, 5]


def test_it_ends_when_its_cluster_is_removed(
    watcher: ClusterWatcher, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reader in watcher._readers.values():
        monkeypatch.setattr(reader, "start", lambda: None)
    rows.trouble = [Cluster.DoesNotExist()]
    watcher._queue.put(LISTED)
    watcher.run()
    assert watcher._stopping.is_set()


def test_it_gives_up_a_delivery_when_it_is_stopped(
    watcher: ClusterWatcher, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.trouble = [OperationalError("cut")] * 50
    monkeypatch.setattr(watcher._stopping, "wait", lambda seconds: watcher.stop())
    watcher._deliver([LISTED])
    assert len(rows.trouble) == 49


# -- the command around the watchers


class Still:
    """A watcher that never moves by itself."""

    idle = 0.0

    def __init__(self, *, cluster_id: object, name: str, gateway: object) -> None:
        self.cluster, self.stopped, self.alive = name, False, True

    def start(self) -> None: ...
    def stop(self) -> None:
        self.stopped = True

    def join(self, timeout: float) -> None: ...
    def is_alive(self) -> bool:
        return self.alive

    def idle_seconds(self) -> float:
        return self.idle


class Rounds(threading.Event):
    """Stops after so many rounds, and does something between them."""

    def __init__(self, *between: Callable[[], object]) -> None:
        super().__init__()
        self.between = list(between)

    def wait(self, timeout: float | None = None) -> bool:
        if not self.between:
            self.set()
            return True
        self.between.pop(0)()
        return False


class Alone:
    """Leads every cluster without asking a database."""

    def confirm(self) -> None: ...
    def leave(self, cluster_id: UUID) -> None: ...
    def close(self) -> None: ...
    def lead(self, cluster_id: UUID, name: str) -> bool:
        return True


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    monkeypatch.setattr(watch_cluster, "beat", lambda: made.append(1))
    monkeypatch.setattr(watch_cluster, "ClusterWatcher", Still)
    monkeypatch.setattr(watch_cluster, "Leadership", Alone)
    monkeypatch.setattr("django.db.connections.close_all", lambda: None)
    return made


def _clusters(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
    """What the database answers, round by round; the last answer stays."""
    left = list(answers)

    class Objects:
        def all(self) -> Any:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        def filter(self, name__in: Any) -> Any:
            return [row for row in self.all() if row.name in name__in]

    monkeypatch.setattr(Cluster, "objects", Objects())


HOME = Cluster(name="home", type="Local", address="/a")


def test_it_shows_life_while_the_database_answers_or_is_away_and_not_when_it_refuses(
    beats: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _clusters(monkeypatch, OperationalError("cut"), InterfaceError("x"), DataError("no such column"), [HOME])
    seen_before: list[int] = []
    watch_cluster.watch_clusters([], Rounds(*[lambda: seen_before.append(len(beats))] * 4))
    assert seen_before == [1, 2, 2, 3], "a restart brings no database back, and may help a process that asks nonsense"


def test_it_shows_no_life_while_a_watcher_hangs(beats: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    _clusters(monkeypatch, [HOME])
    monkeypatch.setattr(Still, "idle", watch_cluster.STUCK_SECONDS + 1)
    watch_cluster.watch_clusters([], Rounds(lambda: None))
    assert beats == []


def test_it_shows_life_without_any_cluster_and_names_one_that_is_missing_once(
    beats: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _clusters(monkeypatch, [HOME])
    watch_cluster.watch_clusters(["typo"], Rounds(*[lambda: None] * 3))
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == ["there is no cluster typo yet"]
    assert len(beats) == 4


def test_it_watches_a_moved_cluster_anew_and_a_dead_watcher_again(
    monkeypatch: pytest.MonkeyPatch, beats: list[int]
) -> None:
    moved = Cluster(pk=HOME.pk, name="home", type="Local", address="/b")
    made: list[Still] = []

    class Counted(Still):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            made.append(self)

    monkeypatch.setattr(watch_cluster, "ClusterWatcher", Counted)
    _clusters(monkeypatch, [HOME], [HOME], [moved])

    def die() -> None:
        made[0].alive = False

    watch_cluster.watch_clusters([], Rounds(die, lambda: None, lambda: None))
    assert len(made) == 3, "one that died, one for the old address, one for the new"
    assert made[1].stopped and made[2].stopped
