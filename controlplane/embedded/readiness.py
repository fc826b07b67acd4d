"""When the program may call itself ready: /readyz says so, and what pages show comes from this start.

A second start finds everything as it was left: the database answers long before anybody has looked at the nodes again.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

Answer = Mapping[str, Any]  # the body of /readyz, empty where nobody answers
_PATIENCE = 60.0  # seconds after which it is said what is missing
_REPORTS = 20.0  # seconds for agents that have reported before; one that a person stopped yesterday never does


class Readiness:
    """Ask ``check`` about every half second. ``began`` is time.monotonic() of the start."""

    def __init__(self, ask: Callable[[], Answer], *, began: float, since: datetime) -> None:
        self._ask, self._began, self._since = ask, began, since
        self._told: set[str] = set()
        self._observed_at = 0.0  # when everything but the nodes' reports was there

    def check(self, now: float | None = None) -> list[str]:
        """The line that says ready, once; before it, once, what is still missing after a minute."""
        if "ready" in self._told:
            return []
        now = time.monotonic() if now is None else now
        answer = self._ask()
        missing = self._missing(answer, now)
        if not missing:
            self._told.add("ready")
            return [f"Everything runs{_but(answer)}: ready after {now - self._began:.0f} s."]
        if now - self._began < _PATIENCE or "late" in self._told:
            return []
        self._told.add("late")
        return [f"Not everything works yet, and it goes on trying: {missing}"]

    def _missing(self, answer: Answer, now: float) -> str:
        """What is not there yet, as a sentence; "" when nothing is missing."""
        if not answer:
            return "Nobody answers at /readyz."
        if not answer["ready"]:
            return " ".join(answer["causes"])
        news = answer["news"]
        at = news["contacted_at"]
        if news["clusters"] and (at is None or datetime.fromisoformat(at) < self._since):
            return "The watcher has not reached every cluster since the start."
        self._observed_at = self._observed_at or now
        # Of an agent that was never heard of nothing is known: it may still be on its way, as on a cluster of its own.
        if news["unheard"] or (news["reporting"] < news["nodes"] and now - self._observed_at < _REPORTS):
            return f"{news['reporting']} of {news['nodes']} nodes report."
        return ""


def _but(answer: Answer) -> str:
    nodes, reporting = answer["news"]["nodes"], answer["news"]["reporting"]
    verb = "do" if nodes - reporting > 1 else "does"
    return f" but {nodes - reporting} of {nodes} nodes, which {verb} not report" if reporting < nodes else ""


def readiness_of(address: str, began: float) -> Readiness:
    """The Readiness of the program at ``address`` that began just now."""
    return Readiness(lambda: _asked(f"{address}readyz"), began=began, since=datetime.now(UTC))


def _asked(url: str) -> Answer:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            body = answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            body = refused.read()
    except OSError:
        return {}
    try:
        found: Answer = json.loads(body)
    except ValueError:
        return {}
    return found if "news" in found else {}
