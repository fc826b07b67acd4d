"""Why an artifact is or is not warm on a node."""

from __future__ import annotations

from datetime import time, timedelta
from typing import Any

import pytest

from caches.domain.planning import explain
from caches.domain.pool_view import DailyWindow, PoolView
from controlplane.clusters.documents import EntryState, NodeState
from tests.domain.world import NOW, count, entry, node, pin, view

NIGHT = DailyWindow(time(22), time(6), "UTC")
YOUNG: dict[str, Any] = {"joined_at": NOW - timedelta(seconds=1)}
SETTLE = {"settle": timedelta(minutes=2)}
FAILED = entry("m", EntryState.FAILED, reason="AccessDenied", attempts=2, retry_at=NOW + timedelta(minutes=1))


def _world(n: Any = None, p: Any = None, **fields: Any) -> PoolView:
    return view([n or node("n")], [p or pin("m")], **fields)


@pytest.mark.parametrize(
    ("world", "check", "words"),
    [
        (_world(artifacts={}), "Artifact is known", "not in the catalogue"),
        (_world(p=pin("x"), sizes={"m": 1}), "A pin wants it in this pool", "no pin of m v1 reaches pool p"),
        (_world(p=pin("m", node_selector={"a": "b"})), "The pin's selector takes this node", "labels"),
        (view([node("n"), node("h", entry("m"))], [pin("m", placement=count(1))]), "The pin's placement", "1 nodes"),
        (_world(p=pin("m", suspended=True)), "The pin is not suspended", "resume"),
        (_world(node("n", state=NodeState.CORDONED)), "The node is ready", "Cordoned"),
        (_world(with_policy={"paused": True}), "The pool is not paused", "paused"),
        (_world(node("n", **YOUNG), with_policy=SETTLE), "The node has settled", "until"),
        (_world(p=pin("m", window=NIGHT)), "The window is open", "2026-03-04 22:00 UTC"),
        (_world(sizes={"m": 300}), "It fits on the disk", "needs 300 GiB; 100 GiB are free"),
        (_world(with_policy={"max_downloads": 0}), "It is its turn", "0 of 0 transfers of the pool"),
        (_world(node("n", FAILED)), "No failure stands in the way", "AccessDenied after 2 attempts, again at"),
        (_world(node("n", FAILED), pin("m", window=NIGHT)), "No failure stands in the way", "AccessDenied"),
        (_world(node("n", FAILED), pin("m", window=NIGHT), sizes={"m": 300}), "It fits on the disk", "needs 300 GiB"),
        (_world(node("n", state=NodeState.CORDONED), pin("m", suspended=True)), "The node is ready", "Cordoned"),
        (_world(), "The bytes are there", "told to the node's agent"),
        (_world(node("n", entry("m", EntryState.DOWNLOADING, on_disk=4))), "The bytes are there", "4 GiB of 10 GiB"),
    ],
)
def test_it_names_the_first_rule_that_stops_it(world: PoolView, check: str, words: str) -> None:
    checks = explain(world, "m", "uid-n", NOW)
    first = next(number for number, item in enumerate(checks) if item.passed is not True)
    assert checks[first].check.startswith(check)
    assert checks[first].passed is False
    assert words in checks[first].detail
    assert all(item.passed is None and item.detail == "not reached" for item in checks[first + 1 :])


def test_it_passes_every_check_for_a_warm_copy() -> None:
    assert all(item.passed for item in explain(_world(node("n", entry("m"))), "m", "uid-n", NOW))


def test_it_says_that_a_copy_is_warm_although_rules_would_not_start_it_now() -> None:
    checks = explain(_world(node("n", entry("m")), pin("m", window=NIGHT)), "m", "uid-n", NOW)
    assert checks[-1].passed is True
    assert any("not asked" in item.detail for item in checks)


def test_it_says_that_an_unpinned_copy_is_warm() -> None:
    checks = explain(view([node("n", entry("m"))]), "m", "uid-n", NOW)
    assert [item.passed for item in checks[:3]] == [True, True, False]
    assert checks[-1].passed is True


def test_it_does_not_claim_to_know_a_node_that_was_not_heard_of() -> None:
    checks = explain(_world(node("n", state=NodeState.UNKNOWN)), "m", "uid-n", NOW)
    assert {item.passed for item in checks if item.check == "The node is ready"} == {None}
    assert not any(item.passed is False for item in checks)


@pytest.mark.parametrize(("uid", "words"), [("uid-other", "no such node"), ("uid-gone", "lost")])
def test_it_says_that_the_node_is_not_there(uid: str, words: str) -> None:
    world = view([node("n"), node("gone", state=NodeState.LOST)], [pin("m")])
    (check,) = explain(world, "m", uid, NOW)
    assert check.passed is False
    assert words in check.detail
