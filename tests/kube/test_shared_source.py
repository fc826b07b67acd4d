"""A file system that is mounted on nodes and on the worker, FSx for example, as a source of a pool's nodes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import LazySettings

from caches.models import ModelVersion, SourceConnection
from caches.services.catalogue import version_register
from caches.services.connections import connection_create
from controlplane.accounts.models import Scope, User
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import Reason
from controlplane.clusters.services import pool_update
from controlplane.operations.models import Operation
from controlplane.operations.steps import operation_step
from tests.api.conftest import api_for
from tests.kube.again import warm_again
from tests.kube.hearth import MIB, HearthOnKube, agents, noise
from tests.kube.real import InstalledKube, shared

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

SIZE = 8 * MIB
Start = Callable[..., HearthOnKube]


@pytest.fixture
def mount(installed_kube: InstalledKube, settings: LazySettings) -> Iterator[Path]:
    """Readable by everybody, as an agent without power needs it."""
    folder = shared(installed_kube.cluster) / "models"
    settings.SOURCE_ROOTS = [str(folder)]
    (folder / "llama").mkdir(parents=True)
    for number in range(2):
        (folder / "llama" / f"model-{number}.safetensors").write_bytes(noise(f"{folder}/{number}", SIZE // 2))
    yield folder
    shutil.rmtree(folder)


def registered(folder: Path) -> ModelVersion:
    """By the worker, which is this process, and sees the file system too."""
    connection: SourceConnection = connection_create(actor=SYSTEM, name="fsx", type="Filesystem", allowed=[str(folder)])
    version, operation = version_register(
        actor=SYSTEM, model="llama", version="v1", connection=connection, uri=f"file://{folder}/llama"
    )
    while not operation_step(operation_id=operation.pk):
        pass
    version.refresh_from_db()
    assert version.artifact is not None, Operation.objects.get(pk=operation.pk).error
    return version


def inside(pid: int, script: str) -> str:
    """What a shell says in the mounts of a process, as its user."""
    argv = ["nsenter", f"--target={pid}", "--mount", "sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def test_it_is_warmed_from_a_file_system_that_the_pool_names(hearth_on: Start, mount: Path, operator: User) -> None:
    hearth = hearth_on("node-a")
    version = registered(mount)
    assert version.artifact is not None
    hearth.digests.add(version.artifact.digest)
    hearth.until(lambda: hearth.reports("node-a"), "the node reports", seconds=180)
    api = api_for(operator, Scope.READ, Scope.PINS_WRITE)
    answer = api.post("pins", {"model": "llama", "version": "v1", "pools": ["real.gpu"]})
    assert answer.status_code == 202, answer.content

    def refused() -> bool:
        entry = hearth.entry("node-a", version)
        return entry is not None and entry.reason == Reason.ACCESS_DENIED and str(mount) in entry.message

    hearth.until(refused, "the agent says that it does not see the folder", seconds=180)
    [blind] = agents(hearth.kube.nodes["node-a"])
    pool_update(actor=SYSTEM, pool_id=hearth.pool.pk, changes={"source_paths": [str(mount)]})
    hearth.until(
        lambda: len(running := agents(hearth.kube.nodes["node-a"])) == 1 and blind not in running,
        "another agent has taken its place", seconds=180,
    )  # fmt: skip
    hearth.until(warm_again(hearth, "node-a", version), "it is warm", seconds=180)
    assert hearth.content("node-a", version) == {
        f"model-{number}.safetensors": hashlib.sha256(noise(f"{mount}/{number}", SIZE // 2)).hexdigest()
        for number in range(2)
    }

    [agent] = agents(hearth.kube.nodes["node-a"])
    assert "Read-only file system" in inside(agent, f"echo x > {mount}/llama/mine"), "it reads and never writes"
    assert not os.path.exists(mount / "llama" / "mine")
    assert inside(agent, f"ls {mount.parent}").split() == ["models"]
