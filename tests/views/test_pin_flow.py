"""Pinning: choose, see each node, confirm."""

from __future__ import annotations

import re

from django.test import Client

from caches.models import Pin
from controlplane.operations.models import Operation
from tests import factories
from tests.factories import MIB
from tests.views.conftest import Stage, available
from tests.views.test_pages import text_of


def preview(stage: Stage, version: object, **more: str) -> str:
    query = "&".join(f"{name}={value}" for name, value in more.items())
    return f"/pins/new?step=preview&version={version}&pools={stage.pool.id}&priority=500&{query}"


def form_of(html: str) -> dict[str, str]:
    """The fields that the confirmation sends."""
    form = html[html.rindex('<form method="post" action="/pins/new"') :]
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form))


def test_it_previews_each_node_and_writes_nothing(stage: Stage, olga: Client) -> None:
    page = text_of(olga.get(preview(stage, stage.qwen.id)).content.decode())
    assert "n1 lab.gpu Already there" in page
    assert "n2 lab.gpu Fits" in page
    assert "n4 lab.gpu Waits" in page
    assert "no transfers measured yet" in page
    assert not Pin.objects.filter(version=stage.qwen).exists()


def test_it_refuses_what_cannot_fit_with_need_free_and_reserved(stage: Stage, olga: Client) -> None:
    giant = available("giant", "v1", 3000 * MIB)
    html = olga.get(preview(stage, giant.id)).content.decode()
    page = text_of(html)
    assert "Cannot fit" in page
    assert re.search(r"needs 2\.9 GiB , free [\d.]+ MiB , reserved [\d.]+ \w+", page)
    sent = olga.post("/pins/new", form_of(html))
    assert sent.status_code == 409
    assert "pin:user:insufficient-capacity" in sent.content.decode()
    assert not Pin.objects.filter(version=giant).exists()


def test_it_asks_for_the_name_only_when_it_evicts(stage: Stage, olga: Client) -> None:
    # 850 MiB may be used on each node; 800 fit only where qwen (50) makes room beside llama.
    for node in stage.nodes[1:]:
        node.delete()
    stage.pool.evict_grace_seconds = 0
    stage.pool.save()
    big = available("big", "v1", 720 * MIB)
    html = olga.get(preview(stage, big.id)).content.decode()
    assert "Needs eviction" in html and "qwen v1" in html
    assert 'data-confirm="big v1"' in html
    unconfirmed = olga.post("/pins/new", form_of(html))
    assert unconfirmed.status_code == 400
    assert "pin:user:not-confirmed" in unconfirmed.content.decode()
    assert olga.post("/pins/new", form_of(html) | {"confirm": "big v1"}).status_code == 302
    assert Pin.objects.filter(version=big).exists()


def test_it_needs_no_typing_when_nothing_goes_and_leads_to_the_operation(stage: Stage, olga: Client) -> None:
    html = olga.get(
        preview(stage, stage.qwen.id, retention_hours="2", gate_type="Count", gate_value="1")
    ).content.decode()
    assert "data-confirm" not in html
    response = olga.post("/pins/new", form_of(html))
    pin = Pin.objects.get(version=stage.qwen)
    assert response["Location"] == f"/operations/{Operation.objects.get(subject_id=str(pin.pk)).pk}"
    assert (pin.retention_seconds, pin.gate_type, pin.gate_value, pin.priority) == (7200, "Count", 1, 500)


def test_it_makes_one_pin_for_a_form_sent_twice(stage: Stage, olga: Client) -> None:
    body = form_of(olga.get(preview(stage, stage.qwen.id)).content.decode())
    first, second = olga.post("/pins/new", body), olga.post("/pins/new", body)
    assert first.status_code == second.status_code == 302
    assert first["Location"] == second["Location"]
    assert Pin.objects.filter(version=stage.qwen).count() == 1


def test_it_points_to_the_pin_that_exists(stage: Stage, olga: Client) -> None:
    html = olga.get(preview(stage, stage.llama.id)).content.decode()
    assert "is pinned already" in html and f"/pins/{stage.pin.id}" in html
    assert 'action="/pins/new"' not in html


def test_it_keeps_the_choices_in_the_address(stage: Stage, olga: Client) -> None:
    html = olga.get(f"/pins/new?version={stage.qwen.id}&pools={stage.pool.id}&priority=640").content.decode()
    assert f'value="{stage.qwen.id}" selected' in html
    assert 'value="640"' in html
    assert re.search(rf'value="{stage.pool.id}"[^>]*checked', html)


def test_it_says_what_is_missing_at_the_field(stage: Stage, olga: Client) -> None:
    response = olga.get("/pins/new?step=preview&priority=5000")
    page = response.content.decode()
    assert response.status_code == 400
    assert page.count('class="problem"') == 3


def test_it_wants_both_ends_of_a_window(stage: Stage, olga: Client) -> None:
    response = olga.get(preview(stage, stage.qwen.id, window_start="22:00"))
    assert response.status_code == 400
    page = response.content.decode()
    assert "A window needs both times." in page
    assert re.search(r"<details\s+open>", page)


def test_it_offers_only_pools_on_which_the_person_may_pin(stage: Stage, client: Client) -> None:
    other = factories.pool(of=stage.pool.cluster, name="other")
    client.force_login(factories.user(username="paula", role="Operator", target="lab.other"))
    page = client.get("/pins/new").content.decode()
    assert "lab.other" in page and "lab.gpu" not in page
    body = {"version": str(stage.qwen.id), "pools": [str(stage.pool.id), str(other.id)], "priority": "500"}
    assert client.post("/pins/new", body).status_code == 400
    assert not Pin.objects.filter(version=stage.qwen).exists()
