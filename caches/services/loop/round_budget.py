"""How long one round may go on asking the cluster, so that no size of a pool and no slow cluster meets the limit of a
task: what was not asked in time is put off, and the next round, which is queued at once, goes on with it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from django.conf import settings


@dataclass(slots=True)
class RoundBudget:
    """``ends`` is a time of the monotonic clock. Shares of a budget put off into the same account."""

    ends: float
    _put_off: list[int] = field(default_factory=list)

    @classmethod
    def open(cls) -> RoundBudget:
        """Half of a task's soft limit from now: the other half is for what was begun, and for remembering it."""
        return cls(time.monotonic() + settings.CELERY_TASK_SOFT_TIME_LIMIT / 2)

    def share(self, part: float) -> RoundBudget:
        """A part (0..1) of what is left, so that one kind of work cannot keep all others waiting."""
        now = time.monotonic()
        return RoundBudget(now + max(0.0, self.ends - now) * part, self._put_off)

    @property
    def spent(self) -> bool:
        return time.monotonic() >= self.ends

    def put_off(self, count: int) -> None:
        """So many things were left to the next round."""
        if count:
            self._put_off.append(count)

    @property
    def left_over(self) -> int:
        """How many things the next round has to go on with."""
        return sum(self._put_off)
