"""Confirming evictions: first the ready-label goes, then the cluster is asked afresh who uses the bytes.

What the watcher saw is never enough. A plan is made again with each fresh listing, until it evicts only what was
confirmed; where no listing can be had, the node's references are unknown and the planner evicts nothing there. On a
cluster whose scheduler may act on a label for a moment after it is gone, the listing waits for that moment: the
eviction is *leaving* until then, and a later round asks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from datetime import datetime, timedelta

import structlog

from caches.domain.labels import ready_label
from caches.domain.pacing import hold_back
from caches.domain.plans import Plan
from caches.domain.pool_view import EntryView, NodeView, PoolView
from caches.domain.states import is_present
from caches.services.loop.fan_out import fan_out
from caches.services.loop.round_budget import RoundBudget
from controlplane.clusters.documents import Action
from controlplane.clusters.gateway import ClusterGateway, GatewayError, Throttled

ROUNDS = 3

log = structlog.get_logger(__name__)

Key = tuple[str, str]  # node uid, digest


@dataclasses.dataclass(frozen=True, slots=True)
class Confirmed:
    """A plan in which every eviction is confirmed, and what will go next: their labels are away and stay away."""

    plan: Plan
    leaving: frozenset[Key]


@dataclasses.dataclass(slots=True)
class _Desk:
    """What was asked and answered in this round."""

    view: PoolView
    gateway: ClusterGateway
    lag: timedelta
    now: datetime
    budget: RoundBudget | None = None
    cleared: set[Key] = dataclasses.field(default_factory=set)
    leaving: set[Key] = dataclasses.field(default_factory=set)
    in_use: dict[str, frozenset[str] | None] = dataclasses.field(default_factory=dict)

    def ask(self, wanted: Set[Key]) -> None:
        """Take the labels of these entries away, then list the consumers of their nodes. Where no answer can be had,
        or not in time, the node's use is unknown."""
        self.cleared |= wanted
        digests: dict[str, set[str]] = {}
        for uid, digest in sorted(wanted):
            digests.setdefault(uid, set()).add(digest)
        silent = {uid for uid, used in self.in_use.items() if used is None}
        nodes = [node for node in self.view.nodes if node.uid in digests and node.uid not in silent]
        nodes.sort(key=_goes_on, reverse=True)
        known = dict(self.in_use)
        self.in_use.update(dict.fromkeys((node.uid for node in nodes), None))
        answers, failure = fan_out(lambda node: self._ask(node, digests[node.uid]), nodes, budget=self.budget)
        if failure is not None:
            raise failure
        for answer in answers:
            if answer.result is None:
                continue
            uid, (waiting, used) = answer.item.uid, answer.result
            self.leaving |= {(uid, digest) for digest in waiting}
            if used is not None:
                self.in_use[uid] = used
            elif uid in known:
                self.in_use[uid] = known[uid]
            else:
                del self.in_use[uid]

    def _ask(self, node: NodeView, digests: Set[str]) -> tuple[Set[str], frozenset[str] | None] | None:
        """What waits for the lag, and what is used where that was asked. None without an answer."""
        try:
            self.gateway.set_node_labels(node.name, node.uid, {self._label(digest): None for digest in sorted(digests)})
            waiting = {digest for digest in digests if self._may_still_be_chosen(node, digest)}
            if not digests - waiting:
                return waiting, None
            consumers = self.gateway.consumers(node.name, node.uid)
            return waiting, frozenset().union(*(consumer.digests for consumer in consumers))
        except Throttled:
            raise  # of the whole cluster: asking for the next node would be asking too much again
        except GatewayError as error:
            log.warning("eviction.unconfirmed", node=node.name, error=f"{type(error).__name__}: {error}")
            return None

    def _label(self, digest: str) -> str:
        return ready_label(digest, self.view.artifacts[digest].kind)

    def _may_still_be_chosen(self, node: NodeView, digest: str) -> bool:
        entry = next((entry for entry in node.entries if entry.digest == digest), None)
        return entry is not None and is_present(entry.state) and self.now < self._unlabeled(node, entry) + self.lag

    def _unlabeled(self, node: NodeView, entry: EntryView) -> datetime:
        """Since when the label is away: from now on where the node was seen with it."""
        if entry.unlabeled_at is None or self._label(entry.digest) in node.labels:
            return self.now
        return entry.unlabeled_at


def _goes_on(node: NodeView) -> bool:
    """Whether its agent was told to evict before: others must not take the turn of what goes on."""
    return any(entry.desired is Action.EVICT for entry in node.entries)


def evictions_confirm(
    *,
    view: PoolView,
    gateway: ClusterGateway,
    decide: Callable[[PoolView], Plan],
    now: datetime,
    lag: timedelta = timedelta(0),
    budget: RoundBudget | None = None,
) -> Confirmed:
    """The plan of ``decide`` with confirmed evictions only: label gone for ``lag``, no use in a listing after that."""
    plan, desk = decide(view), _Desk(view, gateway, lag, now, budget)
    for _ in range(ROUNDS):
        if _evicted(plan) <= desk.cleared:
            return _confirmed(plan, desk)
        desk.ask(_evicted(plan) - desk.cleared)
        plan = decide(_with_use(view, desk.in_use))
    # It keeps wanting others: count those as used, so that only confirmed ones go this time.
    late = _evicted(plan) - desk.cleared
    in_use = dict(desk.in_use)
    for uid, digest in late:
        known = in_use.get(uid, frozenset())
        in_use[uid] = None if known is None else known | {digest}
    plan = decide(_with_use(view, in_use)) if late else plan
    if not _evicted(plan) <= desk.cleared:
        plan = decide(_with_use(view, dict.fromkeys((node.uid for node in view.nodes), None)))
    return _confirmed(plan, desk)


def _confirmed(plan: Plan, desk: _Desk) -> Confirmed:
    leaving = frozenset(desk.leaving & _evicted(plan))
    return Confirmed(hold_back(plan, leaving), leaving)


def _evicted(plan: Plan) -> set[Key]:
    return {(eviction.node_uid, eviction.digest) for eviction in plan.evictions}


def _with_use(view: PoolView, in_use: Mapping[str, frozenset[str] | None]) -> PoolView:
    nodes = tuple(
        dataclasses.replace(node, in_use=in_use[node.uid]) if node.uid in in_use else node for node in view.nodes
    )
    return dataclasses.replace(view, nodes=nodes)
