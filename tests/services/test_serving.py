"""Rows of endpoints and instances follow what the watcher sees, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import Consumer
from controlplane.clusters.endpoints import EndpointName, ObservedEndpoint
from controlplane.clusters.gateway import EventType, Kind, Observed, ObservedNode, WatchEvent
from controlplane.clusters.models import Cluster
from controlplane.serving.models import Endpoint, Instance
from controlplane.serving.sinks import ServingSink
from tests import factories

pytestmark = pytest.mark.django_db
AT = datetime(2026, 1, 1, tzinfo=UTC)
LATER = AT + timedelta(minutes=1)
SINK = ServingSink()


def endpoint(name: str = "chat", kind: Kind = Kind.ENDPOINT, **fields: Any) -> ObservedEndpoint:
    made = ObservedEndpoint(EndpointName(kind.value, "default", name), f"uid-{name}", 1, {"modelName": "m"})
    return replace(made, **fields)


def pod(uid: str, node_uid: str = "", of: str = "chat", **fields: Any) -> Consumer:
    labels = {"hearth.dev/endpoint": of}
    return replace(Consumer(uid, f"default/{uid}", "n1", node_uid, frozenset({"sha256:aa"}), labels=labels), **fields)


def event(type_: EventType, object_: Observed, kind: Kind = Kind.ENDPOINT) -> WatchEvent:
    return WatchEvent(type_, kind, "t", object_)


@pytest.fixture
def cluster() -> Cluster:
    return factories.cluster()


def relist(cluster: Cluster, *items: Observed, kind: Kind = Kind.ENDPOINT, at: datetime = AT) -> None:
    SINK.relisted(str(cluster.pk), kind, items, at)


def change(cluster: Cluster, *events: WatchEvent, at: datetime = LATER) -> None:
    SINK.changed(str(cluster.pk), events, at)


def test_it_keeps_a_row_for_each_endpoint_however_often_it_is_seen(cluster: Cluster) -> None:
    relist(cluster, endpoint(), endpoint("other"))
    relist(cluster, endpoint(), endpoint("other"), at=LATER)
    rows = Endpoint.objects.all()
    assert [row.full_name for row in rows] == ["default/chat", "default/other"]
    assert all(row.observed_at == LATER and row.variants.get().name == "default" for row in rows)


def test_it_takes_the_last_word_of_several_and_no_older_one(cluster: Cluster) -> None:
    newer = endpoint(generation=3, spec={"modelName": "new"})
    change(cluster, event(EventType.ADDED, endpoint()), event(EventType.MODIFIED, newer))
    change(cluster, event(EventType.MODIFIED, endpoint(generation=2)))
    row = Endpoint.objects.get()
    assert (row.generation, row.document) == (3, {"modelName": "new"})
    change(cluster, event(EventType.MODIFIED, replace(newer, status={"state": "DeploymentComplete"})))
    row.refresh_from_db()
    assert row.status == {"state": "DeploymentComplete"}


def test_a_list_that_lost_an_endpoint_removes_nothing(cluster: Cluster) -> None:
    relist(cluster, endpoint(), endpoint("model", kind=Kind.JUMPSTART_MODEL))
    relist(cluster, at=LATER)
    rows = {row.name: row.gone_at for row in Endpoint.objects.all()}
    assert rows == {"chat": LATER, "model": None}, "and the other kind is not touched"
    relist(cluster, endpoint(), at=LATER)
    assert Endpoint.objects.get(name="chat").gone_at is None


def test_a_released_endpoint_goes_with_its_object(cluster: Cluster) -> None:
    relist(cluster, endpoint())
    Endpoint.objects.update(released_at=AT)
    change(cluster, event(EventType.DELETED, endpoint()))
    assert not Endpoint.objects.exists()


def test_another_object_of_the_same_name_is_another_endpoint(cluster: Cluster) -> None:
    relist(cluster, endpoint())
    change(cluster, event(EventType.DELETED, endpoint()), event(EventType.ADDED, endpoint(uid="uid-2")))
    assert {row.uid: row.gone_at for row in Endpoint.objects.all()} == {"uid-chat": LATER, "uid-2": None}


def test_instances_are_the_pods_that_carry_the_label(cluster: Cluster) -> None:
    node = factories.node(of=factories.pool(of=cluster))
    relist(cluster, endpoint())
    strangers = (pod("other", of="nobody"), replace(pod("plain"), labels={}), replace(pod("far"), name="else/far"))
    ready = pod("a", node.uid, ready=True, address="10.0.0.7")
    relist(cluster, ready, pod("b", "gone"), *strangers, kind=Kind.CONSUMER)
    found = {row.uid: (row.node_id, row.digest, row.ready, row.address) for row in Instance.objects.all()}
    assert found == {"a": (node.pk, "sha256:aa", True, "10.0.0.7"), "b": (None, "sha256:aa", False, "")}


def machine(uid: str, name: str = "n1") -> ObservedNode:
    return ObservedNode(name, uid, {}, ready=True, schedulable=True, created_at=AT)


def where() -> dict[str, tuple[Any, str | None]]:
    return {row.uid: (row.node_id, row.runs_on) for row in Instance.objects.select_related("node")}


@pytest.mark.parametrize("listed", [False, True])
def test_an_instance_takes_its_node_as_soon_as_that_is_known(cluster: Cluster, listed: bool) -> None:
    relist(cluster, endpoint())
    placed, elsewhere = pod("a", "uid-late", node_name="late"), pod("b", "uid-never", node_name="never")
    relist(cluster, placed, elsewhere, pod("c", "", node_name=""), kind=Kind.CONSUMER)
    unknown = {"a": (None, "late"), "b": (None, "never"), "c": (None, None)}

    def heard() -> None:
        if listed:
            relist(cluster, machine("uid-late", "late"), machine("uid-other"), kind=Kind.NODE)
        else:
            change(cluster, event(EventType.ADDED, machine("uid-late", "late"), Kind.NODE))

    heard()
    assert where() == unknown, "it has no row yet"
    # One of the same uid elsewhere is another, and so is another machine of the same name.
    factories.node(uid="uid-late", name="late")
    pool = factories.pool(of=cluster)
    gone = factories.node(of=pool, uid="uid-before", name="never", lost_at=AT)
    heard()
    assert where() == unknown
    node = factories.node(of=pool, uid="uid-late", name="late")
    heard()
    assert where() == {**unknown, "a": (node.pk, "late")} and gone.instances.count() == 0
    node.delete()
    assert where() == unknown, "its name is kept"


def test_a_node_that_is_heard_of_costs_one_look_at_who_waits_for_it(
    cluster: Cluster, django_assert_num_queries: Any
) -> None:
    relist(cluster, endpoint())
    node = factories.node(of=factories.pool(of=cluster))
    relist(cluster, *(pod(name, node.uid) for name in "ab"), kind=Kind.CONSUMER)
    with django_assert_num_queries(1):
        change(cluster, *(event(EventType.MODIFIED, machine(f"uid-{n}"), Kind.NODE) for n in range(5)))


def test_a_warm_up_that_failed_is_written_down_once(cluster: Cluster) -> None:
    relist(cluster, endpoint())
    failed = pod("p1", warm_up="The server refused it: HTTP 404\x00")
    for seen in (pod("p1"), failed, failed, pod("p1", warm_up="ok")):
        change(cluster, event(EventType.MODIFIED, seen, Kind.CONSUMER))
    relist(cluster, pod("p1"), pod("p2", warm_up="ok"), kind=Kind.CONSUMER)
    [written] = AuditEvent.objects.filter(action="endpoint.warm-up-failed")
    assert (written.object_name, written.message) == ("default/p1", "The server refused it: HTTP 404\ufffd")
    assert dict(Instance.objects.values_list("name", "warm_up")) == {"p1": "", "p2": "ok"}


def test_a_pod_says_why_it_waits_for_as_long_as_it_does_and_that_it_leaves(cluster: Cluster) -> None:
    relist(cluster, endpoint())
    waits = pod("p", "", wait_reason="ImagePullFailed", wait_message=f"ErrImagePull\x00{'é' * 600}", node_name="")

    def seen(consumer: Consumer) -> tuple[str, str, bool]:
        change(cluster, event(EventType.MODIFIED, consumer, Kind.CONSUMER))
        row = Instance.objects.get()
        return row.wait_reason, row.wait_message, row.leaving

    reason, message, leaving = seen(waits)
    assert (reason, len(message), leaving) == ("ImagePullFailed", 500, False)
    assert message.startswith("ErrImagePull\ufffd")
    assert seen(pod("p", ready=True)) == ("", "", False)
    assert seen(pod("p", leaving=True)) == ("", "", True)


def test_instances_come_and_go_with_their_pods(cluster: Cluster) -> None:
    relist(cluster, endpoint())
    relist(cluster, pod("a"), pod("b"), kind=Kind.CONSUMER)
    change(
        cluster,
        event(EventType.MODIFIED, pod("a", ready=True, digests=frozenset({"sha256:bb"})), Kind.CONSUMER),
        event(EventType.DELETED, pod("b"), Kind.CONSUMER),
        event(EventType.ADDED, pod("c"), Kind.CONSUMER),
    )
    assert {row.uid: (row.ready, row.digest) for row in Instance.objects.all()} == {
        "a": (True, "sha256:bb"),
        "c": (False, "sha256:aa"),
    }
    relist(cluster, pod("c"), kind=Kind.CONSUMER, at=LATER)
    assert [row.uid for row in Instance.objects.all()] == ["c"]


def test_a_document_that_no_database_holds_hides_no_other(cluster: Cluster) -> None:
    odd = {"a\x00": ["b\x00", {"c": "\ud800", "d": "naïve 🙂"}], "n": 1}
    relist(
        cluster, endpoint("odd", spec=odd, status={"x": "\x00"}, annotations={"hearth.dev/gate": "\udc00"}), endpoint()
    )
    relist(cluster, endpoint("odd", spec=odd), endpoint(), at=LATER)
    rows = {row.name: row.document for row in Endpoint.objects.all()}
    assert rows["odd"] == {"a\ufffd": ["b\ufffd", {"c": "\ufffd", "d": "naïve 🙂"}], "n": 1}
    assert rows["chat"] == {"modelName": "m"}


def test_clusters_do_not_mix(cluster: Cluster) -> None:
    other = factories.cluster(name="other")
    relist(cluster, endpoint())
    relist(cluster, pod("a"), kind=Kind.CONSUMER)
    relist(other, kind=Kind.ENDPOINT)
    relist(other, kind=Kind.CONSUMER)
    assert Endpoint.objects.get().gone_at is None and Instance.objects.count() == 1
