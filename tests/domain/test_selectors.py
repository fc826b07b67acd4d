"""A selector of nodes: equal labels, or one of several values."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from caches.domain.demand import any_of, selects

LABELS = {"zone": "a", "type": "ml.g5.24xlarge", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ({}, True),
        ({"zone": "a"}, True),
        ({"zone": "b"}, False),
        ({"zone": any_of(["b", "a"])}, True),
        ({"zone": any_of(["b", "c"])}, False),
        ({"zone": any_of(["ab", "ba"])}, False),  # whole values, no parts of them
        ({"zone": any_of(["b", "a"]), "type": "ml.p5.48xlarge"}, False),
        ({"zone": any_of(["b", "a"]), "type": any_of(["ml.p5.48xlarge", "ml.g5.24xlarge"])}, True),
        ({"nothing": any_of(["a", "b"])}, False),
        ({"nothing": ""}, False),  # a label that is not there has no value, not the empty one
        ({"empty": ""}, True),
        ({"empty": any_of(["", "a"])}, True),
    ],
)
def test_it_takes_nodes_that_have_every_label(selector: Mapping[str, str], taken: bool) -> None:
    assert selects(selector, LABELS) is taken
