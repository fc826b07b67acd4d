"""What people decide of a rollout in the browser: each is asked about first, says what follows, and is done once."""

from __future__ import annotations

import html
import json
import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from caches.models import Pin, Rollout
from controlplane.audit.models import AuditEvent
from controlplane.clusters.gateway import Conflict
from controlplane.clusters.models import ClusterType
from controlplane.clusters.registry import override_gateway
from controlplane.operations.models import Operation
from controlplane.serving.models import Endpoint
from tests import factories
from tests.domain.endpoints import config
from tests.services.endpoints import ServingGateway, unreachable
from tests.views.conftest import Stage
from tests.views.reading import Page

pytestmark = pytest.mark.django_db


@pytest.fixture
def held(stage: Stage) -> Rollout:
    """Rollout 2 serves and holds what rollout 1 served for three hours more."""
    now = timezone.now()
    Rollout.objects.filter(endpoint=stage.endpoint, number=1).update(version=stage.qwen)
    factories.pin(of=stage.qwen, pools=(stage.pool,), endpoint=stage.endpoint)
    Rollout.objects.filter(pk=stage.rollout.pk).update(
        state="Holding", opened_at=now, state_since=now - timedelta(hours=1), held_until=now + timedelta(hours=3)
    )
    return Rollout.objects.get(pk=stage.rollout.pk)


def words(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, answer.content.decode()[-2000:]
    return " ".join(Page(answer.content).text.split())


def hours_left(row: Rollout) -> float:
    row.refresh_from_db()
    assert row.held_until is not None
    return (row.held_until - timezone.now()).total_seconds() / 3600


def test_a_hold_is_said_since_when_until_when_and_by_whom(held: Rollout, olga: Client, victor: Client) -> None:
    page = f"/endpoints/{held.endpoint_id}"
    before = words(olga, page)
    assert "(rollout 1) began 1 h ago and ends in" in before and "as the document said then" in before
    answer = olga.post(f"/rollouts/{held.pk}/hold", {"amount": "2", "unit": "days"})
    assert answer.status_code == 302 and answer["Location"] == page
    assert 47 < hours_left(held) <= 48
    shown = words(olga, page)
    assert "as olga said" in shown and "as the document" not in shown
    assert f"The weights of the version before are kept until {held.held_until:%Y-%m-%d}" in shown, (
        "also where no round has looked at it since"
    )
    event = AuditEvent.objects.get(action="rollout.hold")
    assert (event.actor, event.object_id) == ("olga", str(held.pk))
    seen = words(victor, page)
    assert "as olga said" in seen, "a viewer reads it"
    for button in ("Hold it for longer", "End the hold", "Go back to rollout"):
        assert button in shown and button not in seen


@pytest.mark.parametrize(
    ("seconds", "document", "said"),
    [
        (3600, None, "after the usual hour"),
        (3600, "3600", "as the document says"),
        (600, "600", "as the document says"),
        (3600, "600", "after the usual hour"),  # it says so since
        (600, None, "as the document said then"),
        (600, "soon", "as the document said then"),
    ],
)
def test_how_long_it_is_held_is_said_of_whoever_said_it(
    seconds: int, document: str | None, said: str, held: Rollout, olga: Client
) -> None:
    Rollout.objects.filter(pk=held.pk).update(held_until=held.state_since + timedelta(seconds=seconds))
    annotations = {"hearth.dev/hold-seconds": document} if document is not None else {}
    Endpoint.objects.filter(pk=held.endpoint_id).update(annotations=annotations)
    for address in (f"/endpoints/{held.endpoint_id}", f"/rollouts/{held.pk}/hold"):
        assert f", {said}." in words(olga, address)


def test_less_than_it_was_to_be_is_asked_about_again(held: Rollout, olga: Client) -> None:
    address, less = f"/rollouts/{held.pk}/hold", {"amount": "30", "unit": "minutes"}
    answer = olga.post(address, less)
    assert answer.status_code == 200 and hours_left(held) > 2.9
    page = Page(answer.content)
    assert "That is sooner than it was to be" in page.text
    assert "Hold it for less" in page.text and not AuditEvent.objects.filter(action="rollout.hold").exists()
    assert olga.post(address, less | {"sooner": "yes"}).status_code == 302
    assert hours_left(held) <= 0.5


@pytest.mark.parametrize(
    ("amount", "unit", "problem"),
    [
        ("0", "hours", "greater than or equal to 1"),
        ("-3", "hours", "greater than or equal to 1"),
        ("", "hours", "required"),
        ("many", "hours", "whole number"),
        ("31", "days", "30 days at most"),
        ("9" * 30, "days", "30 days at most"),
        ("1", "fortnights", "valid choice"),
    ],
)
def test_a_length_that_cannot_be_is_refused_at_its_field(
    amount: str, unit: str, problem: str, held: Rollout, olga: Client
) -> None:
    answer = olga.post(f"/rollouts/{held.pk}/hold", {"amount": amount, "unit": unit})
    assert answer.status_code == 400 and problem in Page(answer.content).text
    assert hours_left(held) > 2.9


def test_what_a_hold_keeps_is_said_and_where_that_is_nothing_it_is_not_made_longer(held: Rollout, olga: Client) -> None:
    page, address = f"/endpoints/{held.endpoint_id}", f"/rollouts/{held.pk}/hold"
    for shown in (words(olga, page), words(olga, address)):
        assert "It keeps the weights." in shown
    Pin.objects.filter(endpoint=held.endpoint_id).delete()
    shown = words(olga, page)
    assert "It keeps nothing." in shown and "End the hold" in shown and "Hold it for longer" not in shown
    assert "It holds no version before" in words(olga, address)
    answer = olga.post(address, {"amount": "2", "unit": "days"})
    assert answer.status_code == 409 and "nothing of the version before is pinned" in answer.content.decode()
    assert hours_left(held) <= 3


def test_nothing_is_held_where_nothing_is_held(stage: Stage, olga: Client) -> None:
    address = f"/rollouts/{stage.rollout.pk}/hold"
    assert "It holds no version before" in words(olga, address)
    answer = olga.post(address, {"amount": "2", "unit": "days"})
    assert answer.status_code == 409 and "holds no version before" in answer.content.decode()


@pytest.mark.parametrize("verb", ["hold", "release", "rollback"])
def test_a_viewer_is_told_which_role_it_takes(verb: str, held: Rollout, victor: Client) -> None:
    for answer in (victor.get(f"/rollouts/{held.pk}/{verb}"), victor.post(f"/rollouts/{held.pk}/{verb}")):
        assert answer.status_code == 403 and "role Operator" in answer.content.decode()
    held.refresh_from_db()
    assert held.released_at is None and not Operation.objects.filter(kind="EndpointApply").exists()


def test_a_gate_is_opened_once_somebody_read_what_is_cold(stage: Stage, olga: Client) -> None:
    factories.pin(of=stage.llama, pools=(stage.pool,), endpoint=stage.endpoint)
    Endpoint.objects.filter(pk=stage.endpoint.pk).update(document=config()["spec"])
    address = f"/rollouts/{stage.rollout.pk}/release"
    shown = words(olga, address)
    assert "1 of 4 nodes are warm, 4 required." in shown and "n3 Failed AccessDenied" in shown and "n4 Unknown" in shown
    assert not AuditEvent.objects.filter(action="rollout.release").exists()
    assert olga.post(address, {"ends": "gate"}).status_code == 302
    assert AuditEvent.objects.filter(action="rollout.release").count() == 1
    assert "The gate of rollout 2 was opened" in words(olga, f"/endpoints/{stage.endpoint.pk}")
    assert Rollout.objects.get(pk=stage.rollout.pk).released_by == "olga"


def test_a_gate_that_opened_meanwhile_is_no_hold_to_be_ended(held: Rollout, olga: Client) -> None:
    answer = olga.post(f"/rollouts/{held.pk}/release", {"ends": "gate"})
    assert answer.status_code == 409 and "is Holding by now" in answer.content.decode()
    held.refresh_from_db()
    assert held.released_at is None
    assert "has to fetch it again" in words(olga, f"/rollouts/{held.pk}/release")
    assert olga.post(f"/rollouts/{held.pk}/release", {"ends": "hold"}).status_code == 302
    assert "The hold of rollout 2 was ended" in words(olga, f"/endpoints/{held.endpoint_id}")
    ended = Rollout.objects.get(pk=held.pk)
    assert ended.released_at is not None and ended.released_by == "", "nobody opened its gate by hand"


def test_one_that_is_over_is_said_to_wait_for_nobody(held: Rollout, olga: Client) -> None:
    Rollout.objects.filter(pk=held.pk).update(state="Done")
    assert "It waits for nobody" in words(olga, f"/rollouts/{held.pk}/release")


def test_going_back_says_whether_it_is_warm_and_is_asked_for_once(held: Rollout, olga: Client) -> None:
    assert held.previous is not None
    address = f"/rollouts/{held.previous.pk}/rollback"
    Endpoint.objects.filter(pk=held.endpoint_id).update(document=config()["spec"])
    Rollout.objects.filter(pk=held.previous.pk).update(version=None)
    form = olga.get(address)
    page = Page(form.content)
    [key] = [one.attrs["value"] for one in page.page.all("input") if one.attrs.get("name") == "form_key"]
    assert "s3://models/old" in page.text and "Weights: not known" in " ".join(page.text.split())
    first, second = (olga.post(address, {"form_key": key}) for _ in range(2))
    assert first["Location"] == second["Location"] and Operation.objects.filter(kind="EndpointApply").count() == 1


def test_going_back_is_asked_of_the_cluster_before(
    held: Rollout, olga: Client, tmp_path: Path, settings: LazySettings
) -> None:
    assert held.previous is not None
    address, cluster = f"/rollouts/{held.previous.pk}/rollback", held.endpoint.cluster
    document = config(spec__worker__image="new:2")["spec"]
    Endpoint.objects.filter(pk=held.endpoint_id).update(document=document)
    parts = {"modelSourceConfig": {"modelSourceType": "s3"}, "worker": {"image": "it's-old:1"}}
    Rollout.objects.filter(pk=held.previous.pk).update(parts=parts)
    type(cluster).objects.update(type=ClusterType.KUBERNETES)
    settings.DRY_RUN_SECONDS = 30.0
    gateway = ServingGateway(tmp_path)
    override_gateway(cluster.pk, gateway)
    try:
        gateway.applied = []
        assert "brings it there" in words(olga, address)
        gateway.problem = unreachable()
        unknown = words(olga, address)
        assert "is not known: The API server does not answer" in unknown and "would be refused" not in unknown
        gateway.problem = Conflict("kubectl holds spec.worker.image, which this would change.", ("kubectl",))
        answer = olga.get(address)
    finally:
        override_gateway(cluster.pk, None)
    page = Page(answer.content)
    assert "brings it there" not in page.text and "kubectl holds spec.worker.image" in page.text
    assert not [one for one in page.page.all("button") if "danger" in one.attrs.get("class", "")]
    command = next(one.text for one in page.page.all("pre") if one.text.startswith("kubectl patch"))
    *way, patch = shlex.split(command)
    assert way[2:6] == ["inferenceendpointconfig", held.endpoint.name, "--namespace", held.endpoint.namespace]
    gone = {name: None for name in document["modelSourceConfig"] if name != "modelSourceType"}
    assert json.loads(patch) == {"spec": {"modelSourceConfig": gone, "worker": {"image": "it's-old:1"}}}
    [fields] = re.findall(r'<pre id="fields">(.*?)</pre>', answer.content.decode(), re.DOTALL)
    assert yaml.safe_load(html.unescape(fields)) == json.loads(patch)
