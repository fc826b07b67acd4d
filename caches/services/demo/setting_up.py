"""The demo that ``make run`` shows: an administrator, the local fleet's pools, sources, models and their pins.

Everything goes through the services that people use. Running it again repairs what a kill left half done, follows a
store that moved to another port, and leaves alone what people changed or deleted since.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import transaction

from caches.models import ModelVersion, Pin, SourceConnection, VersionState
from caches.services.catalogue import version_register
from caches.services.connections import connection_check, connection_create, connection_spec, connection_update
from caches.services.demo.content import DEMO_MODELS, ENGINES, DemoModel, demo_files, shard_bytes
from caches.services.demo.places import DEMO, KubePlace, fleet_create, is_own_fleet, kube_create
from caches.services.pin_specs import PinSpec
from caches.services.pins import pin_create
from caches.sources.s3_upload import Uploader
from caches.sources.secrets import read_secret, write_secret
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import audit_write
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.serving import endpoint_serve
from controlplane.clusters.models import Cluster, NodePool
from controlplane.errors import HearthError
from controlplane.operations.models import FINAL_STATES, Operation
from controlplane.operations.steps import operation_step

BUCKET = "hearth-demo"
S3_NAME = "demo-s3"
DISK_NAME = "demo-fsx"
REGISTER_SECONDS = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoStore:
    """Address and keys of the S3 server for the demo. ``repr`` hides the keys."""

    endpoint: str
    region: str
    keys: Mapping[str, str] | None  # None: the secret ``demo-s3`` is already there

    def __repr__(self) -> str:
        return f"DemoStore({self.endpoint!r})"


def demo_bootstrap(*, store: DemoStore | None, nodes: int, say: Say, kube: KubePlace | None = None) -> None:
    """Make whatever of the demo is missing. HearthError when a store cannot be used.

    On Kubernetes (``kube``) every model comes from S3: a pod does not see the folders of this machine. The endpoint is
    the local fleet's alone.
    """
    admin_create(say)
    cluster = fleet_create(nodes) if kube is None else kube_create(kube)
    connections = {}
    if kube is None:
        connections["Filesystem"] = _disk()
    if store is not None:
        connections["S3"] = _s3(store)
        if kube is not None:
            connections["Filesystem"] = connections["S3"]
    for model in DEMO_MODELS:
        connection = connections.get(model.store)
        if connection is None or (model.endpoint and kube is not None):
            continue
        if not _was_done("version.register", model) or _unfinished(model):
            place = _upload(model, connection)
            _register(model, connection, place, say)
        if model.pools and not _was_done("pin.create", model):
            _pin(model, cluster, say)
        if model.endpoint and not _was_done("fleet.serve", model):
            _serve(model, cluster, say)
    for connection in {row.pk: row for row in connections.values()}.values():
        connection_check(connection_id=connection.pk)


def admin_create(say: Say) -> None:
    """A superuser with a generated password, kept in a file of mode 0600; nothing when there is a user already.

    The file has its name only once the account exists, so whoever waits for the file may sign in.
    """
    path = Path(settings.STATE_DIR) / "admin-password"
    unfinished = path.with_name("admin-password.new")
    if not User.objects.filter(is_superuser=True).exists():
        _admin_create(path, unfinished)
        say("Made the user admin.")
    if unfinished.exists():
        unfinished.replace(path)


def _admin_create(path: Path, unfinished: Path) -> None:
    # The file first: a kill between the two must not leave an account that nobody can enter.
    if not path.exists() and not unfinished.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"admin-password.{os.getpid()}")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(15) + "\n")
        beside.replace(unfinished)  # whole or not at all: an empty password is none
    password = (unfinished if unfinished.exists() else path).read_text().strip()
    with transaction.atomic():
        user = User.objects.create_superuser(username="admin", password=password)
        audit_write(
            actor=DEMO,
            action="user.create",
            object_type="User",
            object_id=str(user.pk),
            object_name="admin",
            after={"role": "Admin"},
        )


def _s3(store: DemoStore) -> SourceConnection:
    if store.keys is not None and (not _has_secret() or dict(read_secret(S3_NAME)) != dict(store.keys)):
        write_secret(S3_NAME, store.keys)
    found = SourceConnection.objects.filter(name=S3_NAME).first()
    if found is None:
        return connection_create(
            actor=DEMO,
            name=S3_NAME,
            type="S3",
            endpoint=store.endpoint,
            region=store.region,
            secret_name=S3_NAME,
            allowed=[BUCKET],
        )
    return connection_update(actor=DEMO, connection_id=found.pk, changes={"endpoint": store.endpoint})


def _has_secret() -> bool:
    try:
        return bool(read_secret(S3_NAME))
    except HearthError:
        return False


def _disk() -> SourceConnection:
    root = Path(settings.STATE_DIR) / "sources"
    root.mkdir(parents=True, exist_ok=True)
    found = SourceConnection.objects.filter(name=DISK_NAME).first()
    return found or connection_create(actor=DEMO, name=DISK_NAME, type="Filesystem", allowed=[str(root)])


def _upload(model: DemoModel, connection: SourceConnection) -> str:
    """Put what is missing of the model's files into its store; the URI of their folder."""
    if connection.type == "Filesystem":
        return _write(model, Path(connection.allowed[0]) / model.folder)
    uploader = Uploader(connection_spec(connection), read_secret(connection.secret_name), BUCKET)
    try:
        uploader.make_bucket()
        there = uploader.sizes(f"{model.folder}/")
        for path, size, content in demo_files(model):
            key = f"{model.folder}/{path}"
            if there.get(key) != size:
                uploader.put(key, shard_bytes(model, path) if content is None else content)
    finally:
        uploader.close()
    return f"s3://{BUCKET}/{model.folder}"


def _write(model: DemoModel, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for path, size, content in demo_files(model):
        # A file that is whole is not touched: its time is part of what was registered.
        if not (folder / path).exists() or (folder / path).stat().st_size != size:
            # Outside the model's folder: a kill must not leave a half-written file in what is registered.
            temporary = folder.parent / f".{model.version}-{path}"
            temporary.write_bytes(shard_bytes(model, path) if content is None else content)
            temporary.replace(folder / path)
    return folder.as_uri()


def _register(model: DemoModel, connection: SourceConnection, place: str, say: Say) -> None:
    version, operation = version_register(
        actor=DEMO, model=model.model, version=model.version, connection=connection, uri=place
    )
    # Here, not in the worker: it is not running yet, and pinning needs the result.
    _finish(operation)
    say(f"Registered {version.full_name}.")


def _finish(operation: Operation) -> None:
    until = time.monotonic() + REGISTER_SECONDS
    while operation.state not in FINAL_STATES and time.monotonic() < until:
        if operation_step(operation_id=operation.pk):
            time.sleep(0.05)
        operation.refresh_from_db()


def _pin(model: DemoModel, cluster: Cluster, say: Say) -> None:
    version = _version(model)
    pools = NodePool.objects.filter(cluster=cluster, name__in=model.pools)
    ids = tuple(pools.values_list("pk", flat=True))
    if version is None or version.state != VersionState.AVAILABLE or not ids:
        return
    if not Pin.objects.filter(version=version, removed_at__isnull=True).exists():
        pin_create(actor=DEMO, spec=PinSpec(version_id=version.pk, pool_ids=ids, priority=model.priority))
        say(f"Pinned {version.full_name} to {', '.join(model.pools)}.")


def _serve(model: DemoModel, cluster: Cluster, say: Say) -> None:
    """An endpoint of the local fleet, once: what people end stays ended. The prompts that the demo sends are made up by
    itself, so their keys are recorded: a replay has something to show in the first minutes."""
    version = _version(model)
    if version is None or version.artifact is None or not is_own_fleet(cluster):
        return
    store = LocalFleet(Path(cluster.address)).store
    made = endpoint_serve(
        store, model.endpoint, version.artifact.digest, replicas=ENGINES, model=model.model, pool=model.pools[0],
        record_keys=True,
    )  # fmt: skip
    audit_write(
        actor=DEMO,
        action="fleet.serve",
        object_type="Endpoint",
        object_id=made.uid,
        object_name=version.full_name,
        after={"endpoint": made.name, "replicas": made.replicas, "pool": made.pool, "record_keys": made.record_keys},
    )
    say(f"Serves {version.full_name} as {made.name}.")


def _version(model: DemoModel) -> ModelVersion | None:
    versions = ModelVersion.objects.select_related("model", "artifact").defer("artifact__manifest")
    return versions.filter(model__name=model.model, version=model.version).first()


def _unfinished(model: DemoModel) -> bool:
    version = _version(model)
    return version is not None and version.state != VersionState.AVAILABLE


def _was_done(action: str, model: DemoModel) -> bool:
    """The trail remembers what was made even after people have deleted it."""
    return AuditEvent.objects.filter(
        actor=DEMO.name, action=action, object_name=f"{model.model} {model.version}"
    ).exists()
