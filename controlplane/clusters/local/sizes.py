"""Sizes as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """``512MiB``, ``1.5 GiB``, ``1GB`` or plain bytes as bytes; ValueError for anything else."""
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r:.40} is no size; write for example 512MiB")
    whole, _, part = match[1].partition(".")
    if len(whole) > 30:
        raise ValueError(f"{text!r:.40} is larger than any disk")
    return int(float(match[1]) * unit) if part else int(whole) * unit


def format_size(size_bytes: int) -> str:
    """With a binary unit and at most one decimal: ``1.5 GiB``."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if round(value, 1) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"
