"""What was denied is tried again once there are other credentials, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from caches.models import CacheEntry, ModelVersion, PoolLoop
from caches.services.endpoints.retries import entries_retry_denied
from caches.services.endpoints.versions import REFUSED_AGAIN, version_of
from controlplane.audit.models import AuditEvent
from controlplane.clusters.documents import Action, EntryState, Reason, SourceType
from controlplane.clusters.models import Node
from controlplane.operations.models import Operation
from tests import factories
from tests.domain.endpoints import config, spec_of

pytestmark = pytest.mark.django_db
DENIED = {"state": EntryState.FAILED, "reason": Reason.ACCESS_DENIED}


def test_only_what_was_denied_through_this_connection_and_is_wanted_is_tried_again() -> None:
    pool = factories.pool()
    mine, other = factories.version(), factories.version()
    assert mine.connection != other.connection
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "denied": (mine, DENIED),
        "elsewhere": (other, DENIED),
        "no room": (mine, {**DENIED, "reason": Reason.INSUFFICIENT_CAPACITY}),
        "ready": (mine, {"state": EntryState.READY}),
        "unwanted": (mine, {**DENIED, "desired": ""}),
        "going": (mine, {**DENIED, "desired": Action.EVICT}),
        "without a pool": (mine, DENIED),
    }
    for name, (version, fields) in cases.items():
        fields = {"desired": Action.ENSURE, **fields}
        factories.entry(on=factories.node(of=pool, name=name.replace(" ", "-")), of=version.artifact, **fields)
    Node.objects.filter(name="without-a-pool").update(pool=None)
    PoolLoop.objects.all().delete()
    assert entries_retry_denied(connection=mine.connection) == 1
    assert CacheEntry.objects.get(retry_round=1).node.name == "denied"
    assert PoolLoop.objects.filter(pool=pool, wanted_round__gt=0).exists(), "and its pool is told"
    assert AuditEvent.objects.get(action="connection.retry").after == {"entries": 1}


def test_a_place_that_was_refused_is_looked_at_again_after_a_while(tmp_path: Path, settings: LazySettings) -> None:
    """The message told somebody to correct it: nobody has to register it by hand then."""
    settings.SOURCE_ROOTS = [str(tmp_path)]
    (tmp_path / "llms").mkdir()
    (tmp_path / "llms" / "config.json").write_text("{}")
    factories.connection(name="fs-1", type=SourceType.FILESYSTEM, endpoint="", allowed=[str(tmp_path)], secret_name="")
    source = {"modelSourceType": "fsx", "fsxStorage": {"fileSystemId": "fs-1"}, "modelLocation": "llms"}
    spec, cluster = spec_of(config(spec__modelSourceConfig=source)), factories.cluster()
    version_of(cluster=cluster, spec=spec)
    ModelVersion.objects.update(
        state="Refused", message="It is empty.", next_step="Fill it.", updated_at=timezone.now()
    )
    Operation.objects.update(state="Failed")
    assert version_of(cluster=cluster, spec=spec).refused == "It is empty. Fill it.", "not in every round"
    ModelVersion.objects.update(updated_at=timezone.now() - REFUSED_AGAIN)
    assert version_of(cluster=cluster, spec=spec).refused == ""
    assert ModelVersion.objects.get().state == "Resolving" and Operation.objects.count() == 2


def test_nothing_is_written_where_nothing_was_denied() -> None:
    version = factories.version()
    factories.entry(of=version.artifact, desired=Action.ENSURE)
    assert entries_retry_denied(connection=version.connection) == 0
    assert not AuditEvent.objects.exists()
