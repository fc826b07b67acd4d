"""Every page on a telephone: nothing is wider than the screen, and what matters is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client
from playwright.sync_api import Page
from pytest_django.live_server_helper import LiveServer

from caches.domain.labels import ready_label
from controlplane.clusters.models import Node
from controlplane.embedded.processes import ROOT
from tests.e2e.browser import Watched, chromium
from tests.factories import MIB
from tests.views.addresses import FORMS, PAGES
from tests.views.conftest import Stage, ada, stage  # noqa: F401  # fixtures

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.django_db(transaction=True)]
WIDTH = 390
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


def _overlap(page: Page, upper: str, lower: str) -> float:
    above, below = page.locator(upper).bounding_box(), page.locator(lower).bounding_box()
    assert above is not None and below is not None
    return above["y"] + above["height"] - below["y"]
