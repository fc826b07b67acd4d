"""What is served: nothing inline, one file of plotly's wheel, addresses that may be kept for ever, readable colours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.test import Client

from controlplane.web.finders import NAME, PlotlyFinder
from controlplane.web.static_version import static_version
from controlplane.web.tones import LOOKS, look_of, words_of

ROOT = Path(settings.BASE_DIR)
# A file to be kept, and read without this server: everything is inline, and no policy of ours is sent along.
KEPT_FILES = ("launch_report_file.html",)
TEMPLATES = sorted(one for one in (ROOT / "templates").rglob("*.html") if one.name not in KEPT_FILES)
PAIR = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)")


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.name)
def test_it_has_nothing_inline_that_the_policy_forbids(file: Path) -> None:
    html = file.read_text()
    assert not re.search(r"\sstyle=|<style|\son[a-z]+=|hx-on|javascript:|hx-vals=.js", html)
    assert all('src="' in tag or "application/json" in tag for tag in re.findall(r"<script[^>]*>", html))


def test_it_evaluates_no_text_as_code() -> None:
    for file in (ROOT / "static/js").glob("*.js"):
        assert not re.search(r"\beval\(|new Function|innerHTML =|document\.write", file.read_text()), file.name


def test_it_serves_plotly_and_nothing_else_of_its_wheel(client: Client) -> None:
    assert finders.find(NAME) == str(settings.PLOTLY_JS)
    assert finders.find("vendor/widgetbundle.js") is None
    assert finders.find("vendor/../plotly.min.js") is None
    assert [name for name, _ in PlotlyFinder().list(None)] == [NAME]


@pytest.mark.parametrize("name", [NAME, "django_htmx/htmx-2.min.js", "css/tokens.css", "js/main.js", "img/icons.svg"])
def test_it_serves_files_to_be_kept(name: str, client: Client, db: None) -> None:
    response = client.get(settings.STATIC_URL + name)
    assert response.status_code == 200
    assert response.getvalue()
    response.close()
    assert "max-age=31536000" in response["Cache-Control"]


def test_it_gives_a_changed_file_a_new_address(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a")
    first = static_version(tmp_path)
    assert static_version(tmp_path) == first
    (tmp_path / "a.css").write_text("b")
    assert static_version(tmp_path) != first
    assert f"/static/{static_version(ROOT / 'static')}/" == settings.STATIC_URL


def test_it_needs_less_than_100_kb_for_the_first_page() -> None:
    own = sum(file.stat().st_size for kind in ("css", "js", "img") for file in (ROOT / "static" / kind).iterdir())
    assert own < 100_000


def test_it_has_an_icon_for_every_look() -> None:
    icons = (ROOT / "static/img/icons.svg").read_text()
    used = {look.icon for look in LOOKS.values()}
    used |= set(re.findall(r'{% icon "([\w-]+)"', "".join(file.read_text() for file in TEMPLATES)))
    missing = {name for name in used if f'id="{name}"' not in icons}
    assert not missing


def test_it_never_makes_an_unknown_word_look_fine() -> None:
    assert look_of("Unknown").tone == "unknown"
    assert look_of("SomethingNew").tone == "idle"
    assert {state for state, look in LOOKS.items() if look.tone == "ok"} == {
        "Ready", "Succeeded", "Available", "Matches", "Reachable", "Active", "Warm", "Fits", "Kept",
        "Fixed", "DeploymentComplete", "Holding", "Done",
    }  # fmt: skip
    assert words_of("NotReady") == "Not ready"


def _luminance(colour: str) -> float:
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


TEXTS = ["text", "text-2", "link", "ok", "busy", "warn", "bad", "idle", "unknown"]
TONES = ["ok", "busy", "warn", "bad", "idle", "unknown"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_keeps_text_readable_in_both_themes(theme: str) -> None:
    tokens = (ROOT / "static/css/tokens.css").read_text()
    colours = {name: dark if theme == "dark" else light for name, light, dark in PAIR.findall(tokens)}
    for text in TEXTS:
        for surface in ("bg", "surface", "surface-2"):
            assert _contrast(colours[text], colours[surface]) >= 4.5, (text, surface)
    for tone in TONES:
        assert _contrast(colours[tone], colours[f"{tone}-tint"]) >= 4.5, tone
        assert _contrast(colours["link"], colours[f"{tone}-tint"]) >= 4.5, f"links on {tone}"
    for tone in ("ok", "busy", "bad"):
        assert _contrast(colours[f"{tone}-solid"], colours["surface"]) >= 3, tone
    assert _contrast("#ffffff", colours["accent-strong"]) >= 4.5
