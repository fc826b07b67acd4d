"""What a scrub found and put right: damage as it was reported on the way, bytes as the node's meter counted them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caches.domain.text import plural, size_text
from caches.models import CacheEntry
from controlplane.operations.models import Operation

# Keys of the Operation's params. A retry leaves out those that begin with "_", so it begins without findings.
MOVED = "moved"
DAMAGED = "_damaged"
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Found:
    """``damaged`` are paths in order, ``count`` may be more than they are; ``is_news`` when some of them are not yet in
    the Operation's params."""

    damaged: list[str]
    count: int
    repaired_bytes: int
    is_news: bool

    @property
    def result(self) -> Mapping[str, Any]:
        return {"damaged": self.damaged, "repaired_bytes": self.repaired_bytes}

    @property
    def message(self) -> str:
        """For an entry that is Ready again."""
        if not self.damaged and not self.repaired_bytes:
            return "Every byte is right."
        # An agent that does not name what it repaired counts its bytes all the same.
        # A folder whose mode was wrong is named only where no file was: nobody lost a byte of it.
        files = [path for path in self.damaged if not path.endswith("/")]
        named, noun = (self.damaged, "folder") if self.damaged and not files else (files, "file")
        count = self.count - (len(self.damaged) - len(named))
        wrong = f"{plural(count, noun)} {'was' if count == 1 else 'were'}" if count else "Something was"
        again = "is" if count <= 1 else "are"
        said = f"{wrong} wrong and {again} right again ({size_text(self.repaired_bytes)} fetched)"
        return f"{said}: {_names(named, count)}." if named else f"{said}."


def _names(paths: list[str], count: int) -> str:
    """The audit event carries the message, so it names the files too."""
    more = count - len(paths[:MOST_NAMED])
    return ", ".join(paths[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def scrub_found(operation: Operation, entry: CacheEntry) -> Found:
    """Everything found since the scrub was asked for, with what the entry says now."""
    before = set(operation.params.get(DAMAGED, ()))
    now, count = before | set(entry.damaged), 0
    if entry.scrub and entry.scrub["verify_round"] >= int(operation.params["round"]):
        now, count = now | set(entry.scrub["damaged"]), entry.scrub["damaged_count"]
    moved = entry.bytes_moved - int(operation.params.get(MOVED, entry.bytes_moved))
    # A smaller number means that the agent lost its meter and began anew.
    return Found(sorted(now), max(len(now), count), entry.bytes_moved if moved < 0 else moved, now != before)
