"""What scripts, templates and styles promise each other by name; nothing else would notice that one side moved."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from caches import charts
from controlplane.web.context import PLACES
from controlplane.web.formats import age_text
from controlplane.web.tones import LOOKS, Tone
from tests.views.addresses import FORMS, PAGES
from tests.views.conftest import Stage
from tests.views.reading import Page

ROOT = Path(settings.BASE_DIR)
SCRIPTS = {file.name: file.read_text() for file in sorted((ROOT / "static/js").glob("*.js"))}
TEMPLATES = "\n".join(file.read_text() for file in sorted((ROOT / "templates").rglob("*.html")))
STYLES = "\n".join(file.read_text() for file in sorted((ROOT / "static/css").glob("*.css")))


def test_it_has_each_element_that_a_script_looks_for() -> None:
    for name, script in SCRIPTS.items():
        for wanted in re.findall(r'getElementById\("([\w-]+)"\)', script):
            assert f'id="{wanted}"' in TEMPLATES, f"{name} looks for #{wanted}"


def test_it_sets_each_attribute_that_a_script_reads() -> None:
    own = {"data-own-class", "data-sent", "data-bound", "data-chart", "data-ready", "data-label"}  # scripts' own notes
    for name, script in SCRIPTS.items():
        for wanted in set(re.findall(r"\[(data-[\w-]+)", script)) - own:
            assert wanted in TEMPLATES, f"{name} reads {wanted}"
    for camel in ("live", "stale", "summary", "worst"):
        assert f"dataset.{camel}" in SCRIPTS["live.js"] and f"data-{camel}=" in TEMPLATES


def test_it_imports_only_what_is_there() -> None:
    for name, script in SCRIPTS.items():
        for wanted, module in re.findall(r'import \{([^}]+)\} from "\./([\w.]+)"', script):
            for one in wanted.split(","):
                assert re.search(rf"export (async )?(function|const) {one.strip()}\b", SCRIPTS[module]), (name, one)
        for module in re.findall(r'import "\./([\w.]+)"', script):
            assert module in SCRIPTS


def test_it_lists_every_key_that_works_and_none_that_does_not() -> None:
    keys = re.search(r"const KEYS = \{(.*?)\n\};", SCRIPTS["keys.js"], re.S)
    assert keys is not None
    works = set(re.findall(r'^\s+(?:"(.)"|(\w+)):', keys[1], re.M))
    works_flat = {one or other for one, other in works} | {"g", "Esc"} | {place.key for place in PLACES}
    dialog = (ROOT / "templates/partials/keys.html").read_text()
    listed = set(re.findall(r"<kbd>([^<]+)</kbd>", dialog))
    assert listed == works_flat


def test_it_gives_each_place_its_own_key_that_hides_no_other(stage: Stage, victor: Client) -> None:
    assert len({place.key for place in PLACES}) == len(PLACES)
    page = Page(victor.get("/").content)
    for place in PLACES:
        link = page.root.one("a", data_key=place.key)
        assert victor.get(link.attrs["href"]).status_code == 200
        assert place.label in link.text
        assert re.search(rf"<dd>Go to [^<]*{place.label}", (ROOT / "templates/partials/keys.html").read_text())


def test_it_has_no_key_that_destroys() -> None:
    assert not re.search(r"(submit|requestSubmit|\.remove\(\)|delete )\(?", SCRIPTS["keys.js"])


def test_it_asks_again_often_while_used_seldom_while_idle_never_while_hidden() -> None:
    live = SCRIPTS["live.js"]
    steps = re.search(r"ACTIVE = (\d+), VISIBLE = (\d+), IDLE = (\d+)", live)
    assert steps is not None
    active, visible, idle = (int(step) for step in steps.groups())
    assert 1000 <= active < visible < idle <= 60000
    assert "!document.hidden" in live and "visibilitychange" in live
    assert "2 ** failures" in live, "a server that does not answer is not hammered"
    assert "AbortSignal.timeout" in live


def test_it_opens_the_address_of_a_selected_row(stage: Stage, victor: Client) -> None:
    for name in ("entries", "pins", "models", "operations", "audit", "fleet", "pool"):
        rows = [one for one in Page(victor.get(PAGES[name](stage)).content).page.all("tr") if "data-url" in one.attrs]
        assert rows, name
        assert all(row.attrs["data-url"].startswith("/") for row in rows), name


def test_it_styles_every_tone_and_draws_no_state_by_colour_alone() -> None:
    for tone in Tone:
        assert f".tone-{tone}" in STYLES, tone
    for state, look in LOOKS.items():
        assert look.icon and look.meaning.endswith("."), state
    unknown = [state for state, look in LOOKS.items() if look.tone is Tone.UNKNOWN]
    assert {"Unknown", "Unchecked"} == set(unknown)
    assert "#hatch" in STYLES, "unknown is hatched"


def test_it_defines_each_variable_that_a_chart_asks_for() -> None:
    wanted = {*charts._TOKENS.values(), "--text", "--line", "--surface", "--unknown", "--idle-solid", "--busy-tint"}
    wanted |= set(re.findall(r'paint\("(--[\w-]+)"\)', SCRIPTS["charts.js"]))
    tokens = (ROOT / "static/css/tokens.css").read_text()
    assert {name for name in wanted if f"{name}:" not in tokens} == set()


def test_it_has_an_icon_file_for_each_health() -> None:
    for tone in (Tone.OK, Tone.WARN, Tone.BAD, Tone.UNKNOWN):
        assert (ROOT / f"static/img/favicon-{tone}.svg").is_file()


@pytest.mark.parametrize("seconds", [0, 0.4, 1, 59, 60, 3599, 3600, 86399, 86400, 1e7])
def test_it_counts_ages_with_the_same_units_in_both_languages(seconds: float) -> None:
    """The spans of clock.js, run here as formats.age_text runs."""
    spans = re.findall(r'\["(\w+)", (\d+)\]', SCRIPTS["clock.js"])
    unit, size = next(((u, int(s)) for u, s in spans if seconds >= int(s)), ("", 1))
    script = "now" if seconds < 1 else f"{int(seconds // size)} {unit} ago"
    now = datetime(2026, 9, 1, tzinfo=UTC)
    assert age_text(now - timedelta(seconds=seconds), now) == script


def test_it_sends_each_confirmation_to_a_field_that_the_server_reads(stage: Stage, olga: Client) -> None:
    for name in ("evict", "delete"):
        page = Page(olga.get(FORMS[name](stage)).content)
        field = page.page.one("input", name="confirm")
        assert field.attrs["data-confirm"] == "qwen v1" and "required" in field.attrs
        form = page.page.one("form", method="post")
        assert field in form.all("input") and form.all("button", type="submit")
