"""What Hearth has set itself is known before the watcher tells, and nothing else is touched."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.utils import timezone

from controlplane.clusters.models import Node
from controlplane.clusters.node_labels import node_labels_told
from tests import factories

pytestmark = pytest.mark.django_db


def labels(node: Node) -> dict[str, str]:
    return dict(Node.objects.get(pk=node.pk).labels)


def test_each_node_gets_its_own_labels_and_keeps_the_others() -> None:
    one, two = factories.node(labels={"a": "1", "b": "2"}), factories.node(labels={"a": "1"})
    untouched = factories.node(labels={"a": "1"})
    assert node_labels_told({two.pk: {"a": None, "c": "größe"}, one.pk: {"b": "3", "gone": None}}) == 2
    assert labels(one) == {"a": "1", "b": "3"}
    assert labels(two) == {"c": "größe"}
    assert labels(untouched) == {"a": "1"}


def test_a_node_that_is_lost_or_unknown_is_left_alone() -> None:
    lost = factories.node(labels={"a": "1"}, lost_at=timezone.now())
    assert node_labels_told({lost.pk: {"a": None}, uuid4(): {"a": None}}) == 0
    assert labels(lost) == {"a": "1"}


def test_nothing_costs_nothing(django_assert_num_queries: object) -> None:
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert node_labels_told({}) == 0
