"""The line about work that takes a while, on a terminal and in a log."""

from __future__ import annotations

import io
import re

import pytest

from controlplane.embedded import moving, records
from controlplane.embedded.moving import Moving


def _timeless(line: str) -> str:
    """A line without its seconds: how many passed says how busy the machine is."""
    return re.sub(r"\b\d+ s\b", "N s", line)


def test_it_says_in_a_log_only_what_is_done_if_that_took_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "_SOON", 60.0)
    said: list[str] = []
    with Moving("Boiling water", said.append):
        pass
    assert [_timeless(line) for line in said] == ["Boiling water: done in N s"]


def test_it_says_in_a_log_how_far_it_is_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "_SOON", 0.01)
    monkeypatch.setattr(moving, "_REPEAT", 0.02)
    said: list[str] = []
    with Moving("Boiling water", said.append) as line:
        line.detail = "60 degrees"
        assert records.wait_until(lambda: len(said) >= 3, 60)
    timeless = [_timeless(line) for line in said]
    assert timeless[:2] == ["Boiling water …", "Boiling water: 60 degrees, N s"]
    assert timeless[-1] == "Boiling water: done in N s"


def test_it_paints_over_itself_on_a_terminal_and_leaves_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "_REPAINT", 0.01)
    monkeypatch.setenv("COLUMNS", "60")
    terminal = io.StringIO()
    said: list[str] = []
    with Moving("Boiling water", said.append, terminal=terminal) as line:
        line.detail = "x" * 500
        assert records.wait_until(lambda: "xxx" in terminal.getvalue(), 60)
    painted = terminal.getvalue().split("\r\x1b[K")
    assert max(map(len, painted)) == 59, "a longer one would wrap, and painting over it would not help"
    assert painted[-1] == "" and [_timeless(line) for line in said] == ["Boiling water: done in N s"]


def test_it_claims_nothing_is_done_that_failed() -> None:
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt), Moving("Boiling water", said.append, terminal=io.StringIO()):
        raise KeyboardInterrupt
    assert [_timeless(line) for line in said] == ["Boiling water: stopped after N s"]
