"""Whether instances and endpoints serve now: what a silent cluster said last is no answer, and of addresses routers
alone know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.clusters.models import Cluster
from controlplane.serving.models import STATIC_KIND, Endpoint, Instance
from controlplane.serving.standing import Standing, Standings, node_trouble
from routing.models import RouterProcess
from routing.selectors.routers import instances_list, with_in_flight
from routing.selectors.telemetry import telemetry
from routing.selectors.variants import variants_shown
from tests import factories

pytestmark = pytest.mark.django_db
COMPLETE = {"state": "DeploymentComplete"}


@pytest.fixture
def now() -> datetime:
    return timezone.now()


@pytest.fixture
def chat(now: datetime) -> Endpoint:
    """Of a cluster whose one pool's nodes are Unknown after half a minute."""
    made = factories.endpoint(of=factories.cluster(observed_at=now), status=COMPLETE)
    factories.pool(of=made.cluster, freshness_seconds=30)
    factories.instance(of=made, uid="well")
    factories.instance(of=made, uid="starting", ready=False)
    factories.instance(of=made, uid="nowhere", address="")
    return made


def static(of: Cluster, *uids: str) -> Endpoint:
    made = factories.endpoint(of=of, kind=STATIC_KIND, namespace="static", status=COMPLETE)
    for uid in uids:
        factories.instance(of=made, uid=uid)
    return made


def heard(at: datetime, *left_out: str, name: str = "a") -> None:
    figures = {"in_flight": {}, "ejected": list(left_out)}
    RouterProcess.objects.update_or_create(
        name=name, defaults={"started_at": at, "seen_at": at, "figures": figures}
    )  # fmt: skip


def states(now: datetime) -> dict[str, str]:
    rows = Instance.objects.select_related("endpoint__cluster")
    return {row.uid: Standings(now=now).of_instance(row).state for row in rows}


def of(endpoint: Endpoint, now: datetime) -> Standing:
    return Standings(now=now).of_endpoint(Endpoint.objects.select_related("cluster").get(pk=endpoint.pk))


def test_what_a_cluster_said_counts_until_its_nodes_are_unknown(chat: Endpoint, now: datetime) -> None:
    known = {"well": "Ready", "starting": "NotReady", "nowhere": "NotReady"}
    assert states(now + timedelta(seconds=30)) == known
    later = now + timedelta(seconds=31)
    assert states(later) == dict.fromkeys(known, "Unknown")
    one = Standings(now=later).of_instance(Instance.objects.select_related("endpoint__cluster").get(uid="well"))
    assert (one.since, one.last_known, one.ready) == (now + timedelta(seconds=30), "Ready", None)
    assert chat.cluster.name in one.detail
    whole = of(chat, later)
    assert (whole.state, whole.last_known, whole.since) == ("Unknown", "DeploymentComplete", one.since)
    assert of(chat, now).state == "DeploymentComplete"


def test_one_that_leaves_is_said_to_and_one_that_waits_says_why(chat: Endpoint, now: datetime) -> None:
    Instance.objects.filter(uid="well").update(leaving=True)
    Instance.objects.filter(uid="starting").update(wait_reason="Unschedulable", wait_message="0/2 nodes.")
    assert states(now) == {"well": "Terminating", "starting": "NotReady", "nowhere": "NotReady"}
    rows = {row.uid: row for row in Instance.objects.select_related("endpoint__cluster")}
    standings = Standings(now=now)
    assert standings.of_instance(rows["well"]).ready is False
    assert standings.of_instance(rows["starting"]).detail == "0/2 nodes."
    later = Standings(now=now + timedelta(seconds=31)).of_instance(rows["well"])
    assert (later.state, later.last_known) == ("Unknown", "Terminating")
    factories.variant(of=chat)
    [shown] = variants_shown(chat)
    assert (shown.ready, shown.instances) == (0, 2), "it counts no more"


def test_without_a_pool_two_minutes_count_and_whoever_was_never_heard_of_is_unknown(now: datetime) -> None:
    plain = factories.endpoint(of=factories.cluster(observed_at=now), status={})
    assert of(plain, now + timedelta(seconds=120)).state == "Pending"
    assert of(plain, now + timedelta(seconds=121)).last_known == "Pending"
    never = factories.endpoint(of=factories.cluster(observed_at=None))
    assert (of(never, now).state, of(never, now).since) == ("Unknown", None)


def test_what_the_cluster_no_longer_has_stays_gone(chat: Endpoint, now: datetime) -> None:
    Endpoint.objects.filter(pk=chat.pk).update(gone_at=now)
    assert of(chat, now + timedelta(hours=1)).state == "Gone"


def test_of_addresses_routers_alone_know(chat: Endpoint, now: datetime) -> None:
    made = static(chat.cluster, "x", "y")
    assert of(made, now) == Standing("Unknown", None, None, "no router says")
    heard(now - timedelta(minutes=1))
    silent = of(made, now)
    assert silent.state == "Unknown" and silent.since is not None and silent.since < now
    for left_out, state, words in (
        ((), "Ready", "2 of 2 addresses answer"),
        (("y",), "Partial", "1 of 2 addresses answer"),
        (("x", "y"), "NotReady", "0 of 2 addresses answer"),
    ):
        heard(now, *left_out)
        found = of(made, now + timedelta(hours=2))  # its cluster is silent by then, and is not asked
        assert (found.state, found.detail) == (state, words)
    heard(now, name="b")
    assert of(made, now).state == "Ready", "one router reaches them"


def test_without_an_address_nothing_serves(chat: Endpoint, now: datetime) -> None:
    heard(now)
    found = of(static(chat.cluster), now)
    assert (found.state, found.detail) == ("DeploymentPending", "no address is given")


def test_a_pod_that_is_not_ready_is_unknown_while_its_node_is(chat: Endpoint, now: datetime) -> None:
    node = factories.node(of=chat.cluster.pools.get(), name="b", ready=False, reported_at=now - timedelta(seconds=60))
    Instance.objects.update(node=node)
    Instance.objects.filter(uid="nowhere").update(leaving=True)
    assert states(now) == {"well": "Ready", "starting": "Unknown", "nowhere": "Terminating"}
    starting = Instance.objects.select_related("endpoint__cluster", "node").get(uid="starting")
    found = Standings(now=now).of_instance(starting)
    assert (found.detail, found.last_known, found.ready) == ("its node b is not ready", "NotReady", None)
    node.reported_at = datetime(2026, 11, 30, 14, 3, 5, tzinfo=UTC)
    told = "its node b is not ready and was not heard of since 2026-11-30 14:03:05 UTC"
    assert node_trouble(node, now=now + timedelta(days=9999)) == told
    node.lost_at = now
    assert node_trouble(node, now=now) == "its node b is gone"
    node.lost_at, node.ready = None, None
    assert node_trouble(node, now=now + timedelta(days=9999)) == told, "its cluster hears nothing of its kubelet"
    node.ready = True
    assert node_trouble(node, now=now) == node_trouble(None, now=now) == "", "an agent may be silent where pods serve"


def test_a_kubelet_that_says_no_more_leaves_no_word_of_its_pods(chat: Endpoint, now: datetime) -> None:
    """The cluster does not know whether the node is ready; what the kubelet said last of its pods is no news."""
    last = now - timedelta(minutes=5)
    Instance.objects.update(node=factories.node(of=chat.cluster.pools.get(), name="b", ready=None, reported_at=last))
    Instance.objects.update(wait_reason="Crashing", wait_message="back-off 1m20s")
    starting = Instance.objects.select_related("endpoint__cluster", "node").get(uid="starting")
    found = Standings(now=now).of_instance(starting)
    assert (found.state, found.since) == ("Unknown", last)
    assert (found.reason, found.wait_message) == ("NodeNotReady", "its node b is not ready")
    silent = Standings(now=now + timedelta(minutes=10)).of_instance(starting)
    assert (silent.state, silent.reason, silent.wait_message) == ("Unknown", "", "")


def test_any_number_of_rows_takes_three_statements(
    chat: Endpoint, now: datetime, django_assert_num_queries: Any
) -> None:
    for number in range(4):
        static(chat.cluster, f"x{number}", f"y{number}")
    endpoints = list(Endpoint.objects.select_related("cluster"))
    instances = list(Instance.objects.select_related("endpoint__cluster"))
    heard(now)
    with django_assert_num_queries(3):
        standings = Standings(now=now)
        assert len([standings.of_endpoint(one) for one in endpoints] + [standings.of_instance(i) for i in instances])


def test_every_reader_of_routing_says_so(chat: Endpoint, now: datetime) -> None:
    """A watcher that is stopped leaves nothing ready."""
    variant = factories.variant(of=chat)
    heard(now)
    [known] = [one for one in with_in_flight(list(instances_list())) if one.uid == "well"]
    assert known.ready is True and known.standing.state == "Ready"
    there = {one.uid: one.there for one in telemetry(variant=variant, minutes=15, now=now).shares}
    assert there == {"well": True, "nowhere": False}
    assert [(one.ready, one.instances) for one in variants_shown(chat)] == [(1, 3)]

    Cluster.objects.update(observed_at=now - timedelta(minutes=5))
    rows = with_in_flight(list(instances_list()))
    assert {one.ready for one in rows} == {None} and {one.standing.state for one in rows} == {"Unknown"}
    assert {one.there for one in telemetry(variant=variant, minutes=15, now=now).shares} == {None}
    assert [(one.ready, one.instances) for one in variants_shown(chat)] == [(None, 3)]
