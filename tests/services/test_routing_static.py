"""Endpoints of addresses: made, changed, taken away; published with how to see that they are well; left alone by what
the watcher sees."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from caches.services.endpoints.rounds import clusters_with_endpoints
from controlplane.audit.models import AuditEvent
from controlplane.clusters.models import Cluster
from controlplane.errors import Clash, Invalid, Missing, Stale
from controlplane.serving.models import STATIC_KIND, Endpoint, Instance
from controlplane.serving.services import endpoints_missing, instances_observe
from routing.dataplane.config import read_config
from routing.domain.publishing import sealed
from routing.domain.shifting import WantedVariant
from routing.models import Configuration, RoutedEndpoint
from routing.services.publishing import configuration_publish
from routing.services.static_endpoints import (
    static_endpoint_change,
    static_endpoint_create,
    static_endpoint_remove,
    static_read,
)
from routing.services.variants import variants_set
from tests import factories
from tests.services.test_routing_policies import ADA

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster(settings: Any) -> Cluster:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    return factories.cluster()


def given(*urls: str, name: str = "chat", model: str = "llama", health_path: str = "/live") -> Any:
    addresses = [{"name": f"engine-{number}", "url": url} for number, url in enumerate(urls)]
    return static_read(name=name, model=model, health_path=health_path, addresses=addresses)


def published(name: str = "chat") -> dict[str, Any]:
    configuration_publish()
    newest = Configuration.objects.first()
    assert newest is not None
    [found] = [one for one in newest.document["endpoints"] if one["name"] == name]
    return dict(found)


def test_it_is_published_as_any_other_with_how_to_see_that_it_is_well(cluster: Cluster) -> None:
    row = static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://10.0.0.7:8000", "https://engine"))
    endpoint = published()
    assert endpoint["models"] == ["llama"]
    [variant] = endpoint["variants"]
    by_address = {one["address"]: one for one in variant["instances"]}
    assert by_address.keys() == {"10.0.0.7:8000", "engine:443"}
    assert "tls" not in by_address["10.0.0.7:8000"] and by_address["engine:443"]["tls"] is True
    assert {one["check"] for one in variant["instances"]} == {"/live"}

    newest = Configuration.objects.get()
    secrets = dict(RoutedEndpoint.objects.values_list("name", "secret"))
    read = read_config(json.dumps(sealed(newest.document, newest.version, secrets)).encode())
    instances = {one.host: one for one in read.endpoints["chat"].variants["default"].instances}
    assert instances["engine"].tls and instances["10.0.0.7"].check == "/live"
    assert AuditEvent.objects.get(action="routing.static-create").object_id == str(row.pk)


def test_who_is_watched_by_its_cluster_is_not_asked(cluster: Cluster) -> None:
    other = factories.endpoint(of=cluster, name="other", document={"healthPath": "/x"})
    factories.variant(of=other)
    factories.instance(of=other)
    [instance] = published("other")["variants"][0]["instances"]
    assert "check" not in instance


def test_nothing_that_the_watcher_sees_or_does_not_see_touches_it(cluster: Cluster) -> None:
    row = static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://10.0.0.7:8000"))
    instances_observe(cluster_id=cluster.pk, items=[], at=timezone.now(), complete=True)
    for kind in ("InferenceEndpointConfig", "JumpStartModel"):
        endpoints_missing(cluster_id=cluster.pk, at=timezone.now(), kind=kind)
    row.refresh_from_db()
    assert row.gone_at is None and row.instances.count() == 1
    assert clusters_with_endpoints() == [], "no round is held for it"


def test_a_change_keeps_who_stays_and_says_what_it_was(cluster: Cluster) -> None:
    row = static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://x:1", "http://y:1"))
    kept = row.instances.get(address="x:1")
    made = static_endpoint_change(actor=ADA, endpoint_id=row.pk, given=given("http://x:1", "http://z:1", model=""))
    assert {one.address for one in made.instances.all()} == {"x:1", "z:1"}
    assert made.instances.get(address="x:1").uid == kept.uid and made.generation == 2
    event = AuditEvent.objects.get(action="routing.static-change")
    assert event.before is not None and event.after is not None
    assert [one["url"] for one in event.before["addresses"]] == ["http://x:1", "http://y:1"]
    assert event.after["model"] == "" and published()["models"] == []

    before = Endpoint.objects.get(pk=row.pk).updated_at
    static_endpoint_change(actor=ADA, endpoint_id=row.pk, given=given("http://x:1", "http://z:1", model=""))
    assert Endpoint.objects.get(pk=row.pk).updated_at == before
    assert AuditEvent.objects.filter(action="routing.static-change").count() == 1, "the same again is no change"


def test_a_name_stays_and_is_there_once(cluster: Cluster) -> None:
    row = static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://x:1"))
    with pytest.raises(Clash, match="already"):
        static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://y:1"))
    with pytest.raises(Invalid, match="stays"):
        static_endpoint_change(actor=ADA, endpoint_id=row.pk, given=given("http://x:1", name="other"))
    with pytest.raises(Stale):
        static_endpoint_change(
            actor=ADA, endpoint_id=row.pk, given=given("http://z:1"), if_updated_at=timezone.now()
        )  # fmt: skip
    assert [one.address for one in row.instances.all()] == ["x:1"]


def test_one_of_a_cluster_is_none(cluster: Cluster) -> None:
    other = factories.endpoint(of=cluster, name="chat")
    for endpoint_id in (other.pk, uuid4()):
        with pytest.raises(Missing):
            static_endpoint_change(actor=ADA, endpoint_id=endpoint_id, given=given("http://x:1"))
        with pytest.raises(Missing):
            static_endpoint_remove(actor=ADA, endpoint_id=endpoint_id)
    assert Endpoint.objects.filter(pk=other.pk).exists()


def test_taken_away_it_is_gone_unless_it_serves_another(cluster: Cluster) -> None:
    row = static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://x:1"))
    other = factories.endpoint(of=cluster, name="other")
    factories.variant(of=other)
    default, following = WantedVariant("default", 1), WantedVariant("next", 0, row.pk)
    variants_set(actor=ADA, endpoint_id=other.pk, wanted=[default, following])
    with pytest.raises(Clash, match="next of default/other"):
        static_endpoint_remove(actor=ADA, endpoint_id=row.pk)
    variants_set(actor=ADA, endpoint_id=other.pk, wanted=[default])
    static_endpoint_remove(actor=ADA, endpoint_id=row.pk)
    assert not Endpoint.objects.filter(kind=STATIC_KIND).exists() and not Instance.objects.exists()
    event = AuditEvent.objects.get(action="routing.static-remove")
    assert event.after is None and event.before is not None and event.before["name"] == "chat"


@pytest.mark.parametrize("whose", ["static", "cluster", "elsewhere", "as it is reached"])
def test_a_name_by_which_clients_reach_another_is_refused(cluster: Cluster, whose: str) -> None:
    if whose == "static":
        static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://x:1"))
    else:
        home = factories.cluster() if whose == "elsewhere" else cluster
        other = factories.endpoint(of=home, name="other" if whose == "as it is reached" else "chat")
        RoutedEndpoint.objects.create(endpoint=other, name="chat", secret="ab" * 32)
    before = Endpoint.objects.count()
    with pytest.raises(Clash, match="already") as refused:
        static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://y:1"))
    [error] = refused.value.errors
    assert (refused.value.code, error.field) == ("routing:static:name-taken", "name")
    assert "another name" in refused.value.next_step and refused.value.next_step in error.detail
    assert (whose == "elsewhere") == ("another cluster" in refused.value.detail)
    assert Endpoint.objects.count() == before


def test_the_name_of_one_that_is_gone_is_free(cluster: Cluster) -> None:
    other = factories.endpoint(of=cluster, name="chat", gone_at=timezone.now())
    RoutedEndpoint.objects.create(endpoint=other, name="chat", secret="ab" * 32)
    static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://x:1"))
    assert len(published()["variants"][0]["instances"]) == 1


def test_two_endpoints_of_one_name_are_both_reached(cluster: Cluster) -> None:
    """A cluster's own may come later: nobody can refuse that one."""
    static_endpoint_create(actor=ADA, cluster=cluster, given=given("http://x:1"))
    other = factories.endpoint(of=cluster, name="chat")
    factories.variant(of=other)
    assert len(published()["variants"][0]["instances"]) == 1
    assert published("chat.default")["variants"][0]["instances"] == []


def test_requests_wait_for_no_address(cluster: Cluster) -> None:
    """Nobody starts an instance there: who asks is told at once."""
    row = static_endpoint_create(actor=ADA, cluster=cluster, given=given())
    scaled = factories.endpoint(of=cluster, name="scaled")
    factories.variant(of=scaled)
    assert published()["variants"][0]["queue"]["requests"] == 0
    assert "unreached" not in published()["variants"][0]["queue"], "nobody takes the place of an address"
    assert published("scaled")["variants"][0]["queue"]["unreached"]
    assert published("scaled")["variants"][0]["queue"]["requests"] > 0, "one that was scaled to none comes back"
    static_endpoint_change(actor=ADA, endpoint_id=row.pk, given=given("http://x:1"))
    assert published()["variants"][0]["queue"]["requests"] > 0, "and with one they may wait for room"
