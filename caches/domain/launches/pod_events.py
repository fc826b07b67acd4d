"""What a cluster's events of a pod say of its launches: pulls with the duration that the kubelet measured, and why a
launch goes on no further."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from caches.domain.launches.observations import LONGEST_SECONDS, Observation, facts_of
from caches.domain.launches.words import Clock, Mark, Observer

_PRESENT = re.compile(r"\balready present on machine\b")
_DURATION = r"(?:\d+(?:\.\d+)?(?:ns|us|µs|μs|ms|h|m|s))+"
_PULLED = re.compile(rf"\bin (?P<pull>{_DURATION})(?: \((?P<whole>{_DURATION}) including waiting\))?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|μs|ms|h|m|s)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_EVICTS = re.compile(r"\bMarking for deletion\b")
_NODE_CLOCK = frozenset({"kubelet"})
LONGEST_MESSAGE = 200


def pod_event_observations(
    *,
    reason: str,
    message: str,
    at: datetime,
    first_at: datetime | None = None,
    container: str = "",
    init: bool = False,
    reporter: str = "",
) -> Sequence[Observation]:
    """What one event says. One that was repeated says it of both its moments, ``first_at`` and ``at``."""
    clock = Clock.NODE if reporter in _NODE_CLOCK else Clock.SERVER
    moments = [at] if first_at is None or first_at == at else [first_at, at]
    about = {"container": container, "init": "yes" if init else ""}
    match reason:
        case "Pulling":
            return [
                Observation(Observer.CLUSTER, Mark.PULLING, one, None, clock, facts=facts_of(about)) for one in moments
            ]
        case "Pulled" if _PRESENT.search(message):
            facts = facts_of(about)
            return [Observation(Observer.CLUSTER, Mark.IMAGE_PRESENT, one, None, clock, facts=facts) for one in moments]
        case "Pulled":
            whole, pull = pull_seconds(message)
            facts = facts_of({**about, "pull_seconds": "" if pull is None else f"{pull:g}"})
            return [Observation(Observer.CLUSTER, Mark.PULLED, at, whole, clock, facts=facts)]
        case "TaintManagerEviction":
            if not _EVICTS.search(message):
                return []  # or that it was called off
            return [
                Observation(Observer.CLUSTER, Mark.ENDED, moments[0], None, clock, facts=facts_of({"reason": reason}))
            ]
    # The message of what is repeated changes; that it happened, and when first, does not.
    facts = facts_of({**about, "reason": reason[:LONGEST_MESSAGE], "message": _line(message)})
    return [Observation(Observer.CLUSTER, Mark.NOTED, moments[0], None, clock, facts=facts)]


def pull_seconds(message: str) -> tuple[float | None, float | None]:
    """What the launch waited for an image, and what the pull itself took of it: a node that pulls one after the other
    lets pods wait. None for a message that says no duration."""
    found = _PULLED.search(message.rpartition('"')[2])  # an image's name may say anything
    if found is None:
        return None, None
    pull = _seconds(found["pull"])
    whole = _seconds(found["whole"]) if found["whole"] else pull
    return whole, pull


def _seconds(duration: str) -> float | None:
    """A Go duration (``1m2.5s``, ``81ms``) in seconds."""
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(duration))
    return round(seconds, 6) if seconds <= LONGEST_SECONDS else None


def _line(message: str) -> str:
    return " ".join("".join(one if one.isprintable() else " " for one in message).split())[:LONGEST_MESSAGE]
