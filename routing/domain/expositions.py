"""Prometheus text as samples. What is no sample is passed over: one engine's odd line must not hide the others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"([A-Za-z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
LINE_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def read_samples(text: str) -> Iterator[Sample]:
    """Every finite sample in order; timestamps and exemplars are left out. A last line without its end may have been
    cut in the middle of a number, and is left out too."""
    for line in text.split("\n")[:-1]:
        if not line or line.startswith("#") or len(line) > LINE_CHARACTERS:
            continue
        match = _LINE.fullmatch(line.partition(" # ")[0].strip())
        if match is None or (labels := _labels(match[2] or "")) is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield Sample(match[1], value, labels)


def _labels(text: str) -> dict[str, str] | None:
    found, at = {}, 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        found[match[1]] = _ESCAPE.sub(lambda one: "\n" if one[1] == "n" else one[1], match[2])
        at = match.end()
    return found
