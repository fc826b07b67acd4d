"""Pins: validation, admission, change, suspension, removal."""

from __future__ import annotations

import pytest

from caches.services.pins import PinSpec, pin_create
from controlplane.audit.services import Actor
from tests import factories

pytestmark = pytest.mark.django_db
ACTOR = Actor(name="olga", via="Api", request_id="r1")


def test_it_creates_a_pin_with_an_operation():
    pool = factories.pool()
    factories.node(of=pool)
    version = factories.version()
    pin, op = pin_create(actor=ACTOR, spec=PinSpec(version_id=version.pk, pool_ids=(pool.pk,)))
    assert pin.operation_id == op.pk
