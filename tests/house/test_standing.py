"""Rows that stand are those of one test at a time, whatever that does to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import DatabaseError, connection

from controlplane.clusters.models import NodePool
from tests import factories
from tests.plugins.standing import standing


@standing
def lone_pool() -> NodePool:
    return factories.pool()


def nothing(pool: NodePool) -> None:
    pass


def change(pool: NodePool) -> None:
    pool.priority = 7
    pool.save()
    factories.pool()


def remove(pool: NodePool) -> None:
    pool.delete()


def break_off(pool: NodePool) -> None:
    with pytest.raises(DatabaseError):
        connection.cursor().execute("SELECT nonsense")


def hang_up(pool: NodePool) -> None:
    connection.close()


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("does", [nothing, change, remove, break_off, hang_up])
def test_it_is_as_new_whatever_the_test_before_did(
    lone_pool: NodePool, does: Callable[[NodePool], None], time: int
) -> None:
    assert [pool.priority for pool in NodePool.objects.all()] == [lone_pool.priority] == [0]

    does(lone_pool)


@pytest.mark.parametrize("time", [1, 2])
def test_it_is_not_there_for_whoever_does_not_ask(db: None, time: int) -> None:
    assert not NodePool.objects.exists()


def test_it_is_made_for_whoever_asks_later(db: None, request: pytest.FixtureRequest) -> None:
    assert [request.getfixturevalue("lone_pool")] == list(NodePool.objects.all())


def test_it_is_made_for_whoever_commits(transactional_db: None, lone_pool: NodePool) -> None:
    assert [lone_pool] == list(NodePool.objects.all())
