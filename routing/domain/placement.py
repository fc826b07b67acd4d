"""Which instance a key belongs to: weighted rendezvous hashing.

Every router computes the same order of instances for a key from nothing but their ids and weights. An instance that
joins takes its share of the keys and no other key moves; one that leaves gives its keys away and no other key moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

_WORD = (1 << 64) - 1
REMEMBERED = 32_768  # ids of instances that a Ranking holds for keys that come again


@dataclass(frozen=True, slots=True)
class Member:
    """One instance that may get requests. ``id`` is the uid of its pod or engine; ``weight`` 2 gets twice the keys of
    weight 1. ``home`` names what its copies share a cache in (a machine, a process group); "" shares with nobody."""

    id: str
    weight: float = 1.0
    home: str = ""


def order(digest: int, members: Sequence[Member]) -> list[Member]:
    """All members, the one that the key belongs to first, then the others in the order in which they follow it.

    Independent of the order of ``members``. A weight of 0 or less belongs nowhere.
    """
    scored = [(_score(digest, member), member.id, member) for member in members if member.weight > 0]
    scored.sort(key=lambda one: (-one[0], one[1]))
    return [member for _, _, member in scored]


class Ranking:
    """``order`` of the same members for many keys: ids only. Keys that come again are remembered, in bounded memory."""

    __slots__ = ("_even", "_known", "_most", "_seeds", "homes", "weights", "whole")

    def __init__(self, members: Iterable[Member]) -> None:
        able = {one.id: one for one in members if one.weight > 0}
        self.weights = {name: one.weight for name, one in able.items()}
        self.whole = sum(self.weights.values())
        self.homes = {name: one.home for name, one in able.items() if one.home}
        self._seeds = [(name, _seed(name), one) for name, one in able.items()]
        self._even = len(set(self.weights.values())) == 1
        self._known: dict[int, tuple[str, ...]] = {}
        self._most = max(64, REMEMBERED // max(1, len(able)))

    def of(self, digest: int) -> tuple[str, ...]:
        """For a key: who has it comes first."""
        if (found := self._known.get(digest)) is None:
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[digest] = self.drawn(digest)
        return found

    def drawn(self, word: int) -> tuple[str, ...]:
        """For a word that does not come again."""
        if not self._even:
            return tuple(one.id for one in order(word, [one for _, _, one in self._seeds]))
        # Of equal weights the highest score is the highest word: no logarithm is needed to compare them.
        words = [(-(_mixed(word ^ seed) >> 11), name) for name, seed, _ in self._seeds]
        words.sort()
        return tuple([name for _, name in words])


def moved(before: Sequence[Member], after: Sequence[Member], digests: Iterable[int]) -> float:
    """The share of the keys that belong to another instance after a change of membership; 0 without any key."""
    firsts = [
        (old[0].id if old else "", new[0].id if new else "")
        for old, new in ((order(digest, before), order(digest, after)) for digest in digests)
    ]
    return sum(old != new for old, new in firsts) / len(firsts) if firsts else 0.0


def _score(digest: int, member: Member) -> float:
    # -weight / ln(u) with u uniform in (0, 1): the highest score falls on a member with a chance equal to its weight's
    # share, whatever the other members are.
    uniform = ((_mixed(digest ^ _seed(member.id)) >> 11) + 0.5) / (1 << 53)
    return -member.weight / math.log(uniform)


@lru_cache(maxsize=65536)
def _seed(member_id: str) -> int:
    return int.from_bytes(blake2b(member_id.encode(), digest_size=8, person=b"hearth-member").digest(), "big")


def _mixed(word: int) -> int:
    """Every bit of the result depends on every bit of the word (the finaliser of splitmix64)."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)
