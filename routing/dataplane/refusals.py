"""Answers that the router gives by itself: because of how things are here, and to what cannot be read."""

from __future__ import annotations

import errno
import math

from routing.dataplane.routes import Refusal

LONGEST_RETRY = 30  # seconds that somebody is told to stay away
_FIX = "Correct the request; it was not passed on to any instance."
MALFORMED = Refusal(400, "routing:request:malformed", "this is not HTTP/1.1 as RFC 9112 has it", _FIX)
HEAD_TOO_LARGE = Refusal(431, "routing:request:head-too-large", "at most 64 KiB and 128 headers", _FIX)
TOO_SLOW = Refusal(408, "routing:request:too-slow", "the request did not arrive in time", "Send it again.")
EXPECTATION = Refusal(417, "routing:request:expectation", "only 100-continue can be expected", _FIX)
VERSION = Refusal(505, "routing:request:version", "HTTP/1.1 and HTTP/1.0 are spoken here", _FIX)
NOBODY = Refusal(
    503, "routing:instances:none", "no instance of this endpoint can take requests now", "Try again shortly.", 2
)
UNREACHABLE = Refusal(
    502, "routing:instances:unreachable", "no instance could be reached, or none answered", "Try again.", 1
)
CROWDED = Refusal(
    503, "routing:router:crowded", "this router has as many connections open as its system lets it have",
    "Try again shortly; whoever runs it gives it more open files, or starts more of them.", 1,
)  # fmt: skip
FULL = Refusal(
    503, "routing:router:full", "this router serves as many clients as it may",
    "Try again shortly, or at another router; whoever runs it may let it serve more (--clients).", 1,
)  # fmt: skip


def too_slow(seconds: int) -> Refusal:
    """``seconds`` that an instance had to begin its answer."""
    detail = f"the instance did not begin to answer within {seconds} s"
    step = "Send less or ask for less at once, stream the answer, or raise the policy's first_byte_seconds."
    return Refusal(504, "routing:instances:too-slow", detail, step)


def queue_full(seconds: float) -> Refusal:
    """``seconds`` until the one at the front has waited long enough: there is room then, if not before."""
    detail, step = "too many requests wait for an instance of this endpoint", "Try again when Retry-After is over."
    return Refusal(429, "routing:queue:full", detail, step, max(1, min(LONGEST_RETRY, math.ceil(seconds))))


def is_crowded(error: Exception) -> bool:
    """Whether a connection could not be made for want of open files here: that says nothing of the instance."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
