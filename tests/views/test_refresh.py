"""Every page asked again: the part alone, 304 while nothing changed, honest about health and age."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.utils import timezone

from caches.models import CacheEntry, PoolLoop
from controlplane.clusters.models import Cluster, Node
from routing.models import RouterProcess
from tests import factories
from tests.views.addresses import FORMS, PAGES
from tests.views.conftest import Stage
from tests.views.reading import Page

LIVE = {"X-Hearth-Live": "1"}
AGE = re.compile(r"(in )?\d+ [smhd]( ago)?|now")
STILL = {"search", "routing-variants"}  # a page that was asked for once, and one with a form


def ageless(html: bytes) -> str:
    """What a page says, without how long ago that was."""
    return AGE.sub("then", Page(html).text)


def test_it_answers_each_page_with_exactly_the_part_that_changes(stage: Stage, olga: Client) -> None:
    for name, make in PAGES.items():
        with time_machine.travel(timezone.now(), tick=False):  # some pages say up to which minute they are
            whole, part = olga.get(make(stage)), olga.get(make(stage), headers=LIVE)
        assert ageless(part.content) == ageless(whole.content), name
        assert Page(part.content).page.attrs == Page(whole.content).page.attrs, name
        assert b"<script src" not in part.content and b'class="side"' not in part.content, name
        assert re.search(rb"<title>[^<]+</title>", part.content), "the title carries the count of troubles"
        assert "no-store" in whole["Cache-Control"] and "no-cache" in part["Cache-Control"], name
        assert {"X-Hearth-Live", "Cookie"} <= {one.strip() for one in part["Vary"].split(",")}, name


def test_it_costs_nothing_to_ask_again_while_nothing_changed(stage: Stage, olga: Client) -> None:
    now = timezone.now().replace(second=30)  # some pages say up to which minute they are
    RouterProcess.objects.update(seen_at=now)  # silent after seconds, which a busy machine takes to make the stage
    addresses = {name: make(stage) for name, make in PAGES.items()}  # what a page is about is made once, before all
    with time_machine.travel(now, tick=False):
        tags = {name: olga.get(address, headers=LIVE)["ETag"] for name, address in addresses.items()}
    with time_machine.travel(now + timedelta(seconds=5), tick=False):
        for name, address in addresses.items():
            again = olga.get(address, headers=LIVE | {"If-None-Match": tags[name]})
            assert (again.status_code, again.content) == (304, b""), name
            assert again["ETag"] == tags[name] and again["X-Hearth-As-Of"], name


def test_it_never_answers_one_person_with_the_tag_of_another(stage: Stage, olga: Client, victor: Client) -> None:
    """The part of an operator has buttons; a shared tag would leave them on a viewer's page."""
    for name in ("entries", "pin", "node", "version"):
        tag = olga.get(PAGES[name](stage), headers=LIVE)["ETag"]
        assert victor.get(PAGES[name](stage), headers=LIVE | {"If-None-Match": tag}).status_code == 200, name


def test_it_never_says_304_to_a_whole_page_or_a_wrong_tag(stage: Stage, olga: Client) -> None:
    tag = olga.get("/fleet", headers=LIVE)["ETag"]
    whole = olga.get("/fleet", headers={"If-None-Match": tag})
    assert whole.status_code == 200 and "ETag" not in whole
    for wrong in ('"x"', "*", tag + "x", "W/"):
        assert olga.get("/fleet", headers=LIVE | {"If-None-Match": wrong}).status_code == 200


def test_it_refreshes_pages_and_leaves_forms_alone(stage: Stage, olga: Client) -> None:
    for name, make in (PAGES | FORMS).items():
        page = Page(olga.get(make(stage)).content)
        live = name in PAGES and name not in STILL
        assert page.page.attrs["data-live"] == ("on" if live else "off"), name
        stamp = page.root.one("div", id="stamp")
        assert stamp.attrs["data-state"] == ("live" if live else "still"), name
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", stamp.attrs["data-as-of"]), name
        assert ("hidden" in page.root.one("button", id="pause").attrs) is not live, name


def worst(client: Client, address: str = "/pins") -> tuple[str, str, str]:
    """Tone of the page, file of its icon, its title."""
    page = Page(client.get(address).content)
    [icon] = page.root.all("link", rel="icon")
    found = re.search(r"favicon-(\w+)\.svg", icon.attrs["href"])
    assert found is not None
    assert icon.attrs["data-worst"] == page.page.attrs["data-worst"]
    return page.page.attrs["data-worst"], found[1], page.title


def healthy(stage: Stage) -> None:
    """Nothing to complain about is left."""
    CacheEntry.objects.update(state="Ready")
    Node.objects.update(reported_at=timezone.now(), observed_at=timezone.now())


def test_it_shows_the_worst_in_the_icon_from_the_first_paint_on(stage: Stage, victor: Client) -> None:
    assert worst(victor) == ("bad", "bad", "(3▲) Pins · Hearth")
    healthy(stage)
    assert worst(victor) == ("ok", "ok", "Pins · Hearth")
    stage.llama.drift = "Drifted"
    stage.llama.save()
    assert worst(victor) == ("warn", "warn", "(1▲) Pins · Hearth")
    stage.llama.drift = "Matches"
    stage.llama.save()
    Cluster.objects.update(observed_at=timezone.now() - timedelta(minutes=5))
    assert worst(victor)[:2] == ("unknown", "unknown"), "old data is never green"
    Node.objects.update(reported_at=timezone.now() - timedelta(days=1))
    assert worst(victor)[:2] == ("unknown", "unknown")
    PoolLoop.objects.create(pool=stage.pool, error="boom")
    assert worst(victor)[0] == "bad"


def test_it_never_looks_fine_where_nobody_looked(stage: Stage, victor: Client) -> None:
    for address in ("/nope", "/models/none", "/pins/new", f"/entries/{stage.ready.id}/scrub"):
        response = victor.get(address)
        assert response.status_code in (403, 404, 405)
        page = Page(response.content)
        assert page.page.attrs["data-worst"] == "unknown" and page.page.attrs["data-summary"] == "", address
        assert "favicon-unknown" in page.root.all("link", rel="icon")[0].attrs["href"], address


def test_it_says_the_same_in_words_for_those_who_cannot_see_the_icon(stage: Stage, victor: Client) -> None:
    page = Page(victor.get("/fleet").content)
    assert page.page.attrs["data-count"] == "3"
    assert (
        page.page.attrs["data-summary"]
        == "1 copy failed; 1 wanted copy on nodes that stopped reporting; 1 node stopped reporting."
    )
    assert page.root.one("div", id="announcer").attrs["aria-live"] == "polite"


def test_it_marks_old_data_on_every_page(stage: Stage, victor: Client) -> None:
    Cluster.objects.update(observed_at=timezone.now() - timedelta(minutes=9))
    for name, make in PAGES.items():
        page = Page(victor.get(make(stage)).content)
        assert "Old data:" in page.text, name
        assert page.page.attrs["data-stale"].startswith("the watcher last heard from lab at "), name
        if name not in STILL:
            assert page.root.one("div", id="stamp").attrs["data-state"] == "stale", name


def test_it_blames_no_cluster_that_somebody_cannot_see(stage: Stage, client: Client) -> None:
    factories.cluster(name="far-away", observed_at=None)
    client.force_login(factories.user(username="paula", role="Viewer", target="lab"))
    page = Page(client.get("/pins").content)
    assert page.page.attrs["data-stale"] == "" and "far-away" not in page.html


@pytest.mark.parametrize("gone", ["/login", "/fleet"])
def test_it_leads_a_page_whose_session_ended_to_the_sign_in(gone: str, stage: Stage, client: Client) -> None:
    """The script reloads when a refresh was redirected to /login."""
    answer = client.get("/fleet", headers=LIVE)
    assert answer.status_code == 302 and answer["Location"].startswith("/login?next=/fleet")


def test_it_keeps_rows_themselves_over_refreshes(stage: Stage, victor: Client) -> None:
    """Rows are matched by id: each has one, and it names the row and not its place."""
    for name in ("entries", "pool", "pins", "models", "operations", "audit", "version", "node", "overview", "fleet"):
        first = Page(victor.get(PAGES[name](stage)).content)
        rows = [row for body in first.page.all("tbody") if body.attrs.get("id") for row in body.all("tr")]
        ids = [row.attrs.get("id", "") for row in rows if row.attrs.get("class") != "group"]
        assert all(ids) and len(set(ids)) == len(ids), (name, ids)
    up = Page(victor.get("/entries?sort=node").content).page.one("tbody", id="entries-rows")
    down = Page(victor.get("/entries?sort=-node").content).page.one("tbody", id="entries-rows")
    assert sorted(row.attrs["id"] for row in up.all("tr")) == sorted(row.attrs["id"] for row in down.all("tr"))


def test_it_leaves_drawn_charts_and_typed_text_to_the_browser(stage: Stage, olga: Client) -> None:
    for name in ("pool", "node"):
        page = Page(olga.get(PAGES[name](stage)).content)
        [plot] = [one for one in page.page.walk() if "plot" in one.attrs.get("class", "").split()]
        assert "data-keep" in plot.attrs and plot.attrs["role"] == "img" and plot.attrs["aria-label"], name
        assert page.page.one("figure").attrs["id"], name
