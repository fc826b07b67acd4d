"""When a report is due: at once for a change of state, otherwise a heartbeat, with figures that move in steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from caches.agent.tuning import Tuning
from controlplane.clusters.documents import EntryStatus, NodeCacheStatus

_FIGURES = {"bytes_done": 0, "bytes_moved": 0, "rate_bytes_per_second": None, "eta_seconds": None, "last_used_at": None}


@dataclass(slots=True)
class _Sent:
    entry: EntryStatus
    at: float


@dataclass(slots=True)
class Reporter:
    """Decides from what was sent last. ``now`` is monotonic seconds."""

    tuning: Tuning
    interval_seconds: float = 30.0
    _entries: dict[str, _Sent] = field(default_factory=dict)
    _last: NodeCacheStatus | None = None
    _at: float | None = None

    def due(self, status: NodeCacheStatus, now: float) -> bool:
        """Something other than a figure differs from the last report, or the heartbeat's time has come."""
        if self._last is None or self._at is None or now - self._at >= self.interval_seconds:
            return True
        return _without_figures(status) != _without_figures(self._last)

    def economical(self, status: NodeCacheStatus, now: float) -> NodeCacheStatus:
        """The status with the figures of slow entries as they were reported last, so that readers see no change."""
        return replace(status, entries=tuple(self._step(entry, now) for entry in status.entries))

    def _step(self, entry: EntryStatus, now: float) -> EntryStatus:
        sent = self._entries.get(entry.digest)
        if sent is None or _bare(entry) != _bare(sent.entry):
            return entry
        share = abs(entry.bytes_done - sent.entry.bytes_done) / entry.bytes_total if entry.bytes_total else 1.0
        patience = self.tuning.progress_silence_intervals * self.interval_seconds
        if share >= self.tuning.progress_share or now - sent.at >= patience:
            return entry
        return replace(entry, **{name: getattr(sent.entry, name) for name in _FIGURES})

    def sent(self, status: NodeCacheStatus, now: float) -> None:
        """Remember what a successful report said."""
        old, self._entries = self._entries, {}
        for entry in status.entries:
            known = old.get(entry.digest)
            self._entries[entry.digest] = known if known and known.entry == entry else _Sent(entry, now)
        self._last, self._at = status, now


def _bare(entry: EntryStatus) -> EntryStatus:
    return replace(entry, **_FIGURES)  # type: ignore[arg-type]  # each value fits its field


def _without_figures(status: NodeCacheStatus) -> tuple[object, ...]:
    partial = {orphan.name for orphan in status.orphans if orphan.partial}
    whole = {orphan.name for orphan in status.orphans if not orphan.partial}
    return status.observed_generation, tuple(_bare(entry) for entry in status.entries), partial, whole
