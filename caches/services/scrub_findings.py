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


@dataclass(frozen=True, slots=True)
class Found:
    """``damaged`` are paths in order; ``is_news`` when some of them are not yet in the Operation's params."""

    damaged: list[str]
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
        count = len(self.damaged)
        # A repair may be over before any report names the files; its bytes are counted all the same.
        wrong = f"{plural(count, 'file')} {'was' if count == 1 else 'were'}" if count else "Something was"
        again = "is" if count <= 1 else "are"
        return f"{wrong} wrong and {again} right again ({size_text(self.repaired_bytes)} fetched)."


def scrub_found(operation: Operation, entry: CacheEntry) -> Found:
    """Everything found since the scrub was asked for, with what the entry says now."""
    before = set(operation.params.get(DAMAGED, ()))
    now = before | set(entry.damaged)
    moved = entry.bytes_moved - int(operation.params.get(MOVED, entry.bytes_moved))
    # A smaller number means that the agent lost its meter and began anew.
    return Found(sorted(now), entry.bytes_moved if moved < 0 else moved, now != before)
