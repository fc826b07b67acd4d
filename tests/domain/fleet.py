"""A faithful little executor for planner tests: what agents would do with a plan's lines, and random pools to plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from caches.domain.capacity import store_limit
from caches.domain.plans import DesiredItem, Plan
from caches.domain.pool_view import EntryView, HoldView, NodeView, PinView, PoolPolicy, PoolView
from caches.domain.states import is_in_flight, is_present
from controlplane.clusters.documents import Action, EntryState, NodeState
from tests.domain.world import LONG_AGO, NOW, count, entry, measured, node, percent, pin, view

DIGESTS = tuple(f"d{i}" for i in range(7))
SIZES = dict(zip(DIGESTS, (5, 10, 20, 30, 40, 60, 90), strict=True))


def told(world: PoolView, made: Plan, *, evict: bool = True) -> PoolView:
    """The pool right after every agent has read its lines: evictions done, new transfers queued, the rest withdrawn."""
    nodes = []
    for each in world.nodes:
        lines = {item.digest: item for item in made.desired.get(each.uid, ())}
        nodes.append(each if each.state is NodeState.LOST else obey(world, each, lines, evict=evict))
    return replace(world, nodes=tuple(nodes))


def obey(world: PoolView, each: NodeView, lines: Mapping[str, DesiredItem], *, evict: bool = True) -> NodeView:
    """One agent: Evict lines first, then Ensure lines; what runs and is no longer desired leaves a partial tree."""
    entries = {item.digest: item for item in each.entries}
    partials = dict(each.partials)
    orphans = each.orphan_bytes
    for digest, line in lines.items():
        if line.action is Action.EVICT and evict:
            entries.pop(digest, None)
            orphans -= partials.pop(digest, 0)
        elif line.action is Action.EVICT and digest in entries:
            entries[digest] = replace(entries[digest], desired=Action.EVICT)
    for digest, item in list(entries.items()):
        if digest not in lines and (is_in_flight(item.state) or item.state is EntryState.FAILED):
            del entries[digest]
            partials[digest] = item.bytes_on_disk
            orphans += item.bytes_on_disk
    for digest, line in lines.items():
        old = entries.get(digest)
        if line.action is Action.ENSURE and (old is None or old.state in (EntryState.ABSENT, EntryState.EVICTING)):
            size = world.artifacts[digest].size_bytes
            there = partials.pop(digest, 0)
            orphans -= there
            entries[digest] = EntryView(digest, EntryState.QUEUED, size, there, Action.ENSURE)
        elif line.action is Action.ENSURE and old is not None:
            entries[digest] = replace(old, desired=Action.ENSURE)
    kept = tuple(item for item in entries.values() if item.state is not EntryState.ABSENT)
    return replace(each, entries=kept, partials=partials, orphan_bytes=max(0, orphans))


def arrived(world: PoolView) -> PoolView:
    """Every running transfer has ended well."""
    return replace(
        world,
        nodes=tuple(
            replace(each, entries=tuple(_finished(item) if is_in_flight(item.state) else item for item in each.entries))
            for each in world.nodes
        ),
    )


def _finished(item: EntryView) -> EntryView:
    return replace(item, state=EntryState.READY, bytes_on_disk=item.size_bytes, ready_at=NOW)


def booked(world: PoolView, each: NodeView, made: Plan) -> int:
    """Bytes that this node would hold once the plan is carried out, evictions included."""
    lines = {item.digest: item.action for item in made.desired.get(each.uid, ())}
    total = 0
    for digest in lines.keys() | {item.digest for item in each.entries}:
        item = next((item for item in each.entries if item.digest == digest), None)
        action = lines.get(digest)
        if action is Action.ENSURE:
            total += max(world.artifacts[digest].size_bytes, item.bytes_on_disk if item is not None else 0)
        elif action is None and item is not None and item.state is not EntryState.ABSENT:
            total += item.bytes_on_disk
    resumed = sum(size for digest, size in each.partials.items() if digest in lines)
    return total - resumed


def limit(world: PoolView, each: NodeView) -> int:
    found = store_limit(each, world.policy)
    return found if found is not None else 0


_CALM = [EntryState.READY] * 5 + [EntryState.DOWNLOADING]
_WILD = [EntryState.READY] * 3 + [state for state in EntryState if state is not EntryState.LOST]


@st.composite
def entries(draw: st.DrawFn, digest: str, calm: bool) -> EntryView:
    state = draw(st.sampled_from(_CALM if calm else _WILD))
    size = SIZES[digest]
    fields: dict[str, Any] = {"evict_requested": not calm and draw(st.integers(0, 9)) == 0}
    if is_in_flight(state) or state is EntryState.FAILED:
        fields["on_disk"] = draw(st.integers(0, size - 1))
    if state is EntryState.FAILED:
        fields |= {"reason": "SourceUnavailable", "retry_at": draw(st.sampled_from([None, NOW + timedelta(minutes=5)]))}
    if is_present(state):
        fields["last_used_at"] = draw(st.sampled_from([None, LONG_AGO, NOW - timedelta(hours=1), NOW]))
    if not calm:
        fields["desired"] = draw(st.sampled_from([Action.ENSURE, Action.ENSURE, Action.EVICT, None]))
    return entry(digest, state, size, **fields)


@st.composite
def nodes(draw: st.DrawFn, number: int, calm: bool) -> NodeView:
    digests = draw(st.lists(st.sampled_from(DIGESTS), unique=True, max_size=4))
    some = st.frozensets(st.sampled_from(DIGESTS), max_size=2)
    return node(
        f"n{number}",
        *[draw(entries(digest, calm)) for digest in digests],
        capacity=draw(st.sampled_from([40, 80, 100, 150])),
        state=NodeState.READY if calm else draw(st.sampled_from([NodeState.READY] * 6 + list(NodeState))),
        labels={"zone": draw(st.sampled_from("ab"))},
        other=0 if calm else draw(st.sampled_from([0, 10, 30])),
        orphans=0 if calm else draw(st.sampled_from([0, 0, 5])),
        in_use=frozenset() if calm else draw(st.one_of(some, st.none())),
        joined_at=LONG_AGO if calm else draw(st.sampled_from([LONG_AGO, NOW - timedelta(minutes=1)])),
    )


@st.composite
def pins(draw: st.DrawFn, digest: str, calm: bool) -> PinView:
    every = pin(digest).placement
    return pin(
        digest,
        draw(st.sampled_from([100, 500, 900])),
        placement=draw(st.sampled_from([every, every, count(1), count(2, "zone"), percent(50)])),
        node_selector={} if calm else draw(st.sampled_from([{}, {}, {"zone": "a"}])),
        needed_at=draw(st.sampled_from([None, None, NOW + timedelta(hours=1)])),
        suspended=not calm and draw(st.integers(0, 7)) == 0,
    )


@st.composite
def pools(draw: st.DrawFn) -> PoolView:
    """Up to four nodes and seven artifacts. Half of them are wild (any state of anything), half calm and crowded, where
    pins of different priorities meet on full disks that nothing protects."""
    calm = draw(st.booleans())
    digests = draw(st.lists(st.sampled_from(DIGESTS), unique=True, min_size=3 if calm else 0, max_size=7))
    holds = [] if calm else draw(st.lists(st.sampled_from(DIGESTS), unique=True, max_size=2))
    policy = PoolPolicy(
        high_watermark=draw(st.sampled_from([0.9, 1.0])),
        low_watermark=0.8,
        max_downloads_per_node=draw(st.integers(1, 3)),
        max_downloads=draw(st.integers(1, 8)),
        settle=timedelta(0) if calm else draw(st.sampled_from([timedelta(0), timedelta(minutes=5)])),
    )
    return view(
        [draw(nodes(i, calm)) for i in range(draw(st.integers(1, 4)))],
        [draw(pins(digest, calm)) for digest in digests],
        SIZES,
        policy=policy,
        holds=tuple(HoldView(digest, "rollback", None) for digest in holds),
        throughput=measured(),
    )
