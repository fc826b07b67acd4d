"""Pins for pages and REST, with how far each one is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, Max, Prefetch, QuerySet, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from caches.domain.demand import required_count, selects
from caches.domain.pool_view import Placement, PlacementType
from caches.domain.text import plural
from caches.models import Pin, PoolLoop
from caches.selectors.entries import UNKNOWN, entries_list
from caches.selectors.nodes import Targets
from caches.selectors.pin_artifacts import gate_artifact
from controlplane.accounts.access import is_within, targets_filter
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.models import Node, NodePool
from controlplane.errors import Missing


@dataclass(frozen=True, slots=True)
class PinCondition:
    """A condition computed from rows; ``last_transition`` None: they do not tell since when it is so."""

    type: str
    status: str
    reason: str
    message: str
    last_transition: datetime | None


@dataclass(frozen=True, slots=True)
class PinStatus:
    """Nodes that shall hold the weights, that hold them verified, and that failed; of a pin of an image alone, that.
    ``eta_seconds`` None: unknown."""

    target: int
    ready: int
    failed: int
    eta_seconds: float | None
    conditions: tuple[PinCondition, ...]


def pins_list(*, targets: Targets = None) -> QuerySet[Pin]:
    """Live pins with version, artifact and pools; a pin is visible when one of its pools is."""
    related = ("version__model", "version__artifact", "version__image__artifact", "image__artifact", "endpoint")
    rows = Pin.objects.filter(removed_at__isnull=True).select_related(*related)
    rows = rows.annotate(model_name=Coalesce("version__model__name", Value("")))
    if targets is not None:
        visible = Pin.objects.filter(targets_filter(targets, cluster="pools__cluster__name", pool="pools__name"))
        rows = rows.filter(pk__in=visible.values("pk"))
    pools = NodePool.objects.select_related("cluster").order_by("cluster__name", "name")
    manifests = [f"{path}artifact__manifest" for path in ("version__", "version__image__", "image__")]
    return rows.defer(*manifests).prefetch_related(Prefetch("pools", queryset=pools))


def pin_get(*, pin_id: UUID, targets: Targets = None) -> Pin:
    """One live pin. Raises errors.Missing, also for a removed one."""
    found = pins_list(targets=targets).filter(pk=pin_id).first()
    if found is None:
        raise Missing("pin:user:not-found", f"There is no pin {pin_id}.", next_step="List the pins.")
    return found


def pin_pools(pin: Pin, targets: Targets) -> Sequence[str]:
    """The full names of its pools that the reader may see; ``pin.pools`` are all, for whoever decides over it."""
    return [pool.full_name for pool in pin.pools.all() if is_within(targets, pool.full_name)]


def pin_statuses(pins: Sequence[Pin], *, now: datetime | None = None) -> Mapping[UUID, PinStatus]:
    """Status of each pin in a constant number of queries. Pins come from pins_list()."""
    now = now or timezone.now()
    pool_ids = {pool.id for pin in pins for pool in pin.pools.all()}
    nodes = _nodes_by_pool(pool_ids)
    copies = _Copies(pins, pool_ids, now)
    refusals = _refusals(pool_ids)
    return {pin.id: _status(pin, nodes, copies, refusals.get(str(pin.id), ())) for pin in pins}


def _nodes_by_pool(pool_ids: Iterable[UUID]) -> Mapping[UUID, Sequence[Node]]:
    found: dict[UUID, list[Node]] = defaultdict(list)
    live = Node.objects.filter(pool__in=list(pool_ids), lost_at__isnull=True)
    for node in live.only("id", "pool_id", "labels"):
        found[node.pool_id].append(node)  # type: ignore[index]  # filtered by pool
    return found


class _Group(NamedTuple):
    """Copies of one artifact that are alike: all of a pool, or one by itself where it matters which node it is on."""

    shown_state: str
    desired: str
    copies: int
    since: datetime | None  # the newest
    estimated: int  # how many of them have an estimate
    eta_seconds: float | None  # the longest


class _Copies:
    """The copies that pins ask about. Where a pin takes every node of its pools the database counts them."""

    def __init__(self, pins: Sequence[Pin], pool_ids: Iterable[UUID], now: datetime) -> None:
        rows: QuerySet[Any] = entries_list(now=now).filter(node__pool__in=list(pool_ids), node__lost_at__isnull=True)
        self._rows = rows.prefetch_related(None).order_by()
        choosing = {_artifact_id(pin) for pin in pins if pin.node_selector}
        whole = {_artifact_id(pin) for pin in pins if not pin.node_selector}
        self._by_pool = self._groups("node__pool", whole) if whole else {}
        self._by_node = self._groups("node", choosing) if choosing else {}

    def _groups(self, of: str, artifacts: Iterable[UUID | None]) -> Mapping[tuple[UUID, UUID], list[_Group]]:
        found: dict[tuple[UUID, UUID], list[_Group]] = defaultdict(list)
        rows = self._rows.filter(artifact__in=list(artifacts)).values("artifact", of, "shown_state", "desired")
        counted = rows.annotate(
            copies=Count("pk"), since=Max("shown_since"), estimated=Count("eta_seconds"), eta=Max("eta_seconds")
        )
        fields = ("artifact", of, "shown_state", "desired", "copies", "since", "estimated", "eta")
        for artifact, place, *facts in counted.values_list(*fields):
            found[artifact, place].append(_Group(*facts))
        return found

    def of(self, pin: Pin, pool: NodePool, nodes: Iterable[Node]) -> list[_Group]:
        """Those of the pin's artifact on these nodes of the pool, which are the ones that the pin selects."""
        artifact = _artifact_id(pin)
        if artifact is None:
            return []  # of an image that has none any more
        if not pin.node_selector:
            return self._by_pool.get((artifact, pool.id), [])
        return [group for node in nodes for group in self._by_node.get((artifact, node.id), ())]


def _artifact_id(pin: Pin) -> UUID | None:
    artifact = gate_artifact(pin)
    return artifact.pk if artifact is not None else None


def _refusals(pool_ids: Iterable[UUID]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for plan in PoolLoop.objects.filter(pool__in=list(pool_ids)).values_list("plan", flat=True):
        for refusal in (plan or {}).get("refusals", []):
            found[refusal.get("pin_id", "")].append(refusal)
    return found


def _status(
    pin: Pin,
    nodes: Mapping[UUID, Sequence[Node]],
    copies: _Copies,
    refusals: Sequence[Mapping[str, Any]],
) -> PinStatus:
    counts, mine = _Counts(), list[_Group]()
    for pool in pin.pools.all():
        live = nodes.get(pool.id, ())
        matching = [node for node in live if selects(pin.node_selector, node.labels)] if pin.node_selector else live
        here = copies.of(pin, pool, matching)
        counts += _pool_counts(pin, len(matching), here)
        mine += here
    return PinStatus(
        target=counts.target,
        ready=counts.ready,
        failed=counts.failed,
        eta_seconds=_eta(mine, counts),
        conditions=(_warm(pin, counts, _since(pin, mine)), _admitted(refusals)),
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of a pin in one pool, or their sum. ``ready`` and ``unknown`` fill no more than what is asked for there."""

    matching: int = 0
    target: int = 0
    ready: int = 0
    unknown: int = 0
    failed: int = 0

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))


def _pool_counts(pin: Pin, matching: int, groups: Sequence[_Group]) -> _Counts:
    states: Counter[str] = Counter()
    for group in groups:
        states[group.shown_state] += group.copies
    placement = Placement(PlacementType(pin.placement_type), pin.placement_value)
    # A copy that was asked for and has no node to be on is wanted all the same, as in the pool's coverage.
    asked = pin.placement_value if placement.type is PlacementType.COUNT else 0
    target = max(asked, required_count(placement, matching))
    ready = min(target, states[EntryState.READY])
    wanted = [group for group in groups if placement.type is PlacementType.ALL or group.desired == Action.ENSURE]
    return _Counts(
        matching=matching,
        target=target,
        ready=ready,
        unknown=min(target - ready, states[UNKNOWN]),
        failed=sum(group.copies for group in wanted if group.shown_state == EntryState.FAILED),
    )


def _eta(groups: Sequence[_Group], counts: _Counts) -> float | None:
    missing = counts.target - counts.ready
    if not missing:
        return 0.0 if counts.target else None
    running = [group for group in groups if group.shown_state == EntryState.DOWNLOADING]
    known = sum(group.estimated for group in running)
    # One node without an estimate, or not begun, leaves the whole without one.
    if known < missing or known < sum(group.copies for group in running):
        return None
    return max(group.eta_seconds for group in running if group.eta_seconds is not None)


def _since(pin: Pin, groups: Sequence[_Group]) -> datetime:
    """When the newest target took its state; nothing was so for the pin before there was a pin."""
    return max([pin.created_at, *(group.since for group in groups if group.since is not None)])


def _warm(pin: Pin, counts: _Counts, since: datetime) -> PinCondition:
    target, ready, unknown = counts.target, counts.ready, counts.unknown
    warm = f"{ready} of {plural(target, 'node')} {'is' if target == 1 else 'are'} warm"
    if target and ready >= target:
        return PinCondition("Warm", "True", "AllReady", f"{warm}.", since)
    if pin.suspended:
        return PinCondition(
            "Warm", "False", "Suspended", "Nothing is fetched while the pin is suspended.", pin.updated_at
        )
    if not counts.matching:
        return PinCondition("Warm", "False", "NoNodes", "No node of its pools matches the pin.", None)
    if ready + unknown >= target:
        silent = f"{plural(unknown, 'node')} {'has' if unknown == 1 else 'have'} not reported lately."
        return PinCondition("Warm", "Unknown", "NodesSilent", silent, None)
    reason = "Failed" if counts.failed else "Warming"
    return PinCondition("Warm", "False", reason, f"{warm}, {counts.failed} failed.", since)


def _admitted(refusals: Sequence[Mapping[str, Any]]) -> PinCondition:
    if not refusals:
        return PinCondition("Admitted", "True", "Fits", "Every target node has or can make the room.", None)
    first = refusals[0]
    more = f" (and {plural(len(refusals) - 1, 'more node')})" if len(refusals) > 1 else ""
    return PinCondition(
        "Admitted", "False", str(first.get("reason", "Refused")), f"{first.get('detail', '')}{more}", None
    )
