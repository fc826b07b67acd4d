"""Requests that got no whole answer, by what became of them: as routers counted it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from routing.domain.figures import Figures

# Of a router's own answers: which status they have, and why.
REFUSALS: Mapping[str, str] = {
    "routing:instances:none": "503: no instance was ready",
    "routing:instances:unreachable": "502: no instance could be reached, or none answered",
    "routing:instances:too-slow": "504: no byte of an answer came in time",
    "routing:queue:full": "429: too many waited for an instance already",
    "routing:router:crowded": "503: a router had as many connections open as its system lets it have",
    "routing:router:full": "503: a router served as many clients as it may",
    "routing:request:too-large": "413: the body was too large",
    "routing:request:too-slow": "408: it did not arrive in time",
    "routing:request:malformed": "400: it was no HTTP/1.1",
    "routing:request:bad-tenant": "400: X-Amzn-SageMaker-Prefix-Aware-Id was none",
    "routing:request:unknown-variant": "400: no variant is called so",
    "routing:request:no-path": "404: the endpoint's address alone was asked for",
}
_ATTEMPTS = "attempts:"
WAITED = ("routing:instances:none", "routing:queue:full")  # nobody was there to take them


@dataclass(frozen=True, slots=True)
class Failed:
    """``count`` requests. ``kind``: a router's code, ``answers:4xx`` or ``answers:5xx`` of instances, ``truncated`` or
    ``disconnected``; ``attempts:`` and a health.Failure counts attempts at instances, of which a request may have
    several and still be answered. ``lost``: neither the client nor its request was the reason; False of attempts, which
    are no requests."""

    kind: str
    count: int
    words: str
    lost: bool

    @property
    def is_attempt(self) -> bool:
        return self.kind.startswith(_ATTEMPTS)


def failed_of(figures: Figures) -> tuple[Failed, ...]:
    """Every kind that there was, what was lost first, the most frequent first."""
    found = [
        Failed(code, count, f"refused with {REFUSALS.get(code, code)}", not code.startswith("routing:request:"))
        for code, count in figures.refusals.items()
    ]
    found += [
        Failed("answers:5xx", figures.answers["5xx"], "an instance answered 5xx", True),
        Failed("truncated", figures.truncated, "the answer was cut: its instance ended within it, or hung", True),
        Failed("answers:4xx", figures.answers["4xx"], "an instance answered 4xx: it would not take the request", False),
        Failed("disconnected", figures.disconnected, "the client left before its answer was whole", False),
    ]
    found += [Failed(_ATTEMPTS + name, count, _attempts(name), False) for name, count in figures.failures.items()]
    return tuple(sorted((one for one in found if one.count), key=lambda one: (not one.lost, -one.count, one.kind)))


def _attempts(name: str) -> str:
    what = {"Connect": "that reached no instance", "Answer": "that were answered with 5xx"}.get(name, f"({name})")
    return f"attempts, not requests, {what}; others may have followed for the same request"
