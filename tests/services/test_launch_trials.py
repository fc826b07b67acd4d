"""Trials: what they provoke and in which order, what they say, and that nothing of them stays. The fleet is a real one
whose supervisor is played: tests/e2e/test_launch_classes.py has the processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from django.utils import timezone

from caches.domain.launches.words import TRIAL_NAME, TRIAL_NAMESPACE, EventClass, Mark
from caches.models import Launch, ModelVersion
from caches.models.launches import OF_TRIALS
from caches.selectors.trials import trial_name
from caches.services.launches import trial_fleet as launch_trial_fleet
from caches.services.launches import trials as launch_trials
from caches.services.launches.trials import (
    cluster_for_trials,
    trial_start,
    trial_step,
    trials_sweep,
)
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.clusters.gateway import Kind
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.scaling import kill_wanted
from controlplane.clusters.local.serving import endpoint_serve, endpoints_all, engine_key, engine_put, engines_all
from controlplane.clusters.models import Cluster, Node
from controlplane.errors import Clash, Invalid, Permanent, Transient
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel, operation_fail, operation_run
from tests import factories
from tests.domain.launches import mark
from tests.services.launches import settle, sighting, take_in

pytestmark = pytest.mark.django_db
ADA = Actor(name="ada", via=Via.API)
SECONDS = {EventClass.WARM_RESTART: 2.0, EventClass.COLD_POD: 4.0, EventClass.NEW_NODE: 30.0}


class Lab:
    """A local fleet of two nodes, an available version, and a supervisor that is played step by step."""

    def __init__(self, folder: Path) -> None:
        self.fleet = LocalFleet(folder / "fleet")
        self.fleet.create(nodes=2)
        self.cluster: Cluster = factories.cluster(name="local", address=str(self.fleet.folder))
        self.version: ModelVersion = factories.of_files(factories.version(model="ember", version="v1"), "ember.gguf")
        self.placed: list[str] = []
        self.labelled: dict[UUID, dict[str, str]] = {}

    def start(self, runs: int = 2, seed: int = 3, target: float = 10.0) -> Operation:
        operation = trial_start(
            actor=ADA, cluster=self.cluster, version=self.version, runs=runs, seed=seed, target_seconds=target
        )
        operation_run(operation_id=operation.pk)
        return operation

    def play(self) -> None:
        """What the supervisor would do: engines that are too many go, killed ones restart, the others become ready."""
        with self.fleet.store.read() as session:
            wanted = {one.name: one.replicas for one in endpoints_all(session)}
            engines = list(engines_all(session).values())
        for engine in engines:
            name = engine.labels["hearth.dev/endpoint"]
            if not wanted.get(name):
                with self.fleet.store.write() as session:
                    session.delete(Kind.CONSUMER, engine_key(engine))
                continue
            (self.fleet.folder / "engines" / engine.uid).mkdir(parents=True, exist_ok=True)
            if kill_wanted(self.fleet, engine.uid):
                engine = replace(engine, restart_count=engine.restart_count + 1, ready=False)
            if not engine.ready:
                self._ready(engine.uid, engine.restart_count, engine.node_name, f"{TRIAL_NAMESPACE}/{name}")
                with self.fleet.store.write() as session:
                    engine_put(session, replace(engine, ready=True))

    def _ready(self, uid: str, restart: int, node: str, endpoint: str) -> None:
        new = node not in self.placed
        kind = EventClass.WARM_RESTART if restart else EventClass.NEW_NODE if new else EventClass.COLD_POD
        self.placed.append(node)
        began = mark(Mark.RESTARTED, 0) if restart else mark(Mark.CREATED, 0)
        seen = [began, mark(Mark.SCHEDULED, 0.5), mark(Mark.ENSURE_STARTED, 0.6)]
        seen.append(mark(Mark.ENSURE_ENDED, 0.7, found="miss" if new and not restart else "hit"))
        seen.append(mark(Mark.READY, SECONDS[kind]))
        (launch,) = take_in(sighting(self.cluster, uid, *seen, restart=restart))
        self.labelled[launch.pk] = {"event_class": kind, "endpoint_name": endpoint}
        for key, labels in self.labelled.items():  # a restart has the run before it assembled again: it has ended
            Launch.objects.filter(pk=key).update(**labels)

    def run(self, operation: Operation, most: int = 200) -> Operation:
        for _ in range(most):
            self.step(operation)
            self.play()
            settle()
            operation.refresh_from_db()
            if operation.ended_at is not None:
                return operation
        raise AssertionError(operation.params)

    def step(self, operation: Operation) -> None:
        while not trial_step(operation_id=operation.pk):
            pass

    @property
    def left(self) -> list[str]:
        with self.fleet.store.read() as session:
            names = [one.name for one in endpoints_all(session)]
        return names + [row.node.name for row in self.fleet.nodes() if row.node.name not in ("a-1", "b-1")]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(tmp_path)
    monkeypatch.setattr(launch_trials, "launch_key", _key)
    yield made


def _key(cluster: Cluster, uid: str, restart: int) -> UUID:
    """The launches of the tests' sightings have another container."""
    return sighting(cluster, uid, restart=restart).id


def test_it_provokes_each_kind_in_random_order_and_says_what_they_took(lab: Lab) -> None:
    operation = lab.start(runs=3, seed=5)
    done = lab.run(operation)
    assert (done.state, done.message) == ("Succeeded", "Every launch was measured.")
    result = done.result
    assert result is not None
    assert sorted(result["order"]) == sorted([kind.value for kind in SECONDS] * 3)
    assert [one["wanted"] for one in result["launches"]] == result["order"]
    for kind in result["kinds"]:
        seconds = SECONDS[EventClass(kind["event_class"])]
        assert (kind["runs"], kind["labelled_so"], kind["seconds"]) == (3, 3, [seconds] * 3)
        assert (kind["median_seconds"], kind["p95_seconds"]) == (seconds, None), "three are no percentile"
        assert kind["within_target"] == (3 if seconds <= 10 else 0)
        assert kind["hits"] == (0 if kind["event_class"] == "PodOnNewNode" else 3)
    new = next(kind for kind in result["kinds"] if kind["event_class"] == "PodOnNewNode")
    assert new["idle_seconds"] == pytest.approx(3 * 29.5), "no accelerator is taken while it waits for its node"
    assert {"host", "cores", "load", "load_after", "engine", "other_engines"} <= set(result["conditions"])
    assert lab.version.artifact is not None
    told = (result["seed"], result["target_seconds"], result["model_bytes"])
    assert told == (5, 10.0, lab.version.artifact.size_bytes)
    (beside,) = result["not_measured"]
    assert (beside["event_class"], beside["weights"], beside["ready_seconds"]) == ("PodOnNewNode", "Miss", 30.0)
    listed = {str(key) for key in Launch.objects.filter(OF_TRIALS).values_list("pk", flat=True)}
    assert listed == {beside["id"], *(one["id"] for one in result["launches"])}, "the list of launches has no other"
    assert lab.left == [], "nothing of it stays"
    event = AuditEvent.objects.get(action="trial.start")
    assert event.after["seed"] == 5 and event.message == "A trial of ember v1."  # type: ignore[index]


def test_the_same_seed_gives_the_same_order_and_another_seed_another(lab: Lab) -> None:
    orders = []
    for seed in (1, 1, 2):
        operation = lab.start(runs=5, seed=seed)
        orders.append(operation.params["order"])
        operation_fail(operation_id=operation.pk, error=Permanent("x:y:z", "Over."))
    assert orders[0] == orders[1] != orders[2]


def test_a_step_that_comes_twice_changes_nothing(lab: Lab) -> None:
    """A killed worker's step is repeated by another one, before or after the fleet did anything."""
    operation = lab.start(runs=2)
    for _ in range(200):
        lab.step(operation)
        lab.step(operation)
        lab.play()
        lab.play()
        settle()
        operation.refresh_from_db()
        if operation.ended_at is not None:
            break
    assert operation.state == "Succeeded" and operation.result is not None
    assert [one["labelled_so"] for one in operation.result["kinds"]] == [2, 2, 2]


def test_what_was_done_and_not_written_down_is_done_afresh(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after every act: params stay as they were before the step, and the node of one launch is never reused."""
    operation = lab.start(runs=1, seed=2)
    killed = 0
    for turn in range(300):
        if turn % 3 == 0 and killed < 12:
            killed += 1
            with monkeypatch.context() as broken:
                broken.setattr(launch_trials._Trial, "_expect", lambda *args, **kwargs: (_ for _ in ()).throw(OSError))
                with contextlib.suppress(OSError):
                    trial_step(operation_id=operation.pk)
        else:
            lab.step(operation)
        lab.play()
        settle()
        operation.refresh_from_db()
        if operation.ended_at is not None:
            break
    assert operation.state == "Succeeded" and operation.result is not None
    assert [one["labelled_so"] for one in operation.result["kinds"]] == [1, 1, 1]
    assert lab.left == []


def test_cancelling_takes_everything_away(lab: Lab) -> None:
    operation = lab.start()
    for _ in range(4):
        lab.step(operation)
        lab.play()
    assert lab.left != []
    operation_cancel(actor=ADA, operation_id=operation.pk)
    assert trial_step(operation_id=operation.pk) is True
    operation.refresh_from_db()
    assert (operation.state, lab.left) == ("Canceled", [])


def test_a_sweep_takes_away_what_nobody_drives_and_nothing_else(lab: Lab) -> None:
    for name in ("chat", "trial-chat", "trial-0", "trial-0123456", "trial-01234567-b"):
        endpoint_serve(lab.fleet.store, name, "sha256:" + "a" * 64)
    lab.fleet.add("trial-chat-1", pool="a", capacity_bytes=2**26)
    theirs = {*lab.left}
    dead = lab.start()
    for _ in range(4):
        lab.step(dead)
        lab.play()
    operation_fail(operation_id=dead.pk, error=Permanent("x:y:z", "Over."))
    alive = lab.start()
    lab.step(alive)
    assert trials_sweep() == 1
    assert theirs <= {*lab.left}, "what somebody else calls so is his"
    assert {name.removesuffix("-1") for name in {*lab.left} - theirs} == {trial_name(alive.pk)}
    assert trials_sweep() == 0


def test_a_launch_that_never_gets_ready_ends_the_trial_and_leaves_nothing(lab: Lab) -> None:
    operation = lab.start()
    lab.step(operation)
    expects = operation.__class__.objects.get(pk=operation.pk).params
    expects["_expects"]["since"] = (timezone.now() - timedelta(hours=1)).isoformat()
    Operation.objects.filter(pk=operation.pk).update(params=expects)
    with pytest.raises(Permanent, match="not ready after 10 minutes"):
        trial_step(operation_id=operation.pk)
    assert lab.left == []


def test_an_engine_that_somebody_takes_away_is_provoked_again(lab: Lab) -> None:
    operation = lab.start(runs=1)
    lab.step(operation)
    with lab.fleet.store.write() as session:
        for engine in engines_all(session).values():
            session.delete(Kind.CONSUMER, engine_key(engine))
    assert lab.run(operation).state == "Succeeded"


def test_a_fleet_that_is_away_is_waited_for(lab: Lab) -> None:
    operation = lab.start()
    Cluster.objects.filter(pk=lab.cluster.pk).update(address=str(lab.fleet.folder) + "-gone")
    with pytest.raises(Transient):
        trial_step(operation_id=operation.pk)
    assert trials_sweep() == 0


def test_one_trial_at_a_time(lab: Lab) -> None:
    first = lab.start()
    with pytest.raises(Clash, match=str(first.pk)):
        lab.start()
    assert Operation.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"runs": 0}, "runs"),
        ({"runs": 21}, "runs"),
        ({"target": 0.0}, "target_seconds"),
        ({"target": 1e9}, "target_se"),
    ],
)
def test_what_cannot_be_tried_is_refused(lab: Lab, changes: dict[str, float], field: str) -> None:
    with pytest.raises(Invalid, match=field):
        lab.start(**changes)  # type: ignore[arg-type]
    assert Operation.objects.count() == 0


def test_what_is_no_local_fleet_or_has_no_files_is_refused(lab: Lab) -> None:
    with pytest.raises(Invalid, match="is not available"):
        lab.version.artifact = None
        lab.start()
    assert cluster_for_trials() == cluster_for_trials("local") == lab.cluster
    with pytest.raises(Invalid, match="no local fleet nope"):
        cluster_for_trials("nope")
    Cluster.objects.filter(pk=lab.cluster.pk).update(type="Kubernetes")
    lab.cluster.refresh_from_db()
    with pytest.raises(Invalid, match="is no local fleet"):
        lab.start()
    with pytest.raises(Invalid, match="no local fleets"):
        cluster_for_trials()


@pytest.mark.parametrize(
    "files",
    [
        ("config.json", "model.safetensors"),
        ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"),
        ("gguf/a.gguf",),
        ("a.GGUF",),
        (),
    ],
)
def test_what_no_engine_of_the_fleet_can_serve_is_refused_before_anything_starts(
    lab: Lab, files: tuple[str, ...]
) -> None:
    served = lab.version
    lab.version = factories.of_files(factories.version(model="big", version="v2"), *files)
    with pytest.raises(Invalid, match="big v2 cannot be served") as refused:
        lab.start()
    assert refused.value.code == "trial:user:not-servable" and refused.value.errors[0].field == "version"
    assert refused.value.next_step == "Name one that can be: ember v1."
    factories.of_files(served, "model.safetensors")
    with pytest.raises(Invalid, match="cannot be served") as refused:
        lab.start()
    assert refused.value.next_step == "Register a model that is a single GGUF file first."
    assert Operation.objects.count() == 0 and lab.left == [] and not AuditEvent.objects.filter(action="trial.start")


def test_its_nodes_are_in_no_pool_of_hearths(lab: Lab) -> None:
    operation = lab.start()
    lab.step(operation)
    (node,) = [row.node for row in lab.fleet.nodes() if row.node.name.startswith(TRIAL_NAME)]
    assert node.labels["hearth.dev/pool"] == launch_trial_fleet.POOL
    assert not Node.objects.filter(name=node.name).exists()
