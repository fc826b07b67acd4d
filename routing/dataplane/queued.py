"""A request that waits: for any instance, for room, or for another when none of those it was meant for was reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from routing.dataplane.refusals import NOBODY, UNREACHABLE, queue_full

if TYPE_CHECKING:
    from routing.dataplane.client import Client
    from routing.dataplane.fleet import Variant
    from routing.dataplane.router import Shared
    from routing.dataplane.routes import Refusal, Request, Route
    from routing.domain.deciding import Decision

QUEUE_BYTES = 256 * 1024 * 1024  # of bodies that wait in one queue
MOST_CUT = 3  # as with several instances: a request that brings them down is not brought to all there will be
AGAIN_SECONDS = 0.5


@dataclass(slots=True)
class Lost:
    """What became of a request that reached nobody. ``cut``: how often it was sent and broken off before any byte.
    ``since`` and ``until`` when it waits, from ``again_at`` on it is tried anew, and before that as soon as there is
    another configuration than that of ``variant``."""

    cut: int = 0
    since: float = 0.0
    until: float = 0.0
    waited_after: int = -1  # as often as it had been cut then
    again_at: float = 0.0
    variant: Variant | None = None

    def is_due(self, variant: Variant, now: float) -> bool:
        """Whoever failed is left alone for a while, by those who wait too."""
        if variant is not self.variant:
            return True
        return now >= self.again_at and len(variant.ejected(now)) < len(variant.instances)


class Queued:
    """The part of an exchange that waits. ``_placed_at``: when it came, or had waited; None once it was sent, and
    where its way is no measure of a router's."""

    __slots__ = ("_asked_at", "_client", "_lost", "_placed_at", "_request", "_route", "_shared")
    _asked_at: float
    _client: Client | None
    _lost: Lost | None  # of who reached nobody
    _placed_at: float | None
    _request: Request
    _route: Route | None
    _shared: Shared

    def _go(self, route: Route, decision: Decision, now: float) -> None:
        raise NotImplementedError

    def _go_again(self, route: Route, decision: Decision, now: float) -> None:
        raise NotImplementedError

    def refuse(self, refusal: Refusal) -> None:
        raise NotImplementedError

    def _wait(self, variant: Variant, until: float, now: float) -> bool:
        """False where there is no room: then it was refused."""
        waiting, size = variant.waiting, len(self._request.body)
        if len(waiting) >= variant.config.queue_requests or waiting.bytes + size > QUEUE_BYTES:
            self.refuse(queue_full(waiting.until(now) - now))
            return False
        waiting.add(self, until, size)
        variant.figures.most_queued = max(variant.figures.most_queued, len(variant.waiting))
        return True

    def _cut_off(self) -> Lost:
        """It was sent, and no byte came back."""
        self._lost = lost = self._lost or Lost()
        lost.cut += 1
        return lost

    def _unreached(self) -> None:
        """None of its candidates answered a byte. Under another configuration it begins anew; where somebody else takes
        their place it waits for that: whoever ends instances, or starts them again, tells routers a moment later."""
        assert self._route is not None
        now, variant = self._shared.now(), self._shared.fleet.current(self._route.variant)
        self._lost = lost = self._lost or Lost()
        self._placed_at = None
        if variant is None or lost.cut >= MOST_CUT:
            return self.refuse(UNREACHABLE)
        if first := lost.waited_after < lost.cut:
            lost.since, lost.until, lost.waited_after = now, now + variant.config.queue_seconds, lost.cut
        elif now >= lost.until:
            return self.refuse(UNREACHABLE)
        if variant is not self._route.variant:
            self._route = self._under(variant)
            decision = variant.decide(self._route.key, now, len(self._request.body))
            if not variant.waits(decision):
                return self._go_again(self._route, decision, now)
        elif not variant.config.queue_unreached:
            return self.refuse(UNREACHABLE)
        lost.variant, lost.again_at = variant, now + AGAIN_SECONDS
        if self._client is not None:
            self._client.answer_by = 0.0
        if self._wait(variant, lost.until, now):
            variant.figures.queued += first

    def _under(self, variant: Variant) -> Route:
        """Its key is another where the policy is."""
        assert self._route is not None
        return self._route.under(self._shared.fleet.endpoints[variant.names[0]], variant)

    # what the queue does

    def place(self) -> bool:
        """Try again, under the configuration of now. False when it has to wait on, and those behind it too."""
        assert self._route is not None
        variant, now = self._shared.fleet.current(self._route.variant), self._shared.now()
        if variant is None:
            self._leave_queue()
            self.give_up()
            return True
        if (lost := self._lost) is not None and not lost.is_due(variant, now):
            return True
        if variant is not self._route.variant:
            self._route = self._under(variant)
        decision = variant.decide(self._route.key, now, len(self._request.body))
        if variant.waits(decision):
            return False
        self._leave_queue()
        if lost is None:
            variant.figures.waited.add(now - self._asked_at)
            self._placed_at = now
            self._go(self._route, decision, now)
        else:
            variant.figures.waited.add(now - lost.since)
            self._go_again(self._route, decision, now)
        return True

    def give_up(self) -> None:
        """It waited long enough."""
        variant = self._shared.fleet.current(self._route.variant) if self._route is not None else None
        was_there = variant is not None and bool(variant.instances) and self._lost is not None
        self.refuse(UNREACHABLE if was_there else NOBODY)

    def _leave_queue(self) -> None:
        if self._route is not None:
            self._route.variant.waiting.discard(self)
