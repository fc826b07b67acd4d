"""Times from measured transfers only. Where nothing was measured the answer is None, never a guess."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from caches.domain.pool_view import PoolView


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer to come, in the order in which the planner lets them start."""

    node_uid: str
    connection: str
    bytes: int
    running: bool = False


@dataclass(frozen=True, slots=True)
class Estimator:
    """Measured rates under the pool's caps, cached by connection."""

    view: PoolView
    _rates: dict[str, float | None] = field(default_factory=dict)

    def rate(self, connection: str) -> float | None:
        """Bytes per second of one transfer from this connection to a node of the pool, or None."""
        if connection not in self._rates:
            self._rates[connection] = self._rate(connection)
        return self._rates[connection]

    def _rate(self, connection: str) -> float | None:
        measured = self.view.throughput.get(connection)
        if measured is None or measured.samples < 1 or not measured.bytes_per_second:
            return None
        cap = self.view.policy.node_bytes_per_second
        if cap is None:
            return measured.bytes_per_second
        # A node's cap is shared by the transfers that it runs at once.
        return min(measured.bytes_per_second, cap / max(1, self.view.policy.max_downloads_per_node))

    def seconds(self, connection: str, count: int) -> float | None:
        """How long one transfer of ``count`` bytes takes by itself."""
        rate = self.rate(connection)
        return None if rate is None or rate <= 0 else count / rate

    def makespan(self, transfers: Iterable[Transfer]) -> float | None:
        """Seconds until the last of them has arrived, each taking a free slot of its node and of the pool in turn.

        None as soon as one of them has no measured rate.
        """
        policy = self.view.policy
        pool = [0.0] * max(1, policy.max_downloads)
        nodes: dict[str, list[float]] = {}
        longest = 0.0
        for transfer in sorted(transfers, key=lambda item: not item.running):
            seconds = self.seconds(transfer.connection, transfer.bytes)
            if seconds is None:
                return None
            lanes = nodes.setdefault(transfer.node_uid, [0.0] * max(1, policy.max_downloads_per_node))
            # What runs already holds its slots, even where the limits were lowered meanwhile.
            end = seconds if transfer.running else max(lanes[0], pool[0]) + seconds
            heapq.heapreplace(lanes, end)
            heapq.heapreplace(pool, end)
            longest = max(longest, end)
        return longest

    def basis(self, connections: Iterable[str]) -> int:
        """How many measured transfers these connections' rates rest on."""
        known = self.view.throughput
        return sum(known[name].samples for name in set(connections) if name in known)
