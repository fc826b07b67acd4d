"""What router processes tell one another: what each has on its way, and where it sent keys.

Advice that nobody waits for: a router that hears nothing decides by its own part. Read strictly: a broker is a place
where others may write. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from routing.domain.told import MOST_INSTANCES, MOST_VARIANTS, NotTold, matched, whole

# How often a router says what changed, how often it says it is there, and how long what it said counts.
SAY_SECONDS, KEEP_SECONDS, FRESH_SECONDS = 0.05, 0.4, 1.5
MOST_ROUTERS, MOST_WENT = 1024, 256
_ROUTER = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{16}")

Names = tuple[str, str]  # an endpoint and its variant, as clients name them
Went = tuple[int, str, str]  # a key, the instance it belongs to, the one it went to


class Part(NamedTuple):
    """What is on its way of one variant, by instance: requests, those without an answer yet, and the bytes of those.
    Whoever counts them holds no zeros."""

    in_flight: Mapping[str, int]
    unanswered: Mapping[str, int]
    pending: Mapping[str, int]


NOTHING = Part({}, {}, {})


@dataclass(frozen=True, slots=True)
class Word:
    """What one router says: all that it has on its way, of whatever variant, and where keys went since it said so last.
    A word that is lost is made up for by the next, but for where its keys went."""

    router: str
    parts: Mapping[Names, Part] = field(default_factory=dict)
    went: Mapping[Names, Sequence[Went]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"router": self.router, "variants": [self._of(names) for names in {**self.parts, **self.went}]}

    def _of(self, names: Names) -> dict[str, Any]:
        part, went = self.parts.get(names, NOTHING), self.went.get(names, ())
        uids = {uid: None for counts in part for uid in counts}
        uids |= {uid: None for _, *places in went for uid in places}
        place = {uid: number for number, uid in enumerate(uids)}
        return {
            "names": names,
            "instances": [[uid, *(counts.get(uid, 0) for counts in part)] for uid in uids],
            "went": [[f"{digest:016x}", place[home], place[chosen]] for digest, home, chosen in went],
        }


def read_word(document: Mapping[str, Any]) -> Word:
    """Raises NotTold."""
    try:
        parts, went = dict[Names, Part](), dict[Names, Sequence[Went]]()
        for one in _some(document["variants"], MOST_VARIANTS):
            endpoint, variant = one["names"]
            names = _text(endpoint, 400), _text(variant, 63)
            rows = [(_text(uid, 64), [whole(count) for count in counts]) for uid, *counts in _some(one["instances"])]
            if any(len(counts) != len(NOTHING) for _, counts in rows):
                raise ValueError("no counts")
            parts[names] = Part(*({uid: counts[at] for uid, counts in rows if counts[at]} for at in range(3)))
            uids = [uid for uid, _ in rows]
            went[names] = [
                (int(matched(digest, _DIGEST), 16), uids[whole(home)], uids[whole(chosen)])
                for digest, home, chosen in _some(one["went"], MOST_WENT)
            ]
        return Word(matched(document["router"], _ROUTER), parts, went)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise NotTold(f"{type(error).__name__} at {str(error)[:60]!r}") from None


def own(counts: Mapping[str, int], of_others: Mapping[str, int]) -> dict[str, int]:
    """What of ``counts`` is nobody else's."""
    return {uid: left for uid, count in counts.items() if (left := count - of_others.get(uid, 0)) > 0}


def exchange(counts: dict[str, int], before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Have ``counts`` hold ``now`` of others where it held ``before``. Whether there is less anywhere."""
    less = False
    for uid in before.keys() | now.keys():
        if by := now.get(uid, 0) - before.get(uid, 0):
            less = less or by < 0
            if (left := counts.get(uid, 0) + by) > 0:
                counts[uid] = left
            else:
                counts.pop(uid, None)
    return less


class Heard:
    """The last word of each other router, for as long as it is fresh: one that was killed leaves nothing behind. Times
    in seconds of one monotonic clock."""

    def __init__(self, fresh_seconds: float = FRESH_SECONDS) -> None:
        self._fresh = fresh_seconds
        self._words: dict[str, tuple[float, Word]] = {}
        self._sums: Mapping[Names, Part] | None = {}

    def take(self, word: Word, now: float) -> None:
        before = self._words.get(word.router)
        if before is None and len(self._words) >= MOST_ROUTERS:
            return
        if before is None or before[1].parts != word.parts:
            self._sums = None
        self._words[word.router] = now, word

    def others(self, now: float) -> tuple[int, Mapping[Names, Part]]:
        """How many are heard, and what they have on their way together; the same mapping while nothing changed."""
        for router in [router for router, (at, _) in self._words.items() if now - at > self._fresh]:
            del self._words[router]
            self._sums = None
        if self._sums is None:
            self._sums = summed(word.parts for _, word in self._words.values())
        return len(self._words), self._sums


def summed(some: Iterable[Mapping[Names, Part]]) -> dict[Names, Part]:
    sums: dict[Names, tuple[dict[str, int], ...]] = {}
    for parts in some:
        for names, part in parts.items():
            into = sums.setdefault(names, ({}, {}, {}))
            for counts, more in zip(into, part, strict=True):
                for uid, count in more.items():
                    counts[uid] = counts.get(uid, 0) + count
    return {names: Part(*counts) for names, counts in sums.items()}


def _some(found: object, most: int = MOST_INSTANCES) -> list[Any]:
    if not isinstance(found, list) or len(found) > most:
        raise ValueError("no list")
    return found


def _text(value: object, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise ValueError("no text")
    return value
