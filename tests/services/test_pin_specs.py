"""What a pin may be: every wrong field by its name, the bounds on both sides, and the form in the trail."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, time, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest

from caches.domain.pool_view import DailyWindow, Placement, PlacementType
from caches.models import GateType, ModelVersion, Pin
from caches.services.pin_specs import PinSpec, spec_check, spec_document, spec_of
from caches.services.pins import pin_create
from controlplane.audit.services import Actor
from controlplane.clusters.documents import ArtifactKind
from controlplane.clusters.models import NodePool
from controlplane.errors import Clash, Invalid
from tests import factories

pytestmark = pytest.mark.django_db
BERLIN = "Europe/Berlin"


@pytest.fixture
def pool() -> NodePool:
    made = factories.pool()
    factories.node(of=made)
    return made


def spec_for(pool: NodePool, **fields: Any) -> PinSpec:
    return PinSpec(**{"version_id": factories.version().pk, "pool_ids": (pool.pk,), **fields})


def codes(spec: PinSpec) -> dict[str, str]:
    with pytest.raises(Invalid) as refused:
        spec_check(spec)
    assert refused.value.next_step and all(error.detail for error in refused.value.errors)
    return {error.field: error.code.removeprefix("pin:user:") for error in refused.value.errors}


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"pool_ids": ()}, "pools", "no-pools"),
        ({"priority": -1}, "priority", "priority-range"),
        ({"priority": 1001}, "priority", "priority-range"),
        ({"artifacts": ()}, "artifacts", "artifacts-unsupported"),
        ({"artifacts": (ArtifactKind.IMAGE, ArtifactKind.IMAGE)}, "artifacts", "artifacts-unsupported"),
        ({"artifacts": (ArtifactKind.WEIGHTS, ArtifactKind.WEIGHTS)}, "artifacts", "artifacts-unsupported"),
        ({"retention_seconds": -1}, "retention", "retention-range"),
        ({"retention_seconds": 366 * 86400 + 1}, "retention", "retention-range"),
        ({"needed_at": datetime(2030, 1, 1)}, "needed_at", "time-zone-missing"),
        ({"node_selector": {"": "x"}}, "node_selector", "selector-invalid"),
        ({"node_selector": {"a" * 254: "x"}}, "node_selector", "selector-invalid"),
        ({"node_selector": {"a": "x" * 254}}, "node_selector", "selector-invalid"),
        ({"placement": Placement(PlacementType.COUNT, 0)}, "placement", "placement-range"),
        ({"placement": Placement(PlacementType.COUNT, 100_001)}, "placement", "placement-range"),
        ({"placement": Placement(PlacementType.PERCENT, 101)}, "placement", "placement-range"),
        ({"placement": Placement(PlacementType.ALL, -1)}, "placement", "placement-range"),
        ({"placement": Placement(PlacementType.ALL, 2**31)}, "placement", "placement-range"),
        ({"placement": Placement(PlacementType.ALL, 100, "z" * 201)}, "placement", "spread-label-invalid"),
        ({"gate_type": GateType.COUNT, "gate_value": 100_001}, "gate", "gate-range"),
        ({"gate_type": GateType.PERCENT, "gate_value": 0}, "gate", "gate-range"),
        ({"gate_type": GateType.TIMEOUT, "gate_value": 0}, "gate", "gate-range"),
        ({"gate_type": GateType.TIMEOUT, "gate_value": 7 * 86400 + 1}, "gate", "gate-range"),
        ({"gate_type": GateType.ALL, "gate_value": -1}, "gate", "gate-range"),
        ({"window": DailyWindow(time(1), time(2), "")}, "window.time_zone", "time-zone-unknown"),
        ({"window": DailyWindow(time(1), time(2), "Mars/Olympus")}, "window.time_zone", "time-zone-unknown"),
        ({"window": DailyWindow(time(1), time(2), "../../etc/passwd")}, "window.time_zone", "time-zone-unknown"),
        ({"window": DailyWindow(time(1), time(2), "Europe\0")}, "window.time_zone", "time-zone-unknown"),
        ({"window": DailyWindow(time(1), time(2), "Europe")}, "window.time_zone", "time-zone-unknown"),
        ({"window": DailyWindow(time(1), time(1), "UTC")}, "window.end", "window-empty"),
    ],
)
def test_it_refuses_a_field_by_its_name(pool: NodePool, fields: dict[str, Any], field: str, code: str) -> None:
    assert codes(spec_for(pool, **fields)) == {field: code}


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": 0},
        {"priority": 1000},
        {"retention_seconds": 366 * 86400},
        {"node_selector": {"a" * 253: "", "zone": "ü" * 253}},
        {"placement": Placement(PlacementType.COUNT, 100_000, "zone")},
        {"placement": Placement(PlacementType.PERCENT, 1)},
        {"placement": Placement(PlacementType.ALL, 0, "z" * 200)},
        {"gate_type": GateType.TIMEOUT, "gate_value": 7 * 86400},
        {"gate_type": GateType.ALL, "gate_value": 0},
        {"window": DailyWindow(time(23, 59, 59), time(0), BERLIN)},
        {"needed_at": datetime(2020, 1, 1, tzinfo=UTC)},  # a launch that was: it outranks nothing any more
        {"suspended": True},
    ],
)
def test_it_takes_what_lies_within_the_bounds_and_reads_it_back(
    pool: NodePool, actor: Actor, fields: dict[str, Any]
) -> None:
    spec = spec_for(pool, **fields)
    pin, _ = pin_create(actor=actor, spec=spec)
    assert spec_of(Pin.objects.get(pk=pin.pk)) == spec


def test_it_says_everything_that_is_wrong_at_once(pool: NodePool) -> None:
    found = codes(
        PinSpec(
            version_id=uuid4(),
            pool_ids=(pool.pk, uuid4()),
            priority=5000,
            retention_seconds=-5,
            window=DailyWindow(time(3), time(3), "Nowhere"),
        )
    )
    assert set(found) == {"version", "pools", "priority", "retention", "window.time_zone", "window.end"}


def test_a_pool_named_twice_is_one_pool(pool: NodePool, actor: Actor) -> None:
    pin, operation = pin_create(actor=actor, spec=spec_for(pool, pool_ids=(pool.pk, pool.pk)))
    assert list(pin.pools.all()) == [pool] and operation.targets.count() == 1


@pytest.mark.parametrize("state", ["Resolving", "Refused"])
def test_a_version_that_is_not_available_is_a_clash_that_names_its_state(pool: NodePool, state: str) -> None:
    version = factories.version(artifact=None, state=state, model="llama", version="v2")
    with pytest.raises(Clash) as refused:
        spec_check(PinSpec(version_id=version.pk, pool_ids=(pool.pk,)))
    assert refused.value.code == "pin:user:version-not-available"
    assert refused.value.detail.startswith(f"llama v2 is {state}") and refused.value.next_step


def test_wrong_fields_are_told_before_the_state_of_the_version(pool: NodePool) -> None:
    version = factories.version(artifact=None)
    assert codes(PinSpec(version_id=version.pk, pool_ids=(pool.pk,), priority=-1)) == {"priority": "priority-range"}


def test_the_trail_holds_names_and_text_only(pool: NodePool) -> None:
    other = factories.pool(of=pool.cluster, name="aaa")
    needed = datetime(2030, 1, 1, 9, tzinfo=timezone(timedelta(hours=2)))
    spec = spec_for(pool, needed_at=needed, window=DailyWindow(time(22), time(6, 30), BERLIN))
    document = spec_document(spec, [pool, other])
    assert document["pools"] == sorted([pool.full_name, other.full_name])
    assert document["version_id"] == str(spec.version_id)
    assert document["needed_at"] == "2030-01-01T09:00:00+02:00"
    assert (document["window_start"], document["window_end"]) == ("22:00:00", "06:30:00")
    plain = spec_document(dataclasses.replace(spec, window=None, needed_at=None), [pool])
    assert (plain["window_start"], plain["window_time_zone"], plain["needed_at"]) == (None, "", None)


def test_a_deleted_pool_is_missed_by_name(pool: NodePool) -> None:
    spec = spec_for(pool)
    pool.delete()
    assert codes(spec) == {"pools": "no-such-pool"}
    ModelVersion.objects.all().delete()
    assert set(codes(spec)) == {"pools", "version"}
