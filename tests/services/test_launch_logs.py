"""A launch's log is read once, bounded, and what cannot be had leaves its phases unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.launches.log_lines import MOST_BYTES
from caches.domain.launches.words import Mark
from caches.models import Launch, LaunchLog, LaunchObservation
from caches.services.launches import logs as logs_module
from caches.services.launches.logs import SILENT_SECONDS, launch_logs_read
from controlplane.clusters.gateway import (
    GatewayError,
    NodeUnreachable,
    NotApplicable,
    NotFound,
    Refused,
    Throttled,
    Unreachable,
)
from controlplane.clusters.models import Cluster, Node
from controlplane.clusters.registry import override_gateway
from tests import factories
from tests.domain.launches import mark
from tests.services.launches import ready_pod, settle, sighting, take_in

pytestmark = pytest.mark.django_db


@dataclass
class Logs:
    """A gateway as far as logs go. ``error`` is raised while it is set; kubelets of ``silent`` pods say nothing."""

    said: bytes = b""
    error: GatewayError | None = None
    silent: frozenset[str] = frozenset()
    asked: list[dict[str, Any]] = field(default_factory=list)

    def logs(self, consumer_uid: str, max_bytes: int, **which: Any) -> bytes:
        self.asked.append({"uid": consumer_uid, "max_bytes": max_bytes, **which})
        if self.error is not None:
            raise self.error
        if consumer_uid in self.silent:
            raise NodeUnreachable("dial tcp: i/o timeout")
        return self.said[:max_bytes]


@pytest.fixture
def cluster() -> Cluster:
    return factories.cluster()


@pytest.fixture
def logs(cluster: Cluster) -> Iterator[Logs]:
    made = Logs()
    override_gateway(cluster.pk, made)  # type: ignore[arg-type]  # as far as it is asked
    yield made
    override_gateway(cluster.pk, None)


@pytest.fixture
def began() -> datetime:
    return timezone.now().replace(microsecond=0) - timedelta(minutes=5)


@pytest.fixture
def due(cluster: Cluster, began: datetime) -> Callable[..., Launch]:
    """A launch that has just become ready 60 s after it began, its container started after 30; each a second later."""
    later = count()

    def make(uid: str = "p-1", of: Cluster | None = None) -> Launch:
        seen = [mark(Mark.CREATED, 0, pod=f"default/{uid}"), mark(Mark.STARTED, 30), mark(Mark.READY, 60)]
        [made] = take_in(sighting(of or cluster, uid, *seen, at=began + timedelta(seconds=next(later))))
        LaunchLog.objects.create(launch=made, state="Due")
        return made

    return make


def vllm(began: datetime) -> bytes:
    lines = (
        (33, "INFO 03-31 00:30:33 [api_server.py:1] vLLM API server version 0.8.5"),
        (40, "INFO 03-31 00:30:40 [gpu_model_runner.py:1] Starting to load model /opt/ml/model..."),
        (52, "INFO 03-31 00:30:52 [loader.py:1] Loading weights took 11.50 seconds"),
        (57, "INFO:     Application startup complete."),
        (58, "INFO:     10.0.0.1 - POST /v1/completions the eagle lands at midnight"),
    )
    stamped = (f"{(began + timedelta(seconds=at)).isoformat().replace('+00:00', 'Z')} {text}" for at, text in lines)
    return "\n".join(stamped).encode()


def test_a_log_gives_the_phases_inside_the_container(logs: Logs, due: Callable[..., Launch], began: datetime) -> None:
    launch = due()
    logs.said = vllm(began)
    assert launch_logs_read() == 1
    settle()
    launch.refresh_from_db()
    assert launch.phase_seconds[3:6] == [27 - 11.5, 11.5, 3], "initialised, loaded, checked"
    assert logs.asked == [
        {"uid": "p-1", "max_bytes": MOST_BYTES, "name": "default/p-1", "container": "engine", "restart_count": 0}
    ]
    assert not LaunchObservation.objects.filter(facts__icontains="eagle").exists(), "nothing of a log is kept"


def test_a_log_is_read_once(logs: Logs, due: Callable[..., Launch]) -> None:
    due()
    assert (launch_logs_read(), launch_logs_read(), len(logs.asked)) == (1, 0, 1)
    assert LaunchLog.objects.get().state == "Read"


@pytest.mark.parametrize("said", [b"", b"\x00\xff" * 99, b"hello\nworld", b"INFO ready"])
def test_an_unknown_log_leaves_its_phases_unknown(logs: Logs, due: Callable[..., Launch], said: bytes) -> None:
    launch = due()
    logs.said = said
    launch_logs_read()
    settle()
    launch.refresh_from_db()
    assert (launch.phase_seconds[3:5], launch.ready_seconds) == ([None, None], 60)
    assert LaunchLog.objects.get().state == "Read"


@pytest.mark.parametrize("error", [NotFound("gone"), Refused("no right to pods/log"), NotApplicable("no logs")])
def test_what_cannot_be_had_is_not_asked_for_again(logs: Logs, due: Callable[..., Launch], error: GatewayError) -> None:
    due()
    logs.error = error
    assert (launch_logs_read(), launch_logs_read(), len(logs.asked)) == (1, 0, 1)


@pytest.mark.parametrize("error", [Unreachable("no answer"), Throttled("slowly", 5.0)])
def test_a_cluster_that_does_not_answer_is_asked_once_a_round_and_keeps_no_other_waiting(
    logs: Logs, due: Callable[..., Launch], error: GatewayError
) -> None:
    other, there = factories.cluster(), Logs()
    override_gateway(other.pk, there)  # type: ignore[arg-type]  # as far as it is asked
    try:
        for number in range(3):
            due(f"p-{number}")
        due("elsewhere", other)
        logs.error = error
        assert launch_logs_read() == 1 and len(logs.asked) == 1 and len(there.asked) == 1
        logs.error = None
        assert launch_logs_read() == 3
    finally:
        override_gateway(other.pk, None)


def test_however_much_waits_at_a_silent_cluster_the_others_are_read(logs: Logs, due: Callable[..., Launch]) -> None:
    """More than a round reads, and older than all the rest."""
    other, there = factories.cluster(), Logs()
    override_gateway(other.pk, there)  # type: ignore[arg-type]  # as far as it is asked
    try:
        for number in range(5):
            due(f"p-{number}")
        for number in range(3):
            due(f"elsewhere-{number}", other)
        logs.error = Unreachable("no answer")
        assert launch_logs_read(limit=2) == 2 and len(there.asked) == 2 and len(logs.asked) == 1
        assert launch_logs_read(limit=2) == 1 and len(logs.asked) == 2, "and the silent one is asked once a round"
        assert launch_logs_read(limit=2) == 0
    finally:
        override_gateway(other.pk, None)


def placed(launch: Launch, node: Node | str) -> None:
    row, name = (None, node) if isinstance(node, str) else (node, node.name)
    Launch.objects.filter(pk=launch.pk).update(node=row, node_name=name)


def test_a_silent_node_keeps_only_its_own_waiting(
    logs: Logs, due: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(logs_module, "monotonic", lambda: now[0])
    for number, node in enumerate(["away", "away", "there", "away", "there"]):
        placed(due(f"p-{number}"), node)
    logs.silent = frozenset({"p-0", "p-1", "p-3"})
    assert launch_logs_read(limit=2) == 2
    assert [one["uid"] for one in logs.asked] == ["p-0", "p-2", "p-4"], "a silent one is asked once a round"
    assert launch_logs_read() == 0 and len(logs.asked) == 3, "and not in each"
    logs.silent, now[0] = frozenset(), now[0] + SILENT_SECONDS
    assert launch_logs_read() == 3, "and read when it is back"


def test_many_silent_nodes_keep_neither_their_cluster_nor_another_waiting_for_long(
    logs: Logs, due: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes seconds to say nothing: a few are asked in a round, and others in the next."""
    monkeypatch.setattr(logs_module, "monotonic", lambda: 100.0)
    for number in range(5):
        placed(due(f"p-{number}"), f"away-{number}")
    placed(due("p-5"), "there")
    other, there = factories.cluster(), Logs()
    override_gateway(other.pk, there)  # type: ignore[arg-type]  # as far as it is asked
    try:
        placed(due("elsewhere", other), "there")
        logs.silent = frozenset(f"p-{number}" for number in range(5))
        assert launch_logs_read() == 1 and len(there.asked) == 1, "the other cluster's"
        assert [one["uid"] for one in logs.asked] == ["p-0", "p-1"]
        assert (launch_logs_read(), launch_logs_read()) == (0, 1)
        assert [one["uid"] for one in logs.asked][2:] == ["p-2", "p-3", "p-4", "p-5"], "its own turn came"
    finally:
        override_gateway(other.pk, None)


def test_one_whose_node_nobody_knows_keeps_nobody_waiting(logs: Logs, due: Callable[..., Launch]) -> None:
    due("p-0")
    due("p-1")
    logs.silent = frozenset({"p-0"})
    assert launch_logs_read() == 1 and [one["uid"] for one in logs.asked] == ["p-0", "p-1"]


def test_what_is_on_a_node_that_is_not_ready_is_asked_for_last(logs: Logs, due: Callable[..., Launch]) -> None:
    pool = factories.pool()
    placed(due("p-0"), factories.node(of=pool, ready=False))
    placed(due("p-1"), "nobody-knows-it")
    placed(due("p-2"), factories.node(of=pool))
    assert launch_logs_read() == 3
    assert logs.asked[0]["uid"] == "p-2"


def test_many_are_read_in_several_rounds_the_oldest_first(logs: Logs, due: Callable[..., Launch]) -> None:
    for number in range(3):
        due(f"p-{number}")
    assert (launch_logs_read(limit=2), launch_logs_read(limit=2), launch_logs_read(limit=2)) == (2, 1, 0)


def test_a_launch_that_was_not_assembled_yet_waits(logs: Logs, cluster: Cluster, began: datetime) -> None:
    """Until then nobody knows the name of its pod."""
    [launch] = take_in(ready_pod(cluster, "p-1", 20, at=began))
    LaunchLog.objects.create(launch=launch, state="Due")
    Launch.objects.update(pod_name="")
    assert launch_logs_read() == 0 and logs.asked == []
