"""Operations and events are narrowed to what the reader's grants reach."""

from __future__ import annotations

import pytest

from caches.selectors.audit import audit_list
from caches.selectors.operations import operation_get, operation_targets, operations_list
from caches.selectors.overview import last_changes, operations_in_flight
from caches.selectors.pins import pin_pools
from controlplane.errors import Missing
from controlplane.operations.models import Operation, OperationKind
from tests import factories
from tests.selectors.reach_world import reach_world, started, traced

CATALOGUE = {"all version"}
OPERATIONS = {"mine pin", "mine entry", "near.gpu", *CATALOGUE}


@pytest.mark.parametrize(
    ("targets", "seen"),
    [
        (frozenset({"near"}), OPERATIONS),
        (frozenset({"near.gpu"}), OPERATIONS),
        (frozenset({"near.other"}), CATALOGUE),
        (frozenset({"nea"}), CATALOGUE),
        (frozenset[str](), CATALOGUE),
    ],
)
def test_it_shows_work_where_the_reader_may_look_and_on_the_catalogue(
    db: None, targets: frozenset[str], seen: set[str]
) -> None:
    reach_world()

    assert {row.subject_name for row in operations_list(targets=targets)} == seen
    assert {row.subject_name for row in operations_in_flight(targets=targets, limit=99)} == seen


def test_it_shows_everything_to_those_who_see_the_whole_fleet(db: None) -> None:
    reach_world()
    everywhere = {row.subject_name for row in operations_list(targets=frozenset({"near", "far"}))}

    assert operations_list().count() == Operation.objects.count()
    # What spans both is seen by who sees both; what is gone belongs to nobody any more.
    assert {"other and mine pin"} <= everywhere and "other gone pin" not in everywhere


def test_it_shows_the_trail_of_what_may_be_seen_and_nothing_about_people(db: None) -> None:
    reach_world()

    names = {row.object_name for row in audit_list(targets=frozenset({"near.gpu"}))}

    assert names == {*OPERATIONS, "mine node", "near", "all connection"}
    assert {row.object_name for row in last_changes(targets=frozenset({"near.gpu"}), limit=99)} == names
    assert audit_list().filter(object_type="SignIn").exists()


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        (None, {"pools": ["near.gpu"]}, True),
        ({"pools": ["near.gpu", "far.secret"]}, {"pools": ["near.gpu"]}, False),
        ({"pools": ["near.gpu"]}, {"pools": ["gone.pool"]}, False),
        ({"pools": []}, None, True),
        ({"suspended": False}, {"suspended": True}, True),
    ],
)
def test_it_keeps_an_event_that_names_a_hidden_pool(
    db: None, before: dict[str, object] | None, after: dict[str, object] | None, seen: bool
) -> None:
    world = reach_world()
    pin = factories.pin(pools=(world.mine,))
    event = traced("pin", pin.pk, "llama v1", before=before, after=after)

    assert audit_list(targets=frozenset({"near"})).filter(pk=event.pk).exists() is seen


def test_it_names_no_hidden_node_among_the_targets(db: None) -> None:
    """A pin that left a pool has older operations that worked there."""
    world = reach_world()
    pin = factories.pin(pools=(world.mine,))
    operation = started(OperationKind.PIN_WARM, "pin", pin.pk, "moved", *world.nodes)
    near = frozenset({"near.gpu"})

    found = operation_get(operation_id=operation.pk, targets=near)

    assert [target.name for target in found.targets.all()] == ["n-mine"]
    assert [target.name for target in operation_targets(targets=near).filter(operation=found)] == ["n-mine"]
    assert operation_get(operation_id=operation.pk).targets.count() == 2


def test_it_has_no_such_operation_for_those_who_may_not_see_it(db: None) -> None:
    world = reach_world()
    hidden = Operation.objects.get(subject_name=world.other.full_name)

    with pytest.raises(Missing):
        operation_get(operation_id=hidden.pk, targets=frozenset({"near"}))
    assert operation_get(operation_id=hidden.pk, targets=frozenset({"far"})) == hidden


def test_it_names_a_deleted_pool_to_those_who_could_see_it(db: None) -> None:
    """Whoever deletes a pool waits for the end of an operation whose pool is gone by then."""
    world = reach_world()
    operation = Operation.objects.get(subject_name=world.mine.full_name)
    world.mine.delete()

    assert operation_get(operation_id=operation.pk, targets=frozenset({"near.gpu"})) == operation


def test_it_names_of_a_pin_the_pools_that_may_be_seen(db: None) -> None:
    wide = reach_world().wide

    assert pin_pools(wide, frozenset({"near"})) == ["near.gpu"]
    assert sorted(pin_pools(wide, None)) == ["far.secret", "near.gpu"]
