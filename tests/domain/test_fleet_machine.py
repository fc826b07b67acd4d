"""A small fleet lives through random events while every plan is carried out by a faithful executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from caches.domain.planning import plan
from caches.domain.plans import MoveReason, Plan, WaitReason
from caches.domain.pool_view import EntryView, HoldView, NodeView, PinView, PoolPolicy
from caches.domain.states import is_in_flight, is_present
from controlplane.clusters.documents import Action, EntryState, NodeState
from tests.domain.fleet import DIGESTS, SIZES, booked, limit, obey
from tests.domain.world import GIB, NOW, count, entry, node, percent, pin, view

_POLICY = PoolPolicy(
    high_watermark=0.9,
    low_watermark=0.7,
    max_downloads_per_node=2,
    max_downloads=4,
    evict_grace=timedelta(minutes=10),
    settle=timedelta(seconds=30),
)
_GOING_ON = (MoveReason.IN_FLIGHT, MoveReason.REPAIR, MoveReason.RETRY)
numbers = st.integers(0, 50)
digests = st.sampled_from(DIGESTS)


class Fleet(RuleBasedStateMachine):
    """Every rule is one event; after each, the pool is planned and every agent that is up obeys."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.born = 0
        self.world = view([], [], SIZES, policy=_POLICY)
        self.filled: set[str] = set()

    @initialize(capacities=st.lists(st.sampled_from([50, 100, 200]), min_size=1, max_size=4))
    def start(self, capacities: list[int]) -> None:
        for capacity in capacities:
            self._join(capacity)
        self.now += timedelta(hours=1)

    def _join(self, capacity: int, name: str = "") -> None:
        self.born += 1
        made = node(name or f"n{self.born}", capacity=capacity, uid=f"u{self.born}", joined_at=self.now)
        self.world = replace(self.world, nodes=(*self.world.nodes, replace(made, labels={"zone": "ab"[self.born % 2]})))

    def _alter(self, number: int, change: Callable[[NodeView], NodeView]) -> None:
        chosen = self.world.nodes[number % len(self.world.nodes)]
        nodes = tuple(change(item) if item is chosen else item for item in self.world.nodes)
        self.world = replace(self.world, nodes=nodes)

    def _alter_entry(self, number: int, which: int, change: Callable[[EntryView], EntryView]) -> None:
        def alter(each: NodeView) -> NodeView:
            if not each.entries or each.state not in (NodeState.READY, NodeState.CORDONED):
                return each
            chosen = each.entries[which % len(each.entries)]
            return replace(each, entries=tuple(change(item) if item is chosen else item for item in each.entries))

        self._alter(number, alter)

    @rule(digest=digests, priority=st.sampled_from([100, 500, 900]), shape=st.integers(0, 4))
    def pin_it(self, digest: str, priority: int, shape: int) -> None:
        made = pin(digest, priority, created_at=self.now)
        placement = [made.placement, made.placement, count(1), count(2, "zone"), percent(50)][shape]
        others = tuple(item for item in self.world.pins if item.digest != digest)
        self.world = replace(self.world, pins=(*others, replace(made, placement=placement)))

    @rule(digest=digests)
    def unpin(self, digest: str) -> None:
        self.world = replace(self.world, pins=tuple(item for item in self.world.pins if item.digest != digest))

    @rule(digest=digests, hours=st.integers(0, 2))
    def unpin_with_retention(self, digest: str, hours: int) -> None:
        self.unpin(digest)
        kept = HoldView(digest, "retention", self.now + timedelta(hours=hours))
        self.world = replace(self.world, holds=(*self.world.holds, kept))

    @rule(digest=digests)
    def suspend_or_resume(self, digest: str) -> None:
        def flip(item: PinView) -> PinView:
            return replace(item, suspended=not item.suspended) if item.digest == digest else item

        self.world = replace(self.world, pins=tuple(flip(item) for item in self.world.pins))

    @rule(capacity=st.sampled_from([50, 100, 200]))
    def join(self, capacity: int) -> None:
        if len(self.world.nodes) < 7:
            self._join(capacity)

    @rule(number=numbers)
    def replace_node(self, number: int) -> None:
        old = self.world.nodes[number % len(self.world.nodes)]
        if old.state is NodeState.LOST:
            return
        self._alter(number, lambda item: replace(item, state=NodeState.LOST))
        self._join((old.capacity_bytes or 0) // GIB, old.name)

    @rule(number=numbers, state=st.sampled_from([NodeState.CORDONED, NodeState.UNKNOWN, NodeState.NOT_READY]))
    def disturb(self, number: int, state: NodeState) -> None:
        self._alter(number, lambda item: item if item.state is NodeState.LOST else replace(item, state=state))

    @rule()
    def recover(self) -> None:
        def back(item: NodeView) -> NodeView:
            return item if item.state is NodeState.LOST else replace(item, state=NodeState.READY)

        self.world = replace(self.world, nodes=tuple(back(item) for item in self.world.nodes))

    @rule(number=numbers, which=numbers)
    def use(self, number: int, which: int) -> None:
        def used(item: NodeView) -> NodeView:
            ready = [each.digest for each in item.entries if each.state is EntryState.READY]
            if not ready or item.in_use is None:
                return item
            chosen = ready[which % len(ready)]
            touched = [replace(e, last_used_at=self.now) if e.digest == chosen else e for e in item.entries]
            return replace(item, in_use=item.in_use | {chosen}, entries=tuple(touched))

        self._alter(number, used)

    @rule(number=numbers, known=st.booleans())
    def release(self, number: int, known: bool) -> None:
        self._alter(number, lambda item: replace(item, in_use=frozenset() if known else None))

    @rule()
    def progress(self) -> None:
        """Every running transfer gets half of its bytes further; nodes that are not reached stand still."""
        nodes = tuple(
            replace(each, entries=tuple(self._advanced(item) for item in each.entries))
            if each.state in (NodeState.READY, NodeState.CORDONED)
            else each
            for each in self.world.nodes
        )
        self.world = replace(self.world, nodes=nodes)

    @rule(digest=digests, priority=st.sampled_from([100, 500, 900]))
    def pin_everywhere_and_wait(self, digest: str, priority: int) -> None:
        self.recover()
        self.pin_it(digest, priority, 0)
        self._advance_until_ready()

    def _advance_until_ready(self) -> None:
        for _ in range(3):
            self.pass_time(5)
            self.reconcile()
            self.progress()

    @rule(number=numbers, which=numbers, reason=st.sampled_from(["SourceUnavailable", "AccessDenied"]))
    def fail(self, number: int, which: int, reason: str) -> None:
        def failed(item: EntryView) -> EntryView:
            if not is_in_flight(item.state):
                return item
            later = self.now + timedelta(minutes=1)
            return replace(item, state=EntryState.FAILED, reason=reason, retry_at=later, attempts=item.attempts + 1)

        self._alter_entry(number, which, failed)

    @rule(number=numbers, other=st.sampled_from([0, 20, 45]))
    def fill_disk(self, number: int, other: int) -> None:
        def fill(item: NodeView) -> NodeView:
            self.filled.add(item.uid)
            return replace(item, other_bytes=other * GIB)

        self._alter(number, fill)

    @rule(number=numbers, which=numbers)
    def ask_to_evict(self, number: int, which: int) -> None:
        self._alter_entry(number, which, lambda item: replace(item, evict_requested=True))

    @rule(number=numbers, digest=digests)
    def appear_the_slow_way(self, number: int, digest: str) -> None:
        """A consumer on a cold node had it fetched: Ready, in use, and no pin asked for it."""

        def warm(item: NodeView) -> NodeView:
            held = sum(max(each.size_bytes, each.bytes_on_disk) for each in item.entries)
            size = SIZES[digest] * GIB
            fits = held + size <= limit(self.world, item)
            if not fits or item.state is not NodeState.READY or digest in {each.digest for each in item.entries}:
                return item
            made = entry(digest, size=SIZES[digest], ready_at=self.now)
            spare = item.partials.get(digest, 0)
            rest = {name: there for name, there in item.partials.items() if name != digest}
            orphans = item.orphan_bytes - spare
            return replace(item, entries=(*item.entries, made), partials=rest, orphan_bytes=orphans)

        self._alter(number, warm)

    @rule(minutes=st.sampled_from([1, 5, 20, 90]))
    def pass_time(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)

    @invariant()
    def reconcile(self) -> None:
        made = plan(self.world, self.now)
        self._check(made)
        self._obey(made)

    def _obey(self, made: Plan) -> None:
        nodes = []
        for each in self.world.nodes:
            if each.state in (NodeState.READY, NodeState.CORDONED):
                each = obey(self.world, each, {line.digest: line for line in made.desired.get(each.uid, ())})
            nodes.append(each)
        self.world = replace(self.world, nodes=tuple(nodes))

    def _check(self, made: Plan) -> None:
        fresh = {move.node_uid for move in made.moves if move.reason not in _GOING_ON and move.bytes > 0}
        held = {item.digest for item in self.world.holds if item.until is not None and item.until > self.now}
        for each in self.world.nodes:
            if each.uid in fresh:
                assert booked(self.world, each, made) <= limit(self.world, each)
            if each.uid not in self.filled:
                assert sum(item.bytes_on_disk for item in each.entries) <= limit(self.world, each)
            for line in made.desired.get(each.uid, ()):
                if line.action is Action.EVICT:
                    assert each.in_use is not None and line.digest not in each.in_use
                    assert line.digest not in held

    def _advanced(self, item: EntryView) -> EntryView:
        due = item.state is EntryState.FAILED and (item.retry_at is None or item.retry_at <= self.now)
        if is_in_flight(item.state) or due:
            there = min(item.size_bytes, item.bytes_on_disk + item.size_bytes // 2)
            if there == item.size_bytes:
                return replace(item, state=EntryState.READY, bytes_on_disk=there, ready_at=self.now, retry_at=None)
            return replace(item, state=EntryState.DOWNLOADING, bytes_on_disk=there, retry_at=None)
        return item

    def teardown(self) -> None:
        """Events stop: transfers end, grace and holds pass, and the fleet must come to rest with nobody starved."""
        made = plan(self.world, self.now)
        for _ in range(80):
            before = self.world
            self.now += timedelta(hours=3)
            self.progress()
            made = plan(self.world, self.now)
            self._check(made)
            self._obey(made)
            if self.world == before:
                break
        else:
            raise AssertionError("the fleet does not come to rest")
        calm = {each.uid for each in self.world.nodes if each.state is NodeState.READY}
        assert not [move for move in made.moves if move.node_uid in calm]
        stuck = [item for item in made.waits if item.node_uid in calm and item.reason is WaitReason.PACING]
        # Only transfers on nodes that do not answer can still hold the pool's places.
        assert not stuck or any(is_in_flight(e.state) for n in self.world.nodes if n.uid not in calm for e in n.entries)
        self._nobody_starves(made)

    def _nobody_starves(self, made: Plan) -> None:
        """A refused pin would not fit even if everything weaker that nothing protects were gone."""
        priorities = {item.digest: item.priority for item in self.world.pins}
        nodes = {each.uid: each for each in self.world.nodes}
        for refusal in made.refusals:
            each = nodes[refusal.node_uid]
            if each.in_use is None:
                continue
            stays = sum(
                max(item.size_bytes, item.bytes_on_disk) if is_present(item.state) else item.bytes_on_disk
                for item in each.entries
                if item.digest in each.in_use
                or priorities.get(item.digest, -1) >= priorities[refusal.digest]
                or is_in_flight(item.state)
            )
            assert stays + SIZES[refusal.digest] * GIB - each.partials.get(refusal.digest, 0) > limit(self.world, each)


Fleet.TestCase.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
TestFleet = Fleet.TestCase
