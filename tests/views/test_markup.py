"""Every page as a parser, a keyboard and a screen reader meet it. The browser suite adds axe on top."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest
from django.test import Client

from tests.views.addresses import FORMS, PAGES
from tests.views.conftest import Stage
from tests.views.reading import Page

ALL = PAGES | FORMS
LABELLED = ("input", "select", "textarea")


_drawn: dict[str, Page] = {}


@pytest.fixture
def pages(request: pytest.FixtureRequest) -> dict[str, Page]:
    """Each page as an operator sees it, who sees the most buttons. Drawn once for the module, which only looks."""
    if not _drawn:
        stage, olga = request.getfixturevalue("stage"), request.getfixturevalue("olga")
        _drawn.update({name: Page(olga.get(address(stage)).content) for name, address in ALL.items()})
    return _drawn


def test_it_closes_what_it_opens_and_names_nothing_twice(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert page.problems == [], name
        assert [one for one, count in Counter(page.ids()).items() if count > 1] == [], name


def test_it_refers_to_what_is_there(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        ids = set(page.ids())
        for one in page.root.walk():
            for attribute in ("for", "aria-labelledby", "aria-describedby", "aria-controls", "data-copy-from"):
                for target in one.attrs.get(attribute, "").split():
                    assert target in ids, f"{name}: {one.tag} {attribute}={target}"
        for link in page.root.all("a"):
            address, hash_sign, target = link.attrs["href"].partition("#")
            if hash_sign and not address:
                assert target in ids, link.attrs["href"]


def test_it_names_every_control_heading_and_table(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        labels = {label.attrs.get("for", "") for label in page.root.all("label")}
        wrapped = {id(one) for label in page.root.all("label") for one in label.walk()}
        for field in page.root.all(*LABELLED):
            if field.attrs.get("type") == "hidden":
                continue
            named = field.attrs.get("aria-label") or field.attrs.get("id") in labels or id(field) in wrapped
            assert named, (name, field.attrs)
        for control in (*page.root.all("button"), *page.root.all("a")):
            assert control.name, (name, control.attrs)
        assert len(page.root.all("h1")) == 1, name
        levels = [int(one.tag[1]) for one in page.page.walk() if re.fullmatch("h[1-6]", one.tag)]
        assert levels[0] == 1 and all(after - before <= 1 for before, after in itertools.pairwise(levels))
        for table in page.page.all("table"):
            assert all(head.attrs.get("scope") for head in table.all("th")), table.text[:80]


def test_it_carries_nothing_inline_that_its_own_policy_would_stop(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        for one in page.root.walk():
            assert "style" not in one.attrs, one
            assert not [key for key in one.attrs if key.startswith(("on", "hx-on"))], (name, one)
            assert not one.attrs.get("href", "").lower().startswith(("javascript:", "data:")), one
            if one.tag == "script":
                assert one.attrs.get("src") or one.attrs.get("type") == "application/json"
            assert one.tag != "style"


def test_it_protects_every_form_that_changes_something(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        for form in page.root.all("form"):
            if form.attrs.get("method") == "post":
                assert form.all("input", name="csrfmiddlewaretoken"), (name, form.attrs)
            else:
                assert not form.all("input", name="csrfmiddlewaretoken"), "a token in an address is a token in a log"


def test_it_says_what_it_is_and_where_it_stands(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert re.fullmatch(r"(\(\d+▲\) )?\S.* · Hearth", page.title), name
        assert page.root.one("html").attrs["lang"] == "en"
        assert len(page.root.all("a", aria_current="page")) <= 1
        for crumb in page.root.all("nav", aria_label="Breadcrumb"):
            assert all(link.attrs["href"].startswith("/") for link in crumb.all("a"))


def test_it_marks_one_place_of_the_navigation(stage: Stage, victor: Client) -> None:
    marked = {}
    for name, address in PAGES.items():
        current = Page(victor.get(address(stage)).content).root.all("a", aria_current="page")
        marked[name] = current[0].text if current else ""
    assert marked == {
        "overview": "Overview", "fleet": "Fleet", "pool": "Fleet", "node": "Fleet", "entries": "Fleet",
        "entry": "Fleet", "models": "Models", "model": "Models", "version": "Models", "pins": "Pins", "pin": "Pins",
        "operations": "Operations", "operation": "Operations", "audit": "Audit", "tokens": "Tokens",
        "connections": "Connections", "connection": "Connections", "images": "Images", "image": "Images",
        "endpoints": "Endpoints", "endpoint": "Endpoints", "launches": "Cold starts", "launch": "Cold starts",
        "launch-compare": "Cold starts", "launch-report": "Cold starts",
        "trials": "Cold starts", "trial": "Cold starts",
        "routing": "Endpoints", "routing-variants": "Endpoints", "search": "",
    }  # fmt: skip


def test_it_gives_each_state_an_icon_and_a_word_beside_its_colour(pages: dict[str, Page]) -> None:
    seen = 0
    for name, page in pages.items():
        for pill in page.page.walk():
            if "pill" in pill.attrs.get("class", "").split():
                assert pill.text and pill.all("use") and "title" in pill.attrs, (name, pill.attrs)
                seen += 1
    assert seen > 20
