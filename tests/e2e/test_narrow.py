"""Every page on a telephone: nothing is wider than the screen, and what matters is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Page
from pytest_django.live_server_helper import LiveServer

from caches.domain.labels import ready_label
from controlplane.clusters.models import Node
from controlplane.embedded.processes import ROOT
from controlplane.operations.models import Operation
from tests import factories
from tests.e2e.browser import Watched, chromium
from tests.factories import MIB
from tests.views.addresses import FORMS, PAGES
from tests.views.conftest import Stage, ada, stage  # noqa: F401  # fixtures

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.django_db(transaction=True)]
WIDTH = 390
CUT = """() => {
  const plot = document.querySelector("#heatmap-plot svg.main-svg").getBoundingClientRect();
  const heads = [...document.querySelectorAll("#heatmap-plot .xaxislayer-above text")];
  return heads.filter((head) => {
    const { top, left, right } = head.getBoundingClientRect();
    return top < plot.top - 1 || left < plot.left - 1 || right > plot.right + 1;
  }).map((head) => head.textContent);
}"""
TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture
def crowded(stage: Stage) -> Stage:  # noqa: F811
    """The stage with a node whose disk, labels and names are as long as they get."""
    assert stage.llama.artifact is not None
    labels = {ready_label(stage.llama.artifact.digest): "true", ready_label("sha256:stranger"): "true"}
    labels |= {f"example.com/{'a-rather-long-name-' * 3}x": "y" * 60, "hearth.dev/pool": "gpu"}
    Node.objects.filter(pk=stage.nodes[0].pk).update(
        labels=labels, capacity_bytes=400 * MIB, used_bytes=150 * MIB, other_bytes=30 * MIB, reserved_bytes=20 * MIB
    )
    for number in range(6):
        version = factories.version(model=f"kindling-60m-{number}", version="v1")
        factories.entry(on=stage.nodes[1 + number % 2], of=version.artifact)
    for ended_at in (None, timezone.now()):
        Operation.objects.create(
            kind="ModelRegister",
            state="Succeeded" if ended_at else "Running",
            subject_type="version",
            subject_id=str(stage.llama.pk),
            subject_name="kindling-60m-instruct v12",
            started_by="continuous-integration",
            ended_at=ended_at,
        )
    return stage


def test_it_fits_every_page_on_a_narrow_screen(crowded: Stage, ada: Client, live_server: LiveServer) -> None:  # noqa: F811
    pictures = ROOT / ".run" / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    addresses = {name: str(address(crowded)) for name, address in {**PAGES, **FORMS}.items()}
    cookie = {"name": "sessionid", "value": ada.cookies["sessionid"].value, "url": live_server.url}
    with chromium() as browser:
        context = browser.new_context(viewport={"width": WIDTH, "height": 844})
        context.add_cookies([cookie])  # type: ignore[list-item]
        one = Watched(context.new_page(), live_server.url, pictures)
        wide = [name for name, address in addresses.items() if _is_wide(one, address)]
        assert wide == []
        _look_at_node(one, addresses["node"], pictures)
        _look_at_pool(one, addresses["pool"], pictures)
        one.page.set_viewport_size({"width": 1280, "height": 900})
        one.open(addresses["operations"])
        one.page.screenshot(path=pictures / "operations-1280.png", full_page=True)
        assert not one.page.locator("main .scroll").evaluate("one => one.scrollWidth > one.clientWidth"), (
            "Ended is seen"
        )


def _is_wide(one: Watched, address: str) -> bool:
    one.open(address)
    one.page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
    return bool(one.page.evaluate(TOO_WIDE))


def _look_at_node(one: Watched, address: str, pictures: Path) -> None:
    one.open(address)
    page = one.page
    page.wait_for_selector("#disk-plot svg.main-svg")
    page.screenshot(path=pictures / "node-narrow.png", full_page=True)
    assert _overlap(page, "#disk-plot", "#disk-legend") <= 0, "the legend stands below the chart"
    assert re.search(r"llama v1.*qwen v1.*Other files.*Free", page.locator("#disk-legend").inner_text(), re.S)
    rows = page.locator("#forecast-rows tr")
    assert rows.count() == 2
    for row in rows.all():
        reason = row.locator(".reason").bounding_box()
        assert reason is not None and reason["x"] + reason["width"] <= WIDTH, "the reason is on the screen"
        height = row.bounding_box()
        assert height is not None and height["height"] < 130, "180 before the reason had a place"
    page.locator("#raw-labels summary").click()
    assert not page.evaluate(TOO_WIDE)
    assert one.complaints == []


def _look_at_pool(one: Watched, address: str, pictures: Path) -> None:
    one.open(address)
    page = one.page
    page.wait_for_selector("#heatmap-plot .xaxislayer-above text")
    page.screenshot(path=pictures / "pool-narrow.png", full_page=True)
    assert page.evaluate(CUT) == [], "the heads of the matrix are whole"
    for link in page.locator(".nav a").all():
        box = link.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= WIDTH, link.inner_text()


def _overlap(page: Page, upper: str, lower: str) -> float:
    above, below = page.locator(upper).bounding_box(), page.locator(lower).bounding_box()
    assert above is not None and below is not None
    return above["y"] + above["height"] - below["y"]
