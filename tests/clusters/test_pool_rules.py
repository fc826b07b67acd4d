"""Membership and settings of pools, as pure rules."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import FieldDoesNotExist
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clusters.models import NodePool
from controlplane.clusters.pool_rules import FIELDS, PoolChoice, pool_problems, pools_of, store_problem, valid_name
from controlplane.ids import new_id

DEFAULTS: dict[str, Any] = {name: getattr(NodePool(), name) for name in FIELDS}


def _pool(name: str, priority: int = 0, **selector: str) -> PoolChoice:
    return PoolChoice(new_id(), name, selector, priority)


def test_it_asks_for_every_label_of_the_selector() -> None:
    both = _pool("both", zone="z", disk="big")
    assert pools_of({"zone": "z", "disk": "big", "more": "x"}, [both]) == (both,)
    assert pools_of({"zone": "z"}, [both]) == ()
    assert pools_of({"zone": "z", "disk": "small"}, [both]) == ()


def test_it_lets_an_empty_selector_match_nothing() -> None:
    assert pools_of({"zone": "z"}, [_pool("empty")]) == ()


labels = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3)
pools = st.lists(st.builds(PoolChoice, st.uuids(), st.text(max_size=3), labels, st.integers(-2, 2)), max_size=6)


@given(labels, pools, st.randoms(use_true_random=False))
def test_it_chooses_the_same_pool_in_whatever_order_they_come(
    of_node: dict[str, str], choices: list[PoolChoice], order: Any
) -> None:
    found = pools_of(of_node, choices)
    mixed = order.sample(choices, len(choices))
    key = [(pool.priority, pool.name) for pool in pools_of(of_node, mixed)]
    assert key == [(pool.priority, pool.name) for pool in found]
    assert all(pool.priority <= found[0].priority for pool in found)
    assert all(pool.selector.items() <= of_node.items() for pool in found)


def test_it_has_a_rule_for_fields_that_exist_and_accepts_their_defaults() -> None:
    for name in FIELDS:
        try:
            NodePool._meta.get_field(name)
        except FieldDoesNotExist:  # pragma: no cover
            pytest.fail(f"{name} is no field of a pool")
    fine = {**DEFAULTS, "selector": {"hearth.dev/pool": "a"}}
    assert pool_problems(fine, fine) == []


@pytest.mark.parametrize(
    "selector",
    [{"a": ""}, {"a": "b"}, {"example.com/a-b_c.d": "V-1_x.y"}, {"topology.kubernetes.io/zone": "eu-1a"}, {"A": "1"}],
)
def test_it_takes_labels_as_clusters_have_them(selector: dict[str, str]) -> None:
    assert pool_problems({"selector": selector}, DEFAULTS | {"selector": selector}) == []


def test_it_judges_the_pool_as_it_would_become() -> None:
    given = {"high_watermark": 0.5}
    (problem,) = pool_problems(given, DEFAULTS | given)
    assert (problem.field, problem.detail) == ("low_watermark", "must not be above high_watermark")
    given = {"high_watermark": 0.5, "low_watermark": 0.5}
    assert pool_problems(given, DEFAULTS | given) == []
    given = {"status_interval_seconds": 2, "freshness_seconds": 4}
    assert pool_problems(given, DEFAULTS | given) == []


@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)),
        st.none()
        | st.booleans()
        | st.text()
        | st.floats()
        | st.lists(st.integers())
        | st.dictionaries(st.text(), st.text()),
        max_size=5,
    )
)
def test_it_answers_to_anything_with_problems_of_its_fields(wrong: dict[str, Any]) -> None:
    assert {problem.field for problem in pool_problems(wrong, DEFAULTS | wrong)} <= FIELDS.keys()


@pytest.mark.parametrize("name", ["a", "a-1", "1", "x" * 63])
def test_it_takes_names_that_fit(name: str) -> None:
    assert valid_name(name)
    assert not valid_name(name.upper() + "!")
    assert not valid_name(None)


@pytest.mark.parametrize(
    ("paths", "fine"),
    [
        ([], True),
        (["/fsx", "/mnt/share"], True),
        (["/opt/dlami/nvme2"], True),  # only begins like the store
        (["/fsx", "/fsx"], False),
        (["/fsx/"], False),
        (["fsx"], False),
        (["/"], False),
        (["/mnt/../etc"], False),
        ([1], False),
        ("/fsx", False),
        ([f"/fsx-{number}" for number in range(20)], True),
        ([f"/fsx-{number}" for number in range(21)], False),
        (["/opt/dlami/nvme"], False),
        (["/opt/dlami/nvme/models"], False),
        (["/opt"], False),
    ],
)
def test_its_sources_are_folders_apart_from_its_store(paths: Any, fine: bool) -> None:
    given = {"source_paths": paths}
    assert [problem.field for problem in pool_problems(given, DEFAULTS | given)] == ([] if fine else ["source_paths"])
    moved = {"cache_path": "/fsx/cache"}
    if paths == ["/fsx", "/mnt/share"]:
        assert [problem.field for problem in pool_problems(moved, DEFAULTS | given | moved)] == ["source_paths"]


@pytest.mark.parametrize(
    ("path", "fine"),
    [
        ("/mnt/nvme", True),
        ("/mnt/nvme2", True),
        ("/mnt/nvme/sub", True),  # beside the store, not in it
        ("/mnt", True),
        ("/mnt/nvme/hearth", False),
        ("/mnt/nvme/hearth/weights/x", False),
        ("/mnt/nvme/hearth-of-others", True),
        ("/srv", False),  # its store would be /srv/hearth, which holds another pool's folder
    ],
)
def test_no_pools_folder_lies_in_the_store_of_another(path: str, fine: bool) -> None:
    problem = store_problem(path, {"a": "/mnt/nvme/", "b": "/srv/hearth/cache"})
    assert (problem is None) is fine
    assert fine or ("a is the other" in str(problem)) is (path != "/srv")
