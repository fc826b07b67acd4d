"""Room on the node: what is there, what is promised, and whether one more artifact fits. Refuses with numbers."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from caches.agent import safefs
from caches.agent.store import Store
from caches.agent.tuning import Tuning
from caches.domain.text import size_text
from controlplane.clusters.documents import CapacityStatus, Limits, Reason
from controlplane.errors import Permanent

Disk = Callable[[], tuple[int, int] | None]


def tree_bytes(path: Path, *, allocated: bool = False) -> int:
    """Bytes of the regular files below ``path``, or of the file ``path``; with ``allocated`` a hole in a sparse file
    does not count."""
    try:
        top = path.lstat()
        if stat.S_ISREG(top.st_mode):
            return top.st_size
        infos = [info for _, info in safefs.walk(path) if stat.S_ISREG(info.st_mode)]
    except OSError:
        return 0
    return sum(min(info.st_size, info.st_blocks * 512) if allocated else info.st_size for info in infos)


class Claim:
    """A running download's share of the disk: what it wrote so far and what it will still write."""

    def __init__(self, total: int, on_disk: int) -> None:
        self.total = total
        self._on_disk = on_disk
        self._lock = threading.Lock()

    def move(self, count: int) -> None:
        """``count`` more bytes are on the disk (less, when negative)."""
        with self._lock:
            self._on_disk += count

    @property
    def on_disk(self) -> int:
        return min(self.total, max(0, self._on_disk))

    @property
    def remaining(self) -> int:
        return self.total - self.on_disk


class Ledger:
    """Thread-safe. ``used`` is what Hearth's store holds, running downloads counted exactly and the rest measured."""

    def __init__(self, store: Store, disk: Disk, tuning: Tuning) -> None:
        self._store, self._disk, self._tuning = store, disk, tuning
        self._lock = threading.RLock()
        self._claims: dict[str, Claim] = {}
        self._measured: dict[tuple[str, str], int] = {}
        self._reading: tuple[float, tuple[int, int] | None] | None = None
        self.limits = Limits()

    def changed(self, name: str) -> None:
        """A tree appeared, went or changed: measure it again."""
        with self._lock:
            self._measured.pop(("weights", name), None)
            self._measured.pop(("partial", name), None)

    def measure(self, kind: str, name: str) -> int:
        """Bytes of one tree, remembered until ``changed``."""
        with self._lock:
            key = (kind, name)
            if key not in self._measured:
                self._measured[key] = tree_bytes(self._store.base / kind / name, allocated=kind == "partial")
            return self._measured[key]

    def _used(self) -> int:
        claimed = {f"partial/{name}": claim.on_disk for name, claim in self._claims.items()}
        total = sum(claimed.values())
        for kind in ("weights", "partial"):
            for name in self._store.names(kind):
                if f"{kind}/{name}" not in claimed:
                    total += self.measure(kind, name)
        return total + tree_bytes(self._store.base / "trash")

    def status(self, *, fresh: bool = False) -> CapacityStatus:
        with self._lock:
            used = self._used()
            now = time.monotonic()
            if fresh or self._reading is None or now - self._reading[0] > self._tuning.disk_cache_seconds:
                self._reading = (now, self._disk())
            known = self._reading[1]
            info = os.statvfs(self._store.base)
            free = info.f_bavail * info.f_frsize
            if known is None:
                size = info.f_blocks * info.f_frsize
                capacity, other = size, max(0, size - free - used)
            else:
                capacity, other = known
                # A quota cannot promise more than the filesystem below it still has.
                capacity = min(capacity, used + other + free)
            reserved = sum(claim.remaining for claim in self._claims.values())
            return CapacityStatus(capacity, used, other, reserved)

    def fits(self, need: int) -> bool:
        return need <= self._free(self.status(fresh=True))

    def _free(self, status: CapacityStatus) -> int:
        ceiling = status.capacity_bytes
        if self.limits.high_watermark_bytes is not None:
            ceiling = min(ceiling, self.limits.high_watermark_bytes)
        return max(0, ceiling - status.used_bytes - status.other_bytes - status.reserved_bytes)

    def reserve(self, name: str, total: int, on_disk: int) -> Claim:
        """Promise ``total`` bytes to a download that has ``on_disk`` of them; Permanent(InsufficientCapacity)."""
        with self._lock:
            old = self._claims.pop(name, None)
            claim = Claim(total, min(total, on_disk))
            status = self.status(fresh=True)
            free = self._free(status)
            if claim.remaining > free:
                if old:
                    self._claims[name] = old
                raise no_room(claim.remaining, status, self.limits)
            self._claims[name] = claim
            return claim

    def release(self, name: str) -> None:
        with self._lock:
            self._claims.pop(name, None)
            self.changed(name)

    def check(self, need: int) -> None:
        """Before each request: somebody else may have filled the disk since the promise. Permanent as in reserve."""
        status = self.status()
        if need > status.free_bytes:
            raise no_room(need, status, self.limits)


def no_room(need: int, status: CapacityStatus, limits: Limits) -> Permanent:
    """The refusal, with what it needs, what is free and what is reserved."""
    mark = limits.high_watermark_bytes
    ceiling = status.capacity_bytes if mark is None else min(mark, status.capacity_bytes)
    free = max(0, ceiling - status.used_bytes - status.other_bytes)
    under = f" under the high watermark of {size_text(mark)}" if mark is not None else ""
    return Permanent(
        "agent:node:no-room",
        f"It needs {size_text(need)}; {size_text(free)} are free{under}, and running downloads have reserved "
        f"{size_text(status.reserved_bytes)}. Of the disk's {size_text(status.capacity_bytes)} weights take "
        f"{size_text(status.used_bytes)} and other files {size_text(status.other_bytes)}.",
        reason=Reason.INSUFFICIENT_CAPACITY,
        next_step="Evict something from this node, or pin to nodes with more room.",
    )
