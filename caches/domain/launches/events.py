"""What the events of an engine say of its launches: which run they are about, and what was seen of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from caches.domain.launches.observations import LONGEST_SECONDS, Observation, facts_of
from caches.domain.launches.words import WAITING, Clock, Mark, Observer

CONTAINER = "engine"
NODE_LOST = "NodeLost"  # said of the whole engine: it is about the run that goes on, whichever it names
_FACTS = ("found", "bytes", "source")
_PLACED = re.compile(r" was placed on (?P<node>[a-z0-9-]{1,63})\.\Z")  # controlplane.clusters.local.serving.scheduled

Runs = list[tuple[int, Observation]]


def event_observations(reason: str, at: datetime, message: str, restart_count: int, engine: str = "") -> Runs:
    """(restart count, observation) of everything that the event says; empty for one that says nothing of launches.
    ``engine`` is its name, which begins with its endpoint's.

    Engines run beside the control plane: one clock. An engine is placed when it is made, so it waits for no node; a run
    that ends is where the next one's launch begins.
    """
    match reason:
        case "Scheduled":
            placed = Observation(Observer.CLUSTER, Mark.SCHEDULED, at, facts=_on(message))
            endpoint = facts_of({"endpoint": engine.rpartition("-")[0]})
            return [(0, Observation(Observer.CLUSTER, Mark.CREATED, at, facts=endpoint)), (0, placed)]
        case "Ensuring":
            return [(restart_count, _seen(Mark.ENSURE_STARTED, at))]
        case "Ensured":
            return [(restart_count, ensured(at, message))]
        case "EnsureFailed":
            return [(restart_count, ensured(at, message, failed=True))]
        case "Started":
            return [(restart_count, _seen(Mark.STARTED, at))]
        case "Ready":
            return [(restart_count, Observation(Observer.READINESS, Mark.READY, at))]
        case "BackOff":
            why = facts_of({"reason": message[:200]})
            return [
                (restart_count, Observation(Observer.CLUSTER, Mark.ENDED, at, facts=why)),
                (restart_count + 1, _seen(Mark.RESTARTED, at)),
            ]
        case _ if reason == NODE_LOST:
            return [(restart_count, Observation(Observer.CLUSTER, Mark.ENDED, at, facts=facts_of({"reason": reason})))]
    return []


def _seen(mark: Mark, at: datetime) -> Observation:
    return Observation(Observer.CLUSTER, mark, at)


def _on(message: str) -> tuple[tuple[str, str], ...]:
    """The node by its name: its row, and the instance's link to it, may come after this was said."""
    found = _PLACED.search(message)
    return facts_of({"node": found["node"]}) if found is not None else ()


def ensured(at: datetime, message: str, clock: Clock = Clock.SERVER, *, failed: bool = False) -> Observation:
    """The ensure step's own report; one that cannot be read says only when it ended, and that it ``failed``. One that
    waited failed to find them, and fetched nothing."""
    said = _object(message)
    seconds = said.get("seconds")
    usable = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= LONGEST_SECONDS
    found = {name: said[name] for name in _FACTS if isinstance(said.get(name), str | int | float)}
    if failed and found.get("found") != WAITING:
        found["found"] = "failed"
    facts = facts_of({name: str(value)[:300] for name, value in found.items()})
    length = float(seconds) if usable else None  # type: ignore[arg-type]  # a number where it is usable
    return Observation(Observer.ENSURE, Mark.ENSURE_ENDED, at, length, clock, facts=facts)


def _object(message: str) -> Mapping[str, Any]:
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
