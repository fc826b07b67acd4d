"""What the end of a job means for its entry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from caches.agent import publish
from caches.agent.backoff import retry_at
from caches.agent.ensure import Ensure, Tools
from caches.agent.entry import Entry
from caches.agent.evict import Evict
from caches.agent.limits import Stopped
from caches.agent.marker import Marker
from caches.agent.scrub import Scrub
from caches.agent.store import name_of
from caches.agent.verify import Findings
from controlplane.clusters.documents import EntryState, Reason
from controlplane.errors import Permanent, Transient

log = logging.getLogger(__name__)


def failed(entry: Entry, error: BaseException, tools: Tools, chance: Callable[[], float]) -> None:
    """Failed with one of the closed set of reasons, a message and the time of the next attempt."""
    transient, not_before = not isinstance(error, Permanent), None
    if isinstance(error, Permanent | Transient):
        reason, message = error.reason or Reason.INTERNAL, error.detail
        not_before = error.retry_at if isinstance(error, Transient) else None
    elif isinstance(error, OSError):
        reason, message = Reason.NODE_UNAVAILABLE, f"The node's disk: {error.strerror or error}."
    else:
        reason, message = Reason.INTERNAL, f"A fault in the agent: {type(error).__name__}."
        log.error("job failed", exc_info=error, extra={"digest": entry.digest})
    entry.record.attempts += 1
    at = retry_at(
        attempts=entry.record.attempts, transient=transient, now=tools.clock(), tuning=tools.tuning, chance=chance,
        not_before=not_before,
    )  # fmt: skip
    entry.fail(str(reason), message, at)
    log.warning("%s failed: %s: %s", entry.digest, reason, message)
    tools.event(f"Entry{entry.record.reason}", f"{entry.digest}: {message}")


def damage(entry: Entry, findings: Findings, tools: Tools) -> None:
    """The tree exists for nobody from here on, until it is repaired."""
    tools.store.unmark(entry.digest)
    entry.record.note_damage(findings.wrong, entry.line.verify_round)
    entry.save()
    entry.findings, entry.marker, entry.seen = findings, None, None
    entry.state, entry.message = EntryState.REPAIRING, f"Damaged: {', '.join(findings.wrong[:5])}"
    log.warning("%s is damaged: %s", entry.digest, findings.wrong)
    tools.event("EntryDamaged", f"{entry.digest}: {', '.join(findings.wrong[:20])}")


def ready(entry: Entry, marker: Marker, now: datetime) -> None:
    entry.marker, entry.findings, entry.refused, entry.seen = marker, None, None, None
    entry.state, entry.message, entry.bytes_done = EntryState.READY, "", marker.size_bytes
    entry.record.clear_failure()
    entry.record.ready_at = entry.record.ready_at or now


def collect(entry: Entry, tools: Tools, chance: Callable[[], float]) -> bool:
    """Take in a finished job. True when the disk must be looked at again to know the entry's state."""
    job, work = entry.job, entry.work
    if job is None or not job.done.is_set():
        return False
    entry.job = entry.work = None
    if isinstance(work, Ensure):
        return _ensured(entry, work, job.error, job.result, tools, chance)
    if isinstance(work, Scrub):
        return _scrubbed(entry, work, job.error, job.result, tools, chance)
    if isinstance(work, Evict):
        return _evicted(entry, job.error, tools, chance)
    return False


def _ensured(
    entry: Entry, work: Ensure, error: BaseException | None, marker: Marker | None, tools: Tools,
    chance: Callable[[], float],
) -> bool:  # fmt: skip
    entry.rate.clear()
    entry.note_progress(work)
    tools.ledger.changed(name_of(entry.digest))
    entry.refused = work.refused
    if marker is not None:
        now = tools.clock()
        entry.record.ready_at = now
        if work.thorough:  # otherwise a scrub did, or has still to come: a cheap look proves no byte
            entry.record.verified_at = now
            entry.record.verify_round = max(entry.record.verify_round, work.line.verify_round)
        entry.record.note_damage(work.damaged, work.line.verify_round)  # also what was found while it was repaired
        ready(entry, marker, now)
        entry.save()
        tools.event("EntryRepaired" if work.repair else "EntryReady", entry.digest)
        return False
    if error is None or isinstance(error, Stopped):
        return True
    failed(entry, error, tools, chance)
    return False


def _scrubbed(
    entry: Entry, work: Scrub, error: BaseException | None, findings: Findings | None, tools: Tools,
    chance: Callable[[], float],
) -> bool:  # fmt: skip
    if error is not None and not isinstance(error, Stopped):
        failed(entry, error, tools, chance)
        return False
    if findings is None:
        return True  # stopped, or the tree is gone
    if work.only is None:
        entry.record.verify_round = max(entry.record.verify_round, work.line.verify_round)
        entry.record.verified_at = tools.clock()
        entry.record.note_damage((), work.line.verify_round)
    if findings.wrong:
        damage(entry, findings, tools)
    else:
        marker = publish.remark(tools.store, work.marker, findings.intact) if findings.intact else work.marker
        ready(entry, marker, tools.clock())
    entry.save()
    return False


def _evicted(entry: Entry, error: BaseException | None, tools: Tools, chance: Callable[[], float]) -> bool:
    tools.ledger.changed(name_of(entry.digest))
    if error is not None:
        failed(entry, error, tools, chance)
        return False
    entry.forgotten()
    entry.state, entry.message = EntryState.ABSENT, ""
    tools.event("EntryEvicted", entry.digest)
    return False
