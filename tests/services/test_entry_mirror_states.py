"""Statuses as they really come: late, twice, out of order, of other incarnations, with odd content, from restarts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caches.models import (
    Artifact,
    CacheEntry,
    DriftState,
    EntryChange,
    ModelVersion,
    NodeProjection,
    PoolLoop,
    Transfer,
    Webhook,
    WebhookDelivery,
)
from caches.services.entry_mirror import entries_close_lost, statuses_mirror
from controlplane.clusters.documents import CapacityStatus, EntryState, EntryStatus, NodeCacheSpec, NodeCacheStatus
from controlplane.clusters.gateway import ObservedNodeCache
from controlplane.clusters.models import Node
from controlplane.operations.models import Operation
from tests import factories
from tests.factories import MIB

pytestmark = pytest.mark.django_db
START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def node() -> Node:
    return factories.node(reported_at=None)


@pytest.fixture
def artifact() -> Artifact:
    return factories.version(artifact=factories.artifact()).artifact  # type: ignore[return-value]


def told(node: Node, *entries: EntryStatus, at: float = 0, generation: int = 1, uid: str = "") -> ObservedNodeCache:
    """What the cluster holds of this node after its agent's report of ``at`` seconds."""
    uid = uid or node.uid
    status = NodeCacheStatus(
        node_name=node.name,
        node_uid=uid,
        observed_generation=generation,
        reported_at=START + timedelta(seconds=at),
        capacity=CapacityStatus(1000 * MIB, 0, 0, 0),
        entries=entries,
    )
    return ObservedNodeCache(node.name, uid, generation, NodeCacheSpec(node.name, uid, ""), status)


def hear(node: Node, *entries: EntryStatus, **given: Any) -> int:
    """As the watcher does it: the node's row first, then its entries."""
    cache = told(node, *entries, **given)
    assert cache.status is not None
    Node.objects.filter(pk=node.pk, reported_at=None).update(reported_at=cache.status.reported_at)
    Node.objects.filter(pk=node.pk, reported_at__lt=cache.status.reported_at).update(
        reported_at=cache.status.reported_at
    )
    return statuses_mirror(cluster_id=node.cluster_id, caches=[cache])


def line(artifact: Artifact, state: EntryState, **fields: Any) -> EntryStatus:
    whole: dict[str, Any] = {"bytes_done": 100 * MIB, "started_at": START, "ready_at": START + timedelta(seconds=10)}
    return EntryStatus(artifact.digest, state, **((whole if state is EntryState.READY else {}) | fields))


def stored(artifact: Artifact) -> CacheEntry:
    return CacheEntry.objects.get(artifact=artifact)


def changes() -> list[tuple[str, str]]:
    return list(EntryChange.objects.order_by("at", "id").values_list("old_state", "new_state"))


@pytest.mark.parametrize("state", [s for s in EntryState if s not in (EntryState.ABSENT, EntryState.LOST)])
def test_a_copy_that_no_row_knows_gets_one_in_whatever_state(node: Node, artifact: Artifact, state: EntryState) -> None:
    """As after a restored or fresh database: what is on the disks is learnt from the nodes."""
    assert hear(node, line(artifact, state)) == 1
    entry = stored(artifact)
    assert (entry.state, entry.desired, entry.evict_requested_at) == (state, "", None)
    assert changes() == [("Absent", state.value)]
    assert PoolLoop.objects.get(pool=node.pool).wanted_round > 0


@pytest.mark.parametrize("old", list(EntryState))
@pytest.mark.parametrize("new", [EntryState.DOWNLOADING, EntryState.READY, EntryState.FAILED])
def test_whatever_is_reported_is_what_is_stored(
    node: Node, artifact: Artifact, old: EntryState, new: EntryState
) -> None:
    factories.entry(on=node, of=artifact, state=old)
    hear(node, line(artifact, new))
    assert stored(artifact).state == new
    assert changes() == ([] if old is new else [(old.value, new.value)])


def test_reports_out_of_order_leave_the_youngest(node: Node, artifact: Artifact) -> None:
    hear(node, line(artifact, EntryState.READY), at=60)
    assert hear(node, line(artifact, EntryState.DOWNLOADING), at=30) == 0
    assert hear(node, at=59) == 0  # and an old one without the entry
    assert stored(artifact).state == "Ready" and changes() == [("Absent", "Ready")]
    hear(node, line(artifact, EntryState.REPAIRING), at=61)
    assert stored(artifact).state == "Repairing"


def test_a_batch_with_one_bad_node_serves_the_others(node: Node, artifact: Artifact) -> None:
    good = factories.node(of=node.pool, reported_at=None)
    forged = replace(told(node, line(artifact, EntryState.READY)), node_uid="another")
    silent = replace(told(node), node_uid="silent", status=None)
    stranger = told(factories.node(), line(artifact, EntryState.READY))  # of another cluster
    fine = told(good, line(artifact, EntryState.READY))
    assert statuses_mirror(cluster_id=node.cluster_id, caches=[forged, silent, stranger, fine]) == 1
    assert [entry.node for entry in CacheEntry.objects.all()] == [good]


def test_the_dead_are_not_heard(node: Node, artifact: Artifact) -> None:
    factories.entry(on=node, of=artifact, state=EntryState.LOST, desired="")
    Node.objects.update(lost_at=START)
    assert hear(node, line(artifact, EntryState.READY), at=60) == 0
    assert stored(artifact).state == "Lost"


def test_a_successor_under_the_same_name_begins_without_anything(node: Node, artifact: Artifact) -> None:
    hear(node, line(artifact, EntryState.READY))
    Node.objects.update(lost_at=START)
    heir = factories.node(of=node.pool, name=node.name, reported_at=None)
    assert hear(heir) == 1
    assert entries_close_lost() == 1 and entries_close_lost() == 0
    assert [(e.node.pk, e.state) for e in CacheEntry.objects.all()] == [(node.pk, "Lost")]


def test_an_unknown_digest_is_passed_over_and_known_once_it_is_registered(node: Node) -> None:
    digest = "sha256:" + "ab" * 32
    known = factories.artifact()
    hear(node, EntryStatus(digest, EntryState.READY), line(known, EntryState.READY))
    assert [entry.artifact for entry in CacheEntry.objects.all()] == [known]
    late = factories.artifact(digest=digest)
    hear(node, line(late, EntryState.READY), line(known, EntryState.READY), at=1)
    assert stored(late).state == "Ready"


@pytest.mark.parametrize(
    ("generation", "applied", "absent"),
    [
        (5, 5, True),
        (6, 5, True),
        (0, 5, False),  # just started
        (4, 5, False),  # reads an old spec
        (2, 2, True),  # the NodeCache was deleted and made again: it counts anew
        (1, 2, False),  # the same, and the new spec is not read yet
        (2, None, False),  # nobody has applied anything since
        (1, 0, False),  # being applied right now
    ],
)
def test_what_is_not_mentioned_is_absent_only_for_an_agent_that_read_its_spec(
    node: Node, artifact: Artifact, generation: int, applied: int | None, absent: bool
) -> None:
    factories.entry(on=node, of=artifact, observed_generation=5)
    if applied is not None:
        NodeProjection.objects.create(node=node, spec_hash="", generation=applied, applied_at=START)
    hear(node, generation=generation)
    assert stored(artifact).state == ("Absent" if absent else "Ready")


def test_what_became_absent_forgets_its_bytes_and_what_was_asked_of_it(node: Node, artifact: Artifact) -> None:
    factories.entry(
        on=node, of=artifact, evict_requested_at=START, retry_at=START, damaged=["a"], verify_round=4, retry_round=2
    )
    hear(node)
    entry = stored(artifact)
    assert (entry.bytes_done, entry.ready_at, entry.verified_at, entry.retry_at) == (0, None, None, None)
    assert (entry.evict_requested_at, entry.damaged, entry.message) == (None, [], "")
    assert (entry.verify_round, entry.retry_round) == (4, 2)  # never counted backwards: agents compare
    assert entry.state_since == START
    hear(node, at=1)
    assert stored(artifact).state_since == START and len(changes()) == 1


def test_a_request_made_meanwhile_is_not_overwritten(
    node: Node, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.entry(on=node, of=artifact, state=EntryState.VERIFYING)
    real = CacheEntry.objects.bulk_create

    def asked_meanwhile(*args: Any, **given: Any) -> Any:
        CacheEntry.objects.update(evict_requested_at=START, verify_round=9, hold_reason="Retention", desired="Evict")
        return real(*args, **given)

    monkeypatch.setattr(CacheEntry.objects, "bulk_create", asked_meanwhile)
    hear(node, line(artifact, EntryState.READY))
    entry = stored(artifact)
    assert (entry.state, entry.evict_requested_at, entry.verify_round) == ("Ready", START, 9)
    assert (entry.hold_reason, entry.desired) == ("Retention", "Evict")


@pytest.mark.parametrize(("reason", "kept"), [("AccessDenied", "AccessDenied"), ("SomethingNew", "Internal"), ("", "")])
def test_reasons_of_other_agents_stay_within_the_closed_set(
    node: Node, artifact: Artifact, reason: str, kept: str
) -> None:
    hear(node, line(artifact, EntryState.FAILED, reason=reason))
    assert stored(artifact).reason == kept


@pytest.mark.parametrize("message", ["x" * 5000, "cannot open a\0b", "größe ✓ 大"])
def test_a_strange_message_never_stops_the_mirror(node: Node, artifact: Artifact, message: str) -> None:
    assert hear(node, line(artifact, EntryState.FAILED, reason="Internal", message=message)) == 1
    assert stored(artifact).message == message.replace("\0", "\ufffd")[:1000]
    assert EntryChange.objects.get().message == stored(artifact).message
    before = stored(artifact).updated_at
    hear(node, line(artifact, EntryState.FAILED, reason="Internal", message=message), at=1)
    assert stored(artifact).updated_at == before  # it is no news


def test_a_failure_is_announced_once_for_each_beginning(node: Node, artifact: Artifact) -> None:
    Webhook.objects.create(name="pager", url="http://127.0.0.1:9/", secret_name="pager")
    failed = line(artifact, EntryState.FAILED, reason="SourceUnavailable", message="gone", started_at=START, attempts=3)
    running = line(artifact, EntryState.DOWNLOADING, started_at=START)
    for at, status in enumerate((failed, running, failed, running)):
        hear(node, status, at=at)
    assert WebhookDelivery.objects.count() == 1  # the same attempt, again and again
    hear(node, replace(failed, started_at=START + timedelta(hours=1)), at=9)
    hear(node, replace(failed, started_at=START + timedelta(hours=1), reason="AccessDenied"), at=10)
    first, second = WebhookDelivery.objects.order_by("id")
    assert (first.payload["node"], first.payload["digest"]) == (node.name, artifact.digest)
    assert (first.payload["reason"], first.payload["attempts"], first.payload["retry_at"]) == (
        "SourceUnavailable", 3, None
    )  # fmt: skip
    assert second.payload["reason"] == "SourceUnavailable"  # a reason that changes is no new failure


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        ([100], [100]),
        ([100, 250], [100, 150]),
        ([100, 40], [100, 40]),  # the agent lost its journal and counts anew
        ([100, 100], [100]),  # the same copy, found again
        ([0], []),
    ],
)
def test_transfers_count_every_byte_once(node: Node, artifact: Artifact, moved: list[int], expected: list[int]) -> None:
    for number, total in enumerate(moved):
        hear(node, at=number * 2)
        hear(node, line(artifact, EntryState.READY, bytes_moved=total), at=number * 2 + 1)
    rows = Transfer.objects.order_by("id")
    assert [row.bytes_moved for row in rows] == expected and {row.seconds for row in rows} <= {10.0}


def test_a_transfer_without_a_duration_is_no_division_by_zero(node: Node, artifact: Artifact) -> None:
    hear(node, line(artifact, EntryState.READY, bytes_moved=5, ready_at=START))
    assert Transfer.objects.get().seconds > 0
    other = factories.version().artifact
    hear(node, line(other, EntryState.READY, bytes_moved=5, started_at=None, ready_at=None), at=1)  # type: ignore[arg-type]
    assert Transfer.objects.count() == 1  # nothing was measured


def test_a_repair_is_no_measure_of_a_download(node: Node, artifact: Artifact) -> None:
    hear(node, line(artifact, EntryState.READY, bytes_moved=100))
    hear(node, line(artifact, EntryState.REPAIRING, bytes_moved=100), at=1)
    hear(node, line(artifact, EntryState.READY, bytes_moved=130), at=2)
    assert [row.bytes_moved for row in Transfer.objects.all()] == [100]
    assert stored(artifact).bytes_recorded == 130


def test_a_failed_batch_writes_nothing_at_all(node: Node, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle: the same batch comes again with the next list."""
    factories.entry(on=node, of=artifact, state=EntryState.DOWNLOADING)

    def killed(*args: Any, **given: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Transfer.objects, "bulk_create", killed)
        with pytest.raises(KeyboardInterrupt):
            hear(node, line(artifact, EntryState.READY, bytes_moved=9))
    assert stored(artifact).state == "Downloading" and changes() == []
    hear(node, line(artifact, EntryState.READY, bytes_moved=9))
    assert stored(artifact).state == "Ready" and Transfer.objects.count() == 1


def rechecks() -> list[str]:
    return [f"{op.started_by} {op.subject_name}" for op in Operation.objects.filter(kind="ModelRecheck").order_by("pk")]


def test_a_node_that_finds_its_source_changed_has_the_versions_compared_at_once(node: Node) -> None:
    artifact = factories.artifact()
    one, _, known = (factories.version(model="m", version=v, artifact=artifact) for v in ("1", "2", "3"))
    ModelVersion.objects.filter(pk=one.pk).update(drift=DriftState.MATCHES)
    ModelVersion.objects.filter(pk=known.pk).update(drift=DriftState.DRIFTED)  # nothing new to learn of this one
    changed = line(artifact, EntryState.FAILED, reason="SourceChanged", attempts=1)
    hear(node, line(artifact, EntryState.FAILED, reason="SourceUnavailable"), at=1)
    assert rechecks() == []
    hear(node, changed, at=2)  # the report between the two attempts was never seen
    assert sorted(rechecks()) == ["system m 1", "system m 2"]
    other = factories.node(reported_at=None, of=node.pool)
    hear(other, changed, at=3)  # the comparisons still run: one for each version is enough
    hear(other, replace(changed, attempts=2), at=4)
    assert len(rechecks()) == 2
    Operation.objects.update(state="Succeeded")
    hear(other, replace(changed, attempts=3), at=5)  # it failed before and fails still
    assert len(rechecks()) == 2
    hear(other, line(artifact, EntryState.DOWNLOADING), at=6)
    hear(other, changed, at=7)
    assert len(rechecks()) == 4
    assert Node.objects.get(pk=other.pk).reported_at == START + timedelta(seconds=7)
