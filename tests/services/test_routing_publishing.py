"""What routers are told follows the rows, with versions that never go back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.utils import timezone

from controlplane.serving.models import Endpoint, Instance
from routing.dataplane.config import read_config
from routing.models import Configuration, RoutedEndpoint, RouterProcess
from routing.services import broker
from routing.services.policies import policy_set
from routing.services.publishing import KEPT_VERSIONS, configuration_publish
from tests import factories
from tests.services.test_routing_policies import ADA, LEAST, PREFIX

pytestmark = pytest.mark.django_db


@pytest.fixture
def there(settings: Any, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A broker that is there, with a key of this test's own."""
    settings.REDIS_URL = valkey_url
    monkeypatch.setattr(broker, "CONFIG_KEY", f"test:{timezone.now().timestamp()}:config")
    connection = redis.Redis.from_url(valkey_url)
    yield connection
    connection.delete(broker.CONFIG_KEY)
    connection.close()


@pytest.fixture
def chat(settings: Any) -> Endpoint:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    made = factories.endpoint(name="chat", document={"modelName": "llama"})
    factories.variant(of=made)
    return made


def newest() -> Configuration:
    found = Configuration.objects.first()
    assert found is not None
    return found


def ids(name: str = "chat") -> list[str]:
    [endpoint] = [one for one in newest().document["endpoints"] if one["name"] == name]
    return [one["id"] for one in endpoint["variants"][0]["instances"]]


def test_it_publishes_those_that_are_ready_and_can_be_reached(chat: Endpoint) -> None:
    node = factories.node(of=factories.pool(of=chat.cluster))
    ready = factories.instance(of=chat, node=node)
    factories.instance(of=chat, ready=False)
    factories.instance(of=chat, address="")
    version = configuration_publish()

    assert ids() == [ready.uid]
    [endpoint] = newest().document["endpoints"]
    assert endpoint["models"] == ["llama"] and endpoint["variants"][0]["instances"][0]["home"] == node.uid
    assert configuration_publish() == version, "nothing changed"
    Instance.objects.filter(ready=False).update(ready=True)
    assert configuration_publish() == version + 1 and len(ids()) == 2
    assert newest().changes == [
        {"endpoint": "chat", "variant": "default", "kind": "Membership", "detail": "1 → 2 instances (+1, -0)"}
    ]


def test_where_an_instance_is_counts_from_the_first_and_its_node_coming_later_moves_nothing(chat: Endpoint) -> None:
    factories.instance(of=chat, node_name="n", node_uid="uid-n")
    version = configuration_publish()
    [shown] = newest().document["endpoints"][0]["variants"][0]["instances"]
    assert shown["home"] == "uid-n"
    Instance.objects.update(node=factories.node(of=factories.pool(of=chat.cluster), uid="uid-n"))
    assert configuration_publish() == version


def test_it_takes_the_port_from_the_endpoints_document(chat: Endpoint) -> None:
    Endpoint.objects.update(document={"worker": {"modelInvocationPort": {"containerPort": 9001}}})
    factories.instance(of=chat, address="10.0.0.7")
    configuration_publish()
    assert newest().document["endpoints"][0]["variants"][0]["instances"][0]["address"] == "10.0.0.7:9001"


def test_a_document_that_makes_no_sense_publishes_all_the_same(chat: Endpoint) -> None:
    Endpoint.objects.update(document={"worker": [1], "modelName": 7, "intelligentRoutingSpec": "yes"})
    one = factories.instance(of=chat, address="10.0.0.7")
    configuration_publish()
    assert ids() == [one.uid] and newest().document["endpoints"][0]["models"] == []


def test_a_second_endpoint_of_one_model_takes_no_request_from_the_first(chat: Endpoint) -> None:
    """Whatever its name: clients that name the model go on as before."""
    second = factories.endpoint(name="another", document={"modelName": "llama"})
    factories.variant(of=second)
    configuration_publish()
    assert {one["name"]: one["models"] for one in newest().document["endpoints"]} == {"chat": ["llama"], "another": []}
    Endpoint.objects.filter(pk=chat.pk).update(gone_at=timezone.now())
    configuration_publish()
    assert {one["name"]: one["models"] for one in newest().document["endpoints"]} == {"another": ["llama"]}


def test_membership_has_a_version_that_only_its_members_change(chat: Endpoint) -> None:
    one = factories.instance(of=chat)

    def version() -> int:
        configuration_publish()
        return int(newest().document["endpoints"][0]["variants"][0]["membership_version"])

    first = version()
    policy_set(actor=ADA, variant_id=chat.variants.get().pk, document=LEAST)
    Instance.objects.filter(pk=one.pk).update(address="127.0.0.1:99")
    assert version() == first, "the same instance elsewhere keeps its keys"
    factories.instance(of=chat)
    assert version() == first + 1


def test_a_policy_is_published_with_its_version(chat: Endpoint) -> None:
    variant = chat.variants.get()
    configuration_publish()
    policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    configuration_publish()
    shown = newest().document["endpoints"][0]["variants"][0]
    assert shown["policy"]["RoutingStrategy"] == "PREFIX_AWARE" and shown["policy_version"] == 1
    assert newest().changes[0]["detail"] == "RANDOM → PREFIX_AWARE 4096/16"


def test_a_name_belongs_to_the_first_that_has_it(chat: Endpoint) -> None:
    configuration_publish()
    other = factories.endpoint(name="chat", namespace="team")
    third = factories.endpoint(name="chat", namespace="team")
    configuration_publish()
    names = {row.endpoint_id: row.name for row in RoutedEndpoint.objects.all()}
    assert names[chat.pk] == "chat" and names[other.pk] == "chat.team"
    assert names[third.pk] == f"chat.team.{third.cluster.name}"
    assert len({row.secret for row in RoutedEndpoint.objects.all()}) == 3


def test_an_endpoint_that_was_made_anew_takes_its_name_over(chat: Endpoint) -> None:
    configuration_publish()
    Endpoint.objects.filter(pk=chat.pk).update(gone_at=timezone.now())
    again = factories.endpoint(of=chat.cluster, name="chat")
    configuration_publish()
    assert RoutedEndpoint.objects.get(name="chat").endpoint_id == again.pk


@pytest.mark.parametrize("field", ["gone_at", "deleting_at"])
def test_an_endpoint_that_goes_away_gets_no_requests(chat: Endpoint, field: str) -> None:
    factories.instance(of=chat)
    configuration_publish()
    Endpoint.objects.update(**{field: timezone.now()})
    configuration_publish()
    assert newest().document["endpoints"] == [] and newest().changes[0]["detail"] == "gone"


def test_no_stored_version_holds_a_secret(chat: Endpoint) -> None:
    configuration_publish()
    assert RoutedEndpoint.objects.get().secret not in json.dumps(newest().document)


def test_it_counts_the_routers_that_were_heard_of(chat: Endpoint, settings: Any) -> None:
    now = timezone.now()
    for number, seconds in enumerate((1, 5, 60)):
        RouterProcess.objects.create(name=str(number), started_at=now, seen_at=now - timedelta(seconds=seconds))
    configuration_publish()
    assert newest().document["routers"] == 2
    settings.ROUTER_PROCESSES = 8
    configuration_publish()
    assert newest().document["routers"] == 8


def test_it_keeps_a_bounded_number_of_versions(chat: Endpoint) -> None:
    Configuration.objects.bulk_create(Configuration(version=v, digest="x", document={}) for v in range(1, 251))
    configuration_publish()
    assert newest().version == 251 and Configuration.objects.count() == KEPT_VERSIONS


def test_routers_find_it_in_redis(chat: Endpoint, there: redis.Redis, settings: Any, valkey_url: str) -> None:
    settings.REDIS_URL = valkey_url
    factories.instance(of=chat)
    version = configuration_publish()
    config = read_config(there.hget(broker.CONFIG_KEY, "document"))  # type: ignore[arg-type]
    assert config.version == version == broker.version_there(there) and len(config.endpoints["chat"].secret) == 32

    there.delete(broker.CONFIG_KEY)
    assert configuration_publish() == version and broker.version_there(there) == version, "an empty broker is filled"


def test_a_late_publisher_does_not_take_a_newer_version_away(there: redis.Redis) -> None:
    broker.put(there, 7, {"version": 7})
    broker.put(there, 6, {"version": 6})
    broker.put(there, 10, {"version": 10})
    assert broker.version_there(there) == 10
    assert json.loads(there.hget(broker.CONFIG_KEY, "document") or "") == {"version": 10}


def test_after_a_restore_it_goes_on_above_what_routers_have(
    chat: Endpoint, there: redis.Redis, settings: Any, valkey_url: str
) -> None:
    settings.REDIS_URL = valkey_url
    broker.put(there, 40, {"version": 40})
    assert configuration_publish() == 41 and broker.version_there(there) == 41
    now = timezone.now()
    RouterProcess.objects.create(name="r", started_at=now, seen_at=now, config_version=90)
    assert configuration_publish() == 91 == configuration_publish()


def test_a_broker_that_is_away_keeps_nothing_from_being_stored(chat: Endpoint) -> None:
    assert configuration_publish() == newest().version == 1


def test_it_is_written_to_a_file_for_its_owner_alone(chat: Endpoint, settings: Any, tmp_path: Path) -> None:
    path = tmp_path / "made" / "router.json"
    settings.ROUTER_CONFIG_FILE = str(path)
    version = configuration_publish()
    assert read_config(path.read_bytes()).version == version and path.stat().st_mode & 0o777 == 0o600
    before = path.stat().st_ino
    configuration_publish()
    assert path.stat().st_ino == before, "and not again for nothing"
    factories.instance(of=chat)
    assert (
        read_config(path.read_bytes()).version + 1 == configuration_publish() == read_config(path.read_bytes()).version
    )


def test_a_file_that_cannot_be_written_stops_nothing(chat: Endpoint, settings: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings.ROUTER_CONFIG_FILE = str(tmp_path / "file" / "router.json")
    assert configuration_publish() == 1
