"""Router processes tell one another what they have on their way, through Redis: one stream that all write and read.

Off the way of requests: a decision looks at counts that hold what was heard already. Who is not heard any longer is
forgotten, whatever became of it or of Redis; routing goes on with what is known.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from routing.dataplane.fleet import Fleet
from routing.dataplane.following import Rounds
from routing.dataplane.router import every
from routing.domain.together import KEEP_SECONDS, SAY_SECONDS, Heard, Names, Part, Went, Word, read_word
from routing.domain.told import NotTold

log = logging.getLogger(__name__)

WORDS_KEY, WORDS_KEPT, AT_ONCE = "hearth:routing:words", 2000, 500
WORDS_OF_EACH = 64  # that are kept at least: three seconds of them. Of many endpoints each may have a hundred kilobytes
LOOK_SECONDS = 0.25
SHARE = 0.05  # of the processor: of many endpoints it is said less often what changed, down to every KEEP_SECONDS


class Talker(Rounds):
    """Of one router process, called ``name`` as in all that it tells. ``now`` in seconds of a monotonic clock."""

    def __init__(self, url: str, fleet: Fleet, name: str, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(url)
        self._fleet, self._name, self._now = fleet, name, now
        self._heard = Heard()
        self._last = b""  # of the words that were read
        self._said: Mapping[Names, Part] = {}
        self._said_at: float | None = None
        self._spent = 0.0  # seconds of the processor, in the last round

    async def run(self) -> None:
        looking = asyncio.get_running_loop().create_task(every(LOOK_SECONDS, self.look))
        try:
            await super().run()
        finally:
            looking.cancel()

    def look(self) -> None:
        """Have the fleet know of those that are heard, and of nobody else."""
        before, routers = self._fleet.known, self._fleet.config.routers
        others, parts = self._heard.others(self._now()) if routers > 1 else (0, {})
        self._fleet.hear(others, parts)
        if min(before, routers) != min(self._fleet.known, routers):
            log.info("%d of %d router processes know of each other", min(self._fleet.known, routers), routers)

    def _begin(self) -> None:
        self._last, self._said_at = b"", None

    def _pause(self) -> float:
        return max(SAY_SECONDS, min(KEEP_SECONDS, self._spent / SHARE))

    async def _round(self, connection: Any) -> None:
        """One question: this router's word, if it has one, and all that was said since it asked last."""
        if (routers := self._fleet.config.routers) <= 1:
            self._last = b""
            return
        if not self._last:
            newest = await connection.xrevrange(WORDS_KEY, count=1)
            self._last = newest[0][0] if newest else b"0-0"
        asked, began = connection.pipeline(transaction=False), time.thread_time()
        if (word := self._word()) is not None:
            message = json.dumps(word.to_json(), separators=(",", ":")).encode()
            kept = min(WORDS_KEPT, WORDS_OF_EACH * routers)
            asked.xadd(WORDS_KEY, {"m": message}, maxlen=kept, approximate=True)
        asked.xrange(WORDS_KEY, min=b"(" + self._last, count=AT_ONCE)
        spent = time.thread_time() - began
        *_, found = await asked.execute()
        self._reached()
        began = time.thread_time()
        for self._last, fields in found:
            self._take(fields.get(b"m", b""))
        self.look()
        self._spent = spent + time.thread_time() - began

    def _word(self) -> Word | None:
        """None while nothing changed and it is not time yet to say that."""
        now, parts, went = self._now(), dict[Names, Part](), dict[Names, list[Went]]()
        for variant in self._fleet.variants():
            if any(part := variant.part()):
                parts[variant.names] = part
            if variant.avoids_waits and (moved := variant.places.untold()):
                went[variant.names] = moved
        if parts == self._said and not went and self._said_at is not None and now - self._said_at < KEEP_SECONDS:
            return None
        self._said, self._said_at = parts, now
        return Word(self._name, parts, went)

    def _take(self, message: bytes) -> None:
        """A word that makes no sense is passed over, as if it had not been said."""
        try:
            word = read_word(json.loads(message))
        except (ValueError, NotTold, RecursionError):
            return
        for (endpoint, name), went in word.went.items():
            there = self._fleet.endpoints.get(endpoint)
            variant = there.variants.get(name) if there is not None else None
            if variant is not None and variant.avoids_waits:
                for digest, home, chosen in went:
                    variant.places.hear(digest, home, chosen)
        if word.router != self._name:
            self._heard.take(word, self._now())
