"""Counts that are added to on every request."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

What = TypeVar("What")


class Tally(Counter[What]):
    """A Counter. That one has a ``__delitem__`` written in Python, for whose sake the interpreter looks for
    ``__setitem__`` at every store as well; with dict's own, adding to a count takes half of the time."""

    __slots__ = ()
    __delitem__ = dict.__delitem__  # type: ignore[assignment]  # a Counter is a dict
