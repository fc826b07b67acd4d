"""What kubelets, runtimes and registries say, for people to read: short, on one line, without credentials. Pure."""

from __future__ import annotations

import re

_SPACE = re.compile(r"[\x00-\x20\x7f]+")
# Registries send nodes on to stores by signed addresses, and an address may name an account.
_QUERY = re.compile(r"(https?://[^\s\"'?]+)\?[^\s\"']*", re.IGNORECASE)
_ACCOUNT = re.compile(r"([a-z][a-z0-9+.-]*://)[^\s\"'/@]+@", re.IGNORECASE)
_SCHEME = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9+/_.~=-]{8,}", re.IGNORECASE)
# A sentence may speak of a token; what is written as a value of it is left out.
_VALUE = re.compile(
    r"\b([\w-]*(?:token|password|passwd|secret|signature|credential|api[_-]?key|access[_-]?key(?:[_-]?id)?)"
    r"(?:[\"']?\s?=\s?[\"']?|[\"']\s?:\s?[\"']|:(?=\S)))[^\s\"',;&]+",
    re.IGNORECASE,
)
_LEFT_OUT = "…"


def said(text: object, most: int) -> str:
    """``text`` with at most ``most`` characters, none of which is what somebody could log in with."""
    line = without_query(_SPACE.sub(" ", str(text or "")[: 8 * most]).strip())
    line = _ACCOUNT.sub(rf"\1{_LEFT_OUT}@", line)
    line = _SCHEME.sub(rf"\1 {_LEFT_OUT}", line)
    line = _VALUE.sub(rf"\1{_LEFT_OUT}", line)
    return line if len(line) <= most else line[: most - 1] + _LEFT_OUT


def without_query(text: str) -> str:
    """Without what follows ? in addresses."""
    return _QUERY.sub(rf"\1?{_LEFT_OUT}", text)
