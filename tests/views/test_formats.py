"""How values read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import RequestFactory

from controlplane.web import cells, formats
from controlplane.web.tables import Column, Table
from controlplane.web.tones import Tone

NOW = datetime(2026, 9, 1, 12, 3, 41, tzinfo=UTC)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "—"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (300 * 1024**2, "300 MiB"),
        (141 * 1024**3, "141 GiB"),
        (12.34 * 1024**3, "12.3 GiB"),
        (2 * 1024**4, "2.0 TiB"),
    ],
)
def test_it_writes_bytes(count: float | None, text: str) -> None:
    assert formats.bytes_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (4096, "4.1 K"),
        (999_499, "999 K"),
        (999_500, "1.0 M"),
        (20_969_472, "21.0 M"),
        (99_950_000, "100 M"),
        (7_241_732_096, "7.2 B"),
        (1_026_000_000_000, "1.0 T"),
    ],
)
def test_it_writes_large_numbers(count: int, text: str) -> None:
    assert formats.number_text(count) == text


def test_it_keeps_the_exact_number_as_title_and_lets_through_what_is_none() -> None:
    assert str(cells.number(20_969_472)) == '<span title="20,969,472" class="nowrap">21.0 M</span>'
    assert (cells.number("<7b>"), cells.number(True), cells.number(None)) == ("&lt;7b&gt;", "True", cells.NOTHING)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "—"),
        (0, "0 s"),
        (0.0004, "0 s"),
        (0.02, "20 ms"),
        (-0.02, "−20 ms"),  # noqa: RUF001
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (0.4, "0.4 s"),
        (59.6, "1 min"),
        (192, "3 min 12 s"),
        (3600, "1 h"),
        (3660, "1 h 1 min"),
        (90061, "1 d 1 h"),
        (-5, "−5 s"),  # noqa: RUF001
    ],
)
def test_it_writes_durations(seconds: float | None, text: str) -> None:
    assert formats.duration_text(seconds) == text


@pytest.mark.parametrize(
    ("gap", "text"),
    [
        (timedelta(0), "now"),
        (timedelta(seconds=4), "4 s ago"),
        (timedelta(minutes=3, seconds=12), "3 min ago"),
        (timedelta(hours=30), "1 d ago"),
        (-timedelta(minutes=7, seconds=50), "in 7 min"),
        (-timedelta(hours=1, minutes=59, seconds=52), "in 1 h 59 min"),
        (-timedelta(hours=2, seconds=52), "in 2 h"),
        (-timedelta(hours=47, minutes=59), "in 1 d 23 h"),
    ],
)
def test_it_writes_ages(gap: timedelta, text: str) -> None:
    assert formats.age_text(NOW - gap, NOW) == text


def test_it_writes_moments_and_exports() -> None:
    assert formats.moment_text(NOW) == "2026-09-01 12:03:41 UTC"
    assert formats.iso_text(NOW) == "2026-09-01T12:03:41.000000Z"
    assert formats.iso_text(None) == ""
    assert formats.rate_text(5 * 1024**2) == "5.0 MiB/s"
    assert formats.bytes_exact(1536) == "1,536 bytes"


@pytest.mark.parametrize(
    ("text", "said"), [("", ""), ("It waits", "It waits."), ("It waits.", "It waits."), ("Why?", "Why?")]
)
def test_it_ends_a_sentence_once(text: str, said: str) -> None:
    assert formats.sentence_text(text) == said


def test_it_never_says_all_while_something_is_missing() -> None:
    assert formats.percent_text(999, 1000) == "99 %"
    assert formats.percent_text(1000, 1000) == "100 %"
    assert formats.percent_text(0, 0) == "—"


def test_it_escapes_what_people_named() -> None:
    nasty = '<img src=x onerror="alert(1)">'
    for html in (
        cells.link(nasty, "/x"),
        cells.reason(nasty),
        cells.code(nasty),
        cells.tags([nasty]),
        cells.digest(nasty),
    ):
        assert "<img" not in html
    assert "<img" not in cells.pill(nasty)


def test_it_draws_meters_without_inline_style_and_within_their_width() -> None:
    html = cells.meter([(Tone.OK, 30), (Tone.BAD, 90)], 100, "30 of 100")
    assert "style=" not in html
    assert 'x="25.00%" y="0" width="75.00%"' in html
    assert 'aria-label="30 of 100"' in html
    assert "NaN" not in cells.meter([], 0, "nothing")


def table(query: str, rows: list[dict[str, int | None]]) -> Table:
    columns = [
        Column("name", "Name", lambda row: row["name"], order="x"),
        Column("size", "Size", lambda row: row["size"], order="x", numeric=True),
        Column("fixed", "Fixed", lambda row: 1),
    ]
    request = RequestFactory().get(f"/things{query}")
    return Table(request, rows, columns, name="things", caption="Things", key=lambda row: str(row["name"]))


ROWS = [{"name": number, "size": None if number == 3 else number * number % 7} for number in range(7)]


def test_it_sorts_lists_with_the_unknown_last_in_both_directions() -> None:
    assert [row["name"] for row in table("?sort=size", ROWS).rows][-1] == 3
    assert [row["name"] for row in table("?sort=-size", ROWS).rows][-1] == 3
    assert table("?sort=fixed", ROWS).rows == ROWS
    assert table("?sort=nonsense", ROWS).rows == ROWS


def test_it_links_heads_to_the_other_direction_and_keeps_the_filters() -> None:
    heads = {head.column.name: head for head in table("?state=Failed&sort=size&page=2", ROWS).heads}
    assert heads["size"].direction == "ascending"
    assert heads["size"].query == "?state=Failed&sort=-size"
    assert heads["name"].query == "?state=Failed&sort=name"
    assert heads["fixed"].query == ""
    fresh = {head.column.name: head for head in table("", ROWS).heads}
    assert fresh["size"].query == "?sort=-size"  # the biggest first


@pytest.mark.parametrize("query", ["?page=0", "?page=99", "?page=x", "?page_size=7", "?page_size=100000"])
def test_it_shows_a_page_whatever_the_address_says(query: str) -> None:
    page = table(query, ROWS * 30).page
    assert page.object_list and page.paginator.per_page == 50


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"registry:5000/team/engine@sha256:{'ab' * 32}", "registry:5000/team/engine@sha256:abababababab…"),
        ("registry:5000/team/engine:1", "registry:5000/team/engine:1"),
        ("engine@sha256:abc", "engine@sha256:abc"),
        ("a@b", "a@b"),
        ("", ""),
    ],
)
def test_it_shortens_the_digest_in_an_image_and_nothing_else(name: str, text: str) -> None:
    assert formats.reference_text(name) == text


def test_an_image_breaks_before_its_digest_and_keeps_the_whole_as_title() -> None:
    name = f"engine@sha256:{'ab' * 32}"
    assert str(cells.reference(name)) == f'<span class="break" title="{name}">engine<wbr>@sha256:abababababab…</span>'
    assert str(cells.reference("<b>:1")) == '<span class="break">&lt;b&gt;:1</span>'
    assert cells.reference("") == cells.NOTHING
