"""Nodes, NodeCaches and events as an API server writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clusters import codec
from controlplane.clusters.documents import (
    Action,
    ArtifactKind,
    CapacityStatus,
    ConnectionSpec,
    DesiredEntry,
    EntryState,
    EntryStatus,
    Limits,
    NodeCacheSpec,
    NodeCacheStatus,
)
from controlplane.clusters.kubernetes import objects
from tests.contracts.observing import DIGEST, spec, status

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
BORN = "2026-11-29T09:00:00Z"


def node(*, conditions: Any = (), taints: Any = (), labels: Any = None, **fields: Any) -> dict[str, Any]:
    metadata = {"name": "n-1", "uid": "node-uid", "creationTimestamp": BORN, "labels": labels} | fields.pop("meta", {})
    return {
        "metadata": metadata,
        "spec": {"taints": list(taints), **fields},
        "status": {"conditions": list(conditions)},
    }


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], None),
        ([{"type": "DiskPressure", "status": "True"}], None),
        ([{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready"}], None),
        ([], None),
    ],
)
def test_it_calls_a_node_ready_only_when_the_cluster_does(conditions: Any, ready: bool | None) -> None:
    assert objects.observed_node(node(conditions=conditions), NOW).ready is ready


def test_it_reads_a_node() -> None:
    seen = objects.observed_node(node(labels={"a": "b"}, unschedulable=True), NOW)
    assert (seen.name, seen.uid, seen.labels, seen.schedulable) == ("n-1", "node-uid", {"a": "b"}, False)
    assert seen.created_at == datetime(2026, 11, 29, 9, tzinfo=UTC)
    bare = objects.observed_node({"metadata": {"name": "n", "uid": "u", "creationTimestamp": None}}, NOW)
    assert (bare.labels, bare.ready, bare.schedulable, bare.taints, bare.created_at) == ({}, None, True, (), NOW)


def test_it_leaves_out_taints_that_repeat_a_condition() -> None:
    taints = [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "hearth.dev/cold", "effect": "NoSchedule"},
        {"key": "gpu", "effect": "NoSchedule"},
        {"key": "gpu", "effect": "NoExecute"},
        {"effect": "NoSchedule"},
    ]
    assert objects.observed_node(node(taints=taints), NOW).taints == ("gpu", "hearth.dev/cold")


@pytest.mark.parametrize(
    ("taint", "at"),
    [
        (
            {"key": "aws-node-termination-handler/spot-itn", "timeAdded": "2026-11-29T11:58:00Z"},
            NOW - timedelta(minutes=2),
        ),
        ({"key": "karpenter.sh/disrupted"}, NOW),
        ({"key": "ToBeDeletedByClusterAutoscaler", "value": "1796212800"}, datetime.fromtimestamp(1796212800, UTC)),
        ({"key": "ToBeDeletedByClusterAutoscaler", "value": "soon"}, NOW),
        ({"key": "ToBeDeletedByClusterAutoscaler", "value": "9" * 30}, NOW),
        ({"key": "ToBeDeletedByClusterAutoscaler", "timeAdded": "odd"}, NOW),
        ({"key": "node.kubernetes.io/memory-pressure"}, None),
        ({"key": "gpu"}, None),
    ],
)
def test_it_hears_of_the_announced_end_of_a_node(taint: dict[str, str], at: datetime | None) -> None:
    assert objects.observed_node(node(taints=[taint]), NOW).terminating_at == at


def test_it_dates_an_end_by_its_first_notice() -> None:
    first, later = "2026-11-29T11:00:00Z", "2026-11-29T11:30:00Z"
    taints = [
        {"key": "karpenter.sh/disrupted", "timeAdded": later},
        {"key": "hearth.dev/terminating", "timeAdded": first},
    ]
    assert objects.observed_node(node(taints=taints), NOW).terminating_at == objects.time_of(first)
    deleted = node(meta={"deletionTimestamp": first})
    assert objects.observed_node(deleted, NOW).terminating_at == objects.time_of(first)


def test_it_sees_no_change_in_a_heartbeat() -> None:
    beat = node(conditions=[{"type": "Ready", "status": "True", "lastHeartbeatTime": "1"}])
    again = node(conditions=[{"type": "Ready", "status": "True", "lastHeartbeatTime": "2"}])
    notice = [{"key": "karpenter.sh/disrupted"}]
    one, two = objects.observed_node(beat, NOW), objects.observed_node(again, NOW + timedelta(seconds=9))
    assert objects.same_node(one, two)
    ending, still = (objects.observed_node(node(taints=notice), at) for at in (NOW, NOW + timedelta(seconds=9)))
    assert objects.same_node(ending, still)
    assert not objects.same_node(one, ending)
    assert not objects.same_node(one, replace(one, schedulable=False))


def test_it_applies_the_whole_spec_owned_by_the_node() -> None:
    wanted = spec("n-1", "node-uid", DIGEST)
    document = objects.node_cache_document(wanted)
    assert document["metadata"] == {
        "name": "n-1",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n-1", "uid": "node-uid"}],
    }
    stored = {**document, "metadata": {**document["metadata"], "generation": 7}}
    seen = objects.observed_node_cache(json.loads(json.dumps(stored)))
    assert (seen.generation, seen.node_uid, seen.spec, seen.status) == (7, "node-uid", wanted, None)


def test_it_reads_what_an_agent_made_before_hearth_said_anything() -> None:
    stored = objects.first_node_cache("n-1", "node-uid")
    assert objects.spec_of(stored) == NodeCacheSpec("n-1", "node-uid", "")
    assert stored["spec"].keys() == {"nodeName", "nodeUid"}, "a field more would be the agent's for ever"


def test_it_reads_a_status_with_more_in_it_than_it_knows() -> None:
    told = status("n-1", "node-uid")
    stored = objects.node_cache_document(spec("n-1", "node-uid"))
    stored["status"] = {**codec.encode(told), "summary": {"ready": 1}, "newer": [1]}
    stored["status"]["entries"][0]["newer"] = True
    assert objects.observed_node_cache(stored).status == told
    stored["status"] = {}
    assert objects.observed_node_cache(stored).status is None


@pytest.mark.parametrize("odd", [{"spec": {}}, {"spec": None}, {}, {"spec": {"nodeName": 1, "nodeUid": "u"}}])
def test_it_refuses_a_node_cache_that_is_none(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="NodeCacheSpec"):
        objects.observed_node_cache({"metadata": {"name": "n"}, **odd})


@pytest.mark.parametrize(
    ("times", "at"),
    [
        ({"eventTime": BORN, "lastTimestamp": "2026-11-29T10:00:00Z"}, BORN),
        ({"eventTime": None, "lastTimestamp": BORN}, BORN),
        ({"lastTimestamp": None}, "2026-11-29T08:00:00Z"),
        ({"eventTime": "2026-11-29T09:00:00.123456Z"}, "2026-11-29T09:00:00.123456Z"),
    ],
)
def test_it_dates_an_event_by_the_best_it_says(times: dict[str, Any], at: str) -> None:
    raw = {
        "metadata": {"uid": "e", "creationTimestamp": "2026-11-29T08:00:00Z"},
        "involvedObject": {"kind": "Node", "name": "n-1", "uid": "u"},
        "reason": "Evicted",
        "message": "made room",
        **times,
    }
    event = objects.observed_event(raw)
    assert event is not None
    assert event.at == objects.time_of(at)
    assert (event.object_kind, event.object_name, event.object_uid) == ("Node", "n-1", "u")


def test_it_leaves_out_an_event_about_nothing() -> None:
    assert objects.observed_event({"metadata": {"uid": "e"}}) is None
    assert objects.observed_event({"metadata": {"uid": "e"}, "involvedObject": {"name": ""}}) is None


def test_it_writes_an_event_that_it_can_read() -> None:
    made = objects.agent_event(
        node_name="n-1", node_uid="u", reason="R" * 500, message="möglich " * 1000, at=NOW, instance="n-1"
    )
    seen = objects.observed_event({**made, "metadata": {**made["metadata"], "uid": "e"}})
    assert seen is not None
    assert (seen.at, seen.object_uid, len(seen.reason)) == (NOW, "u", 128)
    assert len(made["message"]) <= 1000


texts = st.text(max_size=30).filter(lambda text: "\0" not in text)
counts = st.integers(0, 2**53)
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
lines = st.builds(
    DesiredEntry, digest=texts, kind=st.sampled_from(ArtifactKind), action=st.sampled_from(Action), connection=texts,
    uri=texts, size_bytes=counts, order=st.integers(-9, 9), verify_round=counts, retry_round=counts, witness=texts,
)  # fmt: skip
specs = st.builds(
    NodeCacheSpec, node_name=texts, node_uid=texts, pool=texts, desired=st.lists(lines, max_size=3).map(tuple),
    connections=st.lists(st.from_type(ConnectionSpec), max_size=2).map(tuple),
    limits=st.builds(Limits, counts, counts, st.none() | counts, st.none() | counts, st.booleans()),
    status_interval_seconds=st.floats(0.1, 1e6), scrub_interval_seconds=st.floats(1, 1e9),
)  # fmt: skip
entries = st.builds(
    EntryStatus, digest=texts, state=st.sampled_from(EntryState), message=texts, retry_at=st.none() | times,
    bytes_done=counts, rate_bytes_per_second=st.none() | st.floats(0, 1e12), last_used_at=st.none() | times,
    damaged=st.lists(texts, max_size=3).map(tuple),
)  # fmt: skip
statuses = st.builds(
    NodeCacheStatus, node_name=texts, node_uid=texts, observed_generation=counts, reported_at=times,
    capacity=st.builds(CapacityStatus, counts, counts, counts, counts),
    entries=st.lists(entries, max_size=3).map(tuple), orphans=st.just(()), agent_version=texts, conditions=st.just(()),
)  # fmt: skip


@given(specs, st.none() | statuses, st.integers(1, 10**6))
def test_it_loses_nothing_on_the_way(wanted: NodeCacheSpec, told: NodeCacheStatus | None, generation: int) -> None:
    document = objects.node_cache_document(wanted)
    document["metadata"]["generation"] = generation
    if told is not None:
        document["status"] = codec.encode(told)
    seen = objects.observed_node_cache(json.loads(json.dumps(document)))
    assert (seen.spec, seen.status, seen.generation) == (wanted, told, generation)
