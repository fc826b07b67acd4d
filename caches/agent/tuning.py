"""Every constant of the agent, in one place. Limits that people set travel in ``documents.Limits`` instead."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes are bytes, times seconds, rates bytes per second."""

    segment_bytes: int = 16 * MIB  # one request, synced to the disk when it is complete
    checkpoint_bytes: int = 2 * MIB  # the unit of resume: what a kill may cost again, once for each running request
    write_bytes: int = 256 * 1024  # largest single pwrite, so that a throttle and a cancel are felt soon
    recheck_bytes: int = 1 * MIB  # a file without a content checksum that is larger has its revision checked at the end
    stall_seconds: float = 30.0  # no byte for so long: the range is asked for again from its last byte
    range_attempts: int = 5  # in a row without one new byte, then the whole download fails and backs off
    range_pause_seconds: float = 0.5  # doubled for each attempt in a row
    range_pause_most_seconds: float = 8.0

    transient_first_seconds: float = 5.0
    transient_most_seconds: float = 600.0
    permanent_first_seconds: float = 60.0
    permanent_most_seconds: float = 3600.0
    backoff_jitter: float = 0.2  # share of the wait that is left to chance, so that a fleet does not come back at once

    @property
    def retry_most(self) -> float:
        """No retry is further away than this, unless the clock was set back since it was planned."""
        return max(self.transient_most_seconds, self.permanent_most_seconds)

    progress_share: float = 0.05  # progress figures change in a report after this share of the bytes…
    progress_silence_intervals: int = 5  # …or after so many intervals, so that a slow download does not look stuck
    unassigned_interval_seconds: float = 5.0  # between reports while no pool has given its own interval
    rate_window_seconds: float = 10.0

    scrub_bytes_per_second: int = 200 * MIB  # reading for a scrub must not starve an engine that loads its weights
    glance_seconds: float = 30.0  # between two looks at the files of a Ready tree, longer for more than a thousand
    read_bytes: int = 1 * MIB  # one read of a scrub or a read-back
    disk_cache_seconds: float = 1.0  # how long a reading of the disk's free bytes is believed
    lock_wait_seconds: float = 30.0  # how long a second agent waits for the store before it gives up
    desired_wait_seconds: float = 5.0  # longest single wait for a new generation
