"""Hub tokens by secret reference: used for endpoints of their namespace, followed, and gone with the last of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.apps import apps
from django.conf import LazySettings
from django.utils import timezone

from caches.models import CacheEntry, EndpointToken, ModelVersion, PoolLoop, SourceConnection
from caches.services.connections import connection_check, connection_create, connection_delete, connection_update
from caches.services.endpoints.preview import EndpointPreview, endpoint_preview
from caches.services.endpoints.tokens import AGAIN_AFTER
from caches.services.endpoints.versions import version_of
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import Reason
from controlplane.clusters.gateway import NotFound
from controlplane.clusters.local.secrets import secret_read
from controlplane.errors import Clash
from controlplane.operations.models import ACTIVE_STATES, Operation
from controlplane.operations.steps import operation_step
from tests.domain.endpoints import GONE, config, spec_of
from tests.services.endpoints import EndpointWorld, unreachable
from tests.standins.hub import Hub, hub

pytestmark = pytest.mark.django_db
TOKEN, NEXT = "hf_of-team-a", "hf_rotated"
FILES = {"config.json": b"{}", "model.safetensors": bytes(20_000)}
NAMED = {"name": "hub-token", "key": "token"}


@pytest.fixture
def standing(tmp_path: Path, settings: LazySettings, served: EndpointWorld) -> Iterator[Hub]:
    """A hub whose one repository opens with the token alone, which lies in the endpoint's namespace."""
    settings.SECRETS_DIR = tmp_path / "secrets"
    served.gateway.secrets["default", "hub-token"] = {"token": TOKEN, "other": "not this one"}
    with hub() as made:
        made.tokens |= {TOKEN, NEXT}
        made.repository("org/gated", gated="masked").commit(FILES)
        connection_create(actor=SYSTEM, name="hub", type="HuggingFace", endpoint=made.endpoint, allowed=["org"])
        yield made


def source(token: dict[str, Any] | None = None, model: str = "org/gated") -> dict[str, Any]:
    named = {"tokenSecretRef": token} if token else {}
    return {"modelSourceType": "huggingface", "huggingFaceModel": {"modelId": model, **named}}


def apply(served: EndpointWorld, token: dict[str, Any] | None = None, **more: Any) -> None:
    served.apply(spec__modelSourceConfig=source(NAMED if token is None else token, **more))


def work() -> None:
    """As a worker does; a removal that waits for nodes stays."""
    for _ in range(3):
        for operation in Operation.objects.filter(state__in=ACTIVE_STATES):
            operation_step(operation_id=operation.pk)


def serve(served: EndpointWorld) -> None:
    apply(served)
    served.round()
    work()
    served.until_served()


def later(served: EndpointWorld) -> None:
    with time_machine.travel(timezone.now() + AGAIN_AFTER):
        served.round()


def agents_have(served: EndpointWorld) -> dict[str, str] | None:
    token = EndpointToken.objects.select_related("connection").get()
    try:
        return dict(secret_read(served.world.folder, token.connection.secret_name))
    except NotFound:
        return None


def test_a_gated_model_is_served_with_the_token_of_its_namespace(
    served: EndpointWorld, standing: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    serve(served)
    assert served.status["state"] == "DeploymentComplete", served.status
    assert served.condition("TokenReadable")[:2] == ("True", "Read")
    version = ModelVersion.objects.select_related("connection").get()
    assert version.connection.namespaces == ["default"] and version.connection.name != "hub"
    assert agents_have(served) == {"token": TOKEN}, "and no other key of the Secret"
    assert PoolLoop.objects.get(pool=served.world.pool).error == "", "nobody misses it among Hearth's own secrets"

    [step] = served.gateway.deployments[-1]["spec"]["template"]["spec"]["initContainers"]
    environment = {entry["name"]: entry for entry in step["env"]}
    reference = {"name": "hub-token", "key": "token", "optional": True}
    assert environment["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": reference}, "of the pod's own namespace"
    assert "secret_name" not in json.loads(environment["HEARTH_SOURCE"]["value"])["connection"]
    [server] = served.gateway.deployments[-1]["spec"]["template"]["spec"]["containers"]
    assert "HF_TOKEN" not in str(server)

    told = [record.getMessage() for record in caplog.records] + [str(r.__dict__) for r in caplog.records]
    said = [*told, *map(str, served.gateway.statuses), str(served.gateway.deployments)]
    assert not any(TOKEN in text for text in said)
    assert TOKEN not in everything_stored()


def everything_stored() -> str:
    """Every value of every row."""
    return "\n".join(str(list(model._default_manager.values_list())) for model in apps.get_models())


def test_the_token_opens_nothing_for_another_namespace(served: EndpointWorld, standing: Hub) -> None:
    serve(served)
    cluster, theirs = served.world.cluster, {"metadata__namespace": "team-b"}
    for named in (None, NAMED):
        spec = spec_of(config(spec__modelSourceConfig=source(named), **theirs))
        found = version_of(cluster=cluster, spec=spec)
        assert found.version is None and found.refused, "neither the model that is there, nor the Secret"
    name = ModelVersion.objects.get().connection.name
    named_by_them = {"metadata__annotations": {"hearth.dev/connection": name}}
    for changes in (theirs, {}):
        spec = spec_of(config(spec__modelSourceConfig=source(), **changes, **named_by_them))
        assert "No source connection" in version_of(cluster=cluster, spec=spec).refused
    assert ModelVersion.objects.count() == 1


def test_two_endpoints_of_one_namespace_share_it(served: EndpointWorld, standing: Hub) -> None:
    serve(served)
    spec = spec_of(config(metadata__name="another", spec__modelSourceConfig=source(NAMED)))
    assert version_of(cluster=served.world.cluster, spec=spec).version == ModelVersion.objects.get()


def test_it_goes_with_the_last_endpoint_that_names_it(served: EndpointWorld, standing: Hub) -> None:
    serve(served)
    token = EndpointToken.objects.select_related("connection").get()
    served.delete()
    served.round()
    with pytest.raises(NotFound):
        secret_read(served.world.folder, token.connection.secret_name)
    for _ in range(6):
        served.world.settle()
        work()
        served.round()
    assert not EndpointToken.objects.exists() and not ModelVersion.objects.exists()
    assert list(SourceConnection.objects.exclude(name="store").values_list("name", flat=True)) == ["hub"]
    held = CacheEntry.objects.exclude(state="Absent").values_list("node__name", "state")
    assert list(held) == []
    assert list(AuditEvent.objects.filter(object_name=token.connection.name).values_list("action", flat=True))


def test_it_stays_while_a_version_that_it_opened_is_held(served: EndpointWorld, standing: Hub) -> None:
    hold = {"hearth.dev/hold-seconds": "3600"}
    apply(served)
    served.round()
    work()
    served.until_served()
    served.version("llms/other")
    served.apply(spec__modelSourceConfig__modelLocation="llms/other", metadata__annotations=hold)
    served.until_served()
    assert served.rollout.state == "Holding" and agents_have(served) == {"token": TOKEN}
    with time_machine.travel(timezone.now() + timedelta(seconds=3601)):
        served.round()
        served.round()
    assert agents_have(served) is None


def test_a_rotated_token_gets_to_agents_and_a_removed_one_is_taken_from_them(
    served: EndpointWorld, standing: Hub
) -> None:
    serve(served)
    read = served.gateway.secrets_read
    served.round()
    assert served.gateway.secrets_read == read, "not every round asks"
    CacheEntry.objects.filter(node__name="n2").update(state="Failed", reason=Reason.ACCESS_DENIED)
    later(served)
    assert not CacheEntry.objects.filter(retry_round__gt=0).exists(), "the token is what it was"
    served.gateway.secrets["default", "hub-token"]["token"] = f"{NEXT}\n"
    with time_machine.travel(timezone.now() + 2 * AGAIN_AFTER):
        served.round()
    assert agents_have(served) == {"token": NEXT}
    assert CacheEntry.objects.get(retry_round=1).node.name == "n2", "what was denied is tried again at once"
    del served.gateway.secrets["default", "hub-token"]
    with time_machine.travel(timezone.now() + 3 * AGAIN_AFTER):
        served.round()
    assert agents_have(served) is None
    assert served.condition("TokenReadable") == (
        "False", "NoToken", "There is no Secret default/hub-token with a key token.",
    )  # fmt: skip
    assert served.status["state"] == "DeploymentComplete", "what serves goes on serving"


def test_another_secret_is_a_version_of_its_own_and_the_first_goes_with_what_is_held(
    served: EndpointWorld, standing: Hub
) -> None:
    serve(served)
    copy = EndpointToken.objects.get().connection.secret_name
    served.gateway.secrets["default", "new-token"] = {"token": NEXT}
    hold = {"hearth.dev/hold-seconds": "60"}
    served.apply(spec__modelSourceConfig=source({**NAMED, "name": "new-token"}), metadata__annotations=hold)
    served.round()
    work()
    served.until_served()
    assert served.rollout.number == 2 and EndpointToken.objects.count() == 2
    assert len({version.artifact_id for version in ModelVersion.objects.all()}) == 1, (
        "the same bytes: nothing is fetched"
    )
    with time_machine.travel(timezone.now() + timedelta(seconds=61)):
        for _ in range(4):
            served.round()
            served.world.settle()
            work()
    assert [token.secret for token in EndpointToken.objects.all()] == ["new-token"]
    with pytest.raises(NotFound):
        secret_read(served.world.folder, copy)
    assert agents_have(served) == {"token": NEXT}


def test_agents_are_given_it_again_where_somebody_took_it_away(served: EndpointWorld, standing: Hub) -> None:
    serve(served)
    served.gateway.delete_secret(EndpointToken.objects.get().connection.secret_name)
    with time_machine.travel(timezone.now() + timedelta(minutes=11)):
        served.round()
    assert agents_have(served) == {"token": TOKEN}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "There is no Secret default/hub-token"),
        ({"other": "x"}, "with a key token"),
        ({"token": ""}, "holds no token"),
        ({"token": "two words"}, "holds no token"),
        ({"token": "hf_ü"}, "holds no token"),
        ({"token": "x" * 5000}, "holds no token"),
        (None, "create role hearth-tokens --verb=get --resource=secrets --resource-name=hub-token"),
    ],
)
def test_it_says_why_there_is_no_token(
    served: EndpointWorld, standing: Hub, change: dict[str, str] | None, words: str
) -> None:
    served.gateway.secrets["default", "hub-token"] = change or {}
    served.gateway.secrets_allowed = change is not None
    apply(served)
    served.round()
    assert words in served.condition("TokenReadable")[2] and words in served.condition("RolledOut")[2]
    assert served.status["state"] == "DeploymentFailed" and agents_have(served) is None
    assert not ModelVersion.objects.exists()


def test_it_goes_on_once_the_secret_is_there(served: EndpointWorld, standing: Hub) -> None:
    found = served.gateway.secrets.pop(("default", "hub-token"))
    apply(served)
    served.round()
    served.gateway.secrets["default", "hub-token"] = found
    with time_machine.travel(timezone.now() + timedelta(seconds=16)):
        served.round()
        work()
        served.round()
    assert served.rollout.state == "Warming"


def test_an_optional_secret_that_is_not_there_is_done_without(served: EndpointWorld, standing: Hub) -> None:
    standing.repository("org/open").commit(FILES)
    served.gateway.secrets.clear()
    apply(served, {**NAMED, "optional": True}, model="org/open")
    served.round()
    work()
    served.until_served()
    assert served.status["state"] == "DeploymentComplete"
    assert ModelVersion.objects.get().connection.name == "hub"
    assert served.condition("TokenReadable")[0] == "True"


def test_a_cluster_that_does_not_answer_leaves_everything_as_it_is(served: EndpointWorld, standing: Hub) -> None:
    serve(served)
    served.gateway.problem = unreachable()
    later(served)
    assert agents_have(served) == {"token": TOKEN}
    token = EndpointToken.objects.select_related("connection").get()
    assert connection_check(connection_id=token.connection_id).state == "Unreachable"
    served.gateway.problem = None
    assert connection_check(connection_id=token.connection_id).state == "Reachable"


def test_an_administrator_changes_the_connection_that_it_is_a_copy_of(served: EndpointWorld, standing: Hub) -> None:
    serve(served)
    copy = EndpointToken.objects.get().connection
    with pytest.raises(Clash, match="belongs to the endpoints of namespace default"):
        connection_update(actor=SYSTEM, connection_id=copy.pk, changes={"endpoint": "http://127.0.0.1:1"})
    with pytest.raises(Clash, match="belongs to the endpoints"):
        connection_delete(actor=SYSTEM, connection_id=copy.pk)
    base = SourceConnection.objects.get(name="hub")
    with pytest.raises(Clash):
        connection_delete(actor=SYSTEM, connection_id=base.pk)
    connection_update(actor=SYSTEM, connection_id=base.pk, changes={"bytes_per_second": 5000})
    served.round()
    copy.refresh_from_db()
    assert copy.bytes_per_second == 5000 and copy.namespaces == ["default"]
    connection_update(actor=SYSTEM, connection_id=base.pk, changes={"namespaces": ["team-b"]})
    spec = spec_of(config(spec__modelSourceConfig=source(NAMED)))
    assert "not for endpoints of namespace default" in version_of(cluster=served.world.cluster, spec=spec).refused


def dry_run(served: EndpointWorld, token: dict[str, Any] | None = NAMED, model: str = "org/gated") -> EndpointPreview:
    served.gateway.applied = []
    document = config(spec__modelSourceConfig=source(token, model), spec__instanceType=GONE)
    document["spec"]["modelCacheConfig"]["imageCache"] = {"enabled": False}
    return endpoint_preview(cluster=served.world.cluster, document=document)


def test_a_dry_run_reads_no_token_and_says_nothing_of_what_it_opens(served: EndpointWorld, standing: Hub) -> None:
    """The process that serves pages may not read it: what the round may is no concern of a dry run's."""
    serve(served)
    standing.repository("org/next", gated="masked").commit(FILES)
    read, served.gateway.secrets_allowed = served.gateway.secrets_read, False
    before = ModelVersion.objects.count()
    assert dry_run(served).obstacles == () and dry_run(served).digest, "it is registered: nobody is asked"
    found = dry_run(served, model="org/next")
    assert (found.obstacles, found.digest) == ((), "")
    assert served.gateway.secrets_read == read and ModelVersion.objects.count() == before
    [obstacle] = dry_run(served, None, "org/next").obstacles
    assert "gated" in obstacle.why, "without a token it is asked as before"


def test_a_dry_run_says_of_a_token_what_is_known_of_it(served: EndpointWorld, standing: Hub) -> None:
    [obstacle] = dry_run(served).obstacles
    assert obstacle.why == "The Secret of its token is read once the document is applied."
    del served.gateway.secrets["default", "hub-token"]
    apply(served)
    served.round()
    read = served.gateway.secrets_read
    [obstacle] = dry_run(served).obstacles
    assert obstacle.why == served.condition("TokenReadable")[2] and "There is no Secret" in obstacle.why
    standing.repository("org/open").commit(FILES)
    assert dry_run(served, {**NAMED, "optional": True}, "org/open").obstacles == ()
    assert served.gateway.secrets_read == read and not ModelVersion.objects.exists()


@pytest.mark.parametrize("call", ["apply_secret", "delete_secret"])
def test_what_was_told_to_agents_and_not_written_down_is_told_again(
    served: EndpointWorld, standing: Hub, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two: the next round says the same once more."""
    serve(served)
    if call == "apply_secret":
        served.gateway.secrets["default", "hub-token"]["token"] = NEXT
    else:
        served.delete()
    real = getattr(served.gateway, call)

    def killed(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise unreachable()

    with monkeypatch.context() as broken:
        broken.setattr(served.gateway, call, killed)
        later(served)
    assert EndpointToken.objects.get().content_mac, "as if nothing had happened"
    later(served)
    assert agents_have(served) == ({"token": NEXT} if call == "apply_secret" else None)


def test_a_token_for_another_connection_goes_although_its_secret_is_still_named(
    served: EndpointWorld, standing: Hub
) -> None:
    """Otherwise nobody could delete the connection that it is a copy of."""
    serve(served)
    connection_create(actor=SYSTEM, name="mirror", type="HuggingFace", endpoint=standing.endpoint, allowed=["org"])
    moved = {"hearth.dev/connection": "mirror", "hearth.dev/hold-seconds": "60"}
    standing.repository("org/next", gated="masked").commit({**FILES, "config.json": b"[]"})
    served.apply(spec__modelSourceConfig=source(NAMED, "org/next"), metadata__annotations=moved)
    served.round()
    work()
    served.until_served()
    assert EndpointToken.objects.count() == 2, "the version before is held"
    with time_machine.travel(timezone.now() + timedelta(seconds=61)):
        for _ in range(4):
            served.round()
            served.world.settle()
            work()
    assert [token.base.name for token in EndpointToken.objects.all()] == ["mirror"]
    connection_delete(actor=SYSTEM, connection_id=SourceConnection.objects.get(name="hub").pk)
    assert agents_have(served) == {"token": TOKEN}
