"""Why an artifact is or is not warm on a node: every rule in the order in which the planner asks, with its answer."""

from __future__ import annotations

from collections.abc import Callable

from caches.domain.board import Board
from caches.domain.capacity import Ledger
from caches.domain.demand import selects
from caches.domain.plans import Check, WaitReason
from caches.domain.pool_view import EntryView, NodeView, PinView, PlacementType
from caches.domain.states import is_in_flight, is_present
from caches.domain.text import plural, size_text, time_text
from caches.domain.windows import is_open, opens_at
from controlplane.clusters.documents import EntryState, NodeState

Answer = tuple[bool | None, str]


class _Case:
    """One artifact on one node on a board on which everything is decided."""

    def __init__(self, board: Board, node: NodeView, ledger: Ledger | None, digest: str) -> None:
        self.board, self.node, self.ledger, self.digest = board, node, ledger, digest
        self.entry: EntryView | None = next((entry for entry in node.entries if entry.digest == digest), None)
        self.pins: list[PinView] = [pin for pin in board.pins if pin.digest == digest]
        self.here = [pin for pin in self.pins if selects(pin.node_selector, node.labels)]
        self.place = (node.uid, digest)
        self.wait = board.waits.get(self.place)
        self.refusal = board.refusals.get(self.place)

    def known(self) -> Answer:
        if self.digest not in self.board.view.artifacts:
            return False, "the artifact is not in the catalogue; register a version first"
        return True, f"{self.board.name(self.digest)}, {size_text(self.board.view.artifacts[self.digest].size_bytes)}"

    def pinned(self) -> Answer:
        if not self.pins:
            return False, f"no pin of {self.board.name(self.digest)} reaches pool {self.board.view.pool}"
        return True, f"{plural(len(self.pins), 'pin')}, the strongest with priority {self.pins[0].priority}"

    def selected(self) -> Answer:
        if not self.here:
            return False, "no pin's node selector matches this node's labels"
        return True, "the node's labels match"

    def placed(self) -> Answer:
        spoken = self.ledger is not None and self.digest in self.ledger.lines
        if spoken or self.wait or self.refusal or any(pin.placement.type is PlacementType.ALL for pin in self.here):
            return True, "this node is one of those chosen"
        pin = self.here[0]
        unit = "% of the nodes" if pin.placement.type is PlacementType.PERCENT else " nodes"
        return False, f"the pin wants {pin.placement.value}{unit} and other nodes were chosen"

    def active(self) -> Answer:
        if all(pin.suspended for pin in self.here):
            return False, "the pin is suspended; resume it to go on"
        return True, "not suspended"

    def node_ready(self) -> Answer:
        if self.node.state is NodeState.UNKNOWN:
            return None, "the node has not been heard of lately"
        return self.node.state is NodeState.READY, f"the node is {self.node.state.value}"

    def running(self) -> Answer:
        return (False, "the pool is paused") if self.board.view.policy.paused else (True, "the pool is not paused")

    def settled(self) -> Answer:
        settled = self.node.joined_at + self.board.view.policy.settle
        if self.board.now < settled:
            return False, f"a new node is left alone until {time_text(settled)}"
        return True, f"the node joined {time_text(self.node.joined_at)}"

    def in_window(self) -> Answer:
        awake = [pin for pin in self.here if not pin.suspended]
        if any(is_open(pin.window, self.board.now) for pin in awake):
            return True, "transfers may start now"
        if self.entry is not None and self.entry.state is EntryState.FAILED:
            return True, "a retry goes on with what was begun inside the window"
        until = min((at for pin in awake if (at := opens_at(pin.window, self.board.now)) is not None), default=None)
        return False, f"transfers may start at {time_text(until)}" if until is not None else "the window never opens"

    def fits(self) -> Answer:
        if self.refusal is not None:
            return False, f"{self.refusal.detail}. {self.refusal.next_step}"
        if self.ledger is None or self.ledger.limit is None:
            return None, "the node's agent has not told its disk's capacity yet"
        return True, f"{size_text(max(0, self.ledger.free))} stay free under the high watermark"

    def in_turn(self) -> Answer:
        if self.wait is not None and self.wait.reason is WaitReason.PACING:
            return False, self.wait.detail
        return True, "it may transfer now"

    def not_failed(self) -> Answer:
        if self.entry is None or self.entry.state is not EntryState.FAILED:
            return True, "the last attempt did not fail"
        again = f", again at {time_text(self.entry.retry_at)}" if self.entry.retry_at is not None else ", again now"
        return False, f"{self.entry.reason or 'Failed'} after {plural(self.entry.attempts, 'attempt')}{again}"

    def arrived(self) -> Answer:
        state = self.entry.state if self.entry is not None else EntryState.ABSENT
        if state is EntryState.READY:
            return True, "ready and verified"
        if self.entry is not None and (is_in_flight(state) or is_present(state)):
            return False, f"{state.value}: {size_text(self.entry.bytes_on_disk)} of {size_text(self.entry.size_bytes)}"
        return False, "told to the node's agent next" if state is EntryState.ABSENT else f"it is {state.value}"


_CHAIN: tuple[tuple[str, Callable[[_Case], Answer]], ...] = (
    ("Artifact is known", _Case.known),
    ("A pin wants it in this pool", _Case.pinned),
    ("The pin's selector takes this node", _Case.selected),
    ("The pin's placement takes this node", _Case.placed),
    ("The node is ready", _Case.node_ready),
    ("The pin is not suspended", _Case.active),
    ("The pool is not paused", _Case.running),
    ("The node has settled", _Case.settled),
    ("The window is open", _Case.in_window),
    ("It fits on the disk", _Case.fits),
    ("It is its turn", _Case.in_turn),
    ("No failure stands in the way", _Case.not_failed),
    ("The bytes are there", _Case.arrived),
)
_STARTS = len(_CHAIN) - 2  # what is there or running already no longer asks these
_UNASKED = range(4, _STARTS)
_SUSPENDED = 5  # what is on its way is stopped by this one all the same


def explain_board(board: Board, digest: str, node_uid: str) -> tuple[Check, ...]:
    """The chain up to the first check that did not pass; the rest is ``passed=None``, not reached."""
    node = next((node for node in board.view.nodes if node.uid == node_uid), None)
    if node is None or node.state is NodeState.LOST:
        text = "the node is lost" if node is not None else f"no such node in pool {board.view.pool}"
        return (Check("The node is in the pool", False, text),)
    ledger = next((ledger for ledger in board.ledgers if ledger.node.uid == node_uid), None)
    case = _Case(board, node, ledger, digest)
    there = case.entry is not None and (is_present(case.entry.state) or is_in_flight(case.entry.state))
    checks = [Check("The node is in the pool", True, f"{node.name} in pool {board.view.pool}")]
    stopped = False
    for number, (name, ask) in enumerate(_CHAIN):
        if stopped:
            checks.append(Check(name, None, "not reached"))
            continue
        passed, detail = ask(case)
        if (
            there
            and not passed
            and number in _UNASKED
            and not (number == _SUSPENDED and case.entry and not is_present(case.entry.state))
        ):
            detail = f"{detail}; not asked, because it is there or on its way"
        elif not passed:
            stopped = True
        checks.append(Check(name, passed, detail))
    if stopped and there and case.entry is not None and case.entry.state is EntryState.READY:
        # Warm although nothing asks for it: the chain says why nobody does, the last check that it is warm.
        checks[-1] = Check(_CHAIN[-1][0], *case.arrived())
    return tuple(checks)
