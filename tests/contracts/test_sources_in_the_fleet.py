"""Each kind of source from registration to a copy on a node of the local fleet, fetched by a real agent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import LazySettings

from caches.agent.runner import Runner
from caches.agent.store import Store
from caches.models import CacheEntry, ModelVersion
from caches.services.catalogue import version_recheck, version_register
from caches.services.connections import connection_check, connection_create
from caches.services.pins import PinSpec, pin_create
from caches.sources import open_source
from caches.sources.secrets import write_secret
from controlplane.audit.models import Via
from controlplane.audit.services import Actor
from controlplane.clusters.documents import EntryState
from controlplane.operations.models import Operation
from controlplane.operations.steps import operation_step
from tests.contracts.sources import FILES, PATIENT, PLACES, SourcePlace
from tests.services.world import World
from tests.sources.conftest import moto_endpoint
from tests.waiting import until

__all__ = ["moto_endpoint"]  # a fixture
ADA = Actor("ada", Via.API, "request-1")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, tmp_path: Path, settings: LazySettings) -> Iterator[SourcePlace]:
    settings.SOURCE_ROOTS = [str(tmp_path)]
    settings.SECRETS_DIR = tmp_path / "secrets"
    with PLACES[request.param](request, tmp_path) as made:
        yield made


def finish(operation: Operation) -> Operation:
    for _ in range(20):
        if operation_step(operation_id=operation.pk):
            break
    operation.refresh_from_db()
    return operation


def registered(place: SourcePlace) -> ModelVersion:
    if place.secret:
        write_secret("keys", place.secret)
    connection = connection_create(
        actor=ADA,
        name=place.spec.name,
        type=place.spec.type,
        endpoint=place.spec.endpoint,
        region=place.spec.region,
        secret_name="keys" if place.secret else "",
        allowed=place.spec.allowed,
        hub_endpoint=place.spec.hub_endpoint,
        manifest=place.spec.manifest,
    )
    assert connection_check(connection_id=connection.pk).state == "Reachable"
    row, operation = version_register(
        actor=ADA, model="llama", version="v1", connection=connection, uri=place.uri, **place.registering
    )
    assert finish(operation).state == "Succeeded", operation.error
    row.refresh_from_db()
    return row


def test_it_is_registered_pinned_warmed_and_told_from_what_the_source_holds_later(
    place: SourcePlace, tmp_path: Path
) -> None:
    version = registered(place)
    assert version.artifact is not None and version.artifact.anchored is place.anchored
    assert version.metadata.get("context_length") == 64 and version.revision
    world = World(tmp_path / "fleet", nodes=1)
    pin_create(actor=ADA, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.reconcile()
    store = Store(tmp_path / "node")
    runner = Runner(link=world.links["n1"], store=store, open_source=open_source, tuning=PATIENT)
    agent = threading.Thread(target=runner.run, daemon=True)
    agent.start()
    try:

        def ready() -> bool:
            world.observe()
            return CacheEntry.objects.filter(artifact=version.artifact, state=EntryState.READY).exists()

        until(ready, "the copy is ready")
    finally:
        runner.stop()
        agent.join(10)
    tree = store.tree(version.artifact.digest)
    assert {path: (tree / path).read_bytes() for path in FILES} == FILES
    assert sum(1 for path in tree.rglob("*") if path.is_file()) == len(FILES) + 1  # and the marker
    assert finish(version_recheck(actor=ADA, version_id=version.pk)).state == "Succeeded"
    place.put("added.bin", b"x")
    finish(version_recheck(actor=ADA, version_id=version.pk))
    version.refresh_from_db()
    assert version.drift == ("Matches" if place.immutable else "Drifted")
