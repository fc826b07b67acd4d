"""docs/ci/warm.sh against a real server, the way a pipeline runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from django.utils import timezone
from pytest_django.live_server_helper import LiveServer

from caches.models import ModelVersion, Pin
from caches.services.connections import connection_create
from controlplane.accounts.models import Scope, User
from controlplane.accounts.services import token_create
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState
from controlplane.operations.services import (
    operation_acknowledge,
    operation_cancel,
    operation_run,
    operation_succeed,
)
from controlplane.operations.steps import operation_step
from tests import factories
from tests.factories import MIB

SCRIPT = Path(__file__).parents[3] / "docs" / "ci" / "warm.sh"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


@dataclass
class Pipeline:
    """A job with its environment; ``node_bytes`` and the folder's size decide whether the model fits."""

    url: str
    token: str
    uri: str
    pool: str
    path: str

    def run(self, *args: str, version: str = "v1", token: str | None = None, **env: str) -> Any:
        command = ["/bin/sh", str(SCRIPT), "--model", "llama", "--version", version, "--connection", "disk"]
        command += ["--uri", self.uri, "--pool", self.pool, "--timeout", "100", *args]
        given = {"PATH": self.path, "HEARTH_URL": self.url, "HEARTH_TOKEN": token or self.token, **env}
        return subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def pipeline(
    live_server: LiveServer, operator: User, tmp_path: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> Pipeline:
    # No broker runs here, and each commit would wait for one.
    monkeypatch.setattr("controlplane.celery.publish", lambda task, *ids: True)
    source = tmp_path / "source" / "llama"
    source.mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "model.bin").write_bytes(b"weights" * 1000)
    settings.SOURCE_ROOTS = [str(tmp_path)]
    connection_create(actor=SYSTEM, name="disk", type="Filesystem", allowed=[str(source.parent)])
    pool = factories.pool()
    factories.node(of=pool, capacity_bytes=100 * MIB)
    scopes = [Scope.READ, Scope.MODELS_WRITE, Scope.PINS_WRITE]
    _, secret = token_create(actor=SYSTEM, user=operator, name="ci", scopes=scopes)
    return Pipeline(live_server.url, secret, source.as_uri(), pool.full_name, os.environ["PATH"])


@pytest.fixture
def worker() -> Iterator[Callable[[Callable[[Operation], object]], None]]:
    """Starts a stand-in for the worker: real steps for registrations, what the test says for warming."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def work(warm: Callable[[Operation], object]) -> None:
        try:
            while not stop.wait(0.05):
                for operation in Operation.objects.filter(state__in=ACTIVE_STATES):
                    if operation.kind == OperationKind.PIN_WARM:
                        warm(operation)
                    else:
                        operation_step(operation_id=operation.pk)
        finally:
            connection.close()

    def start(warm: Callable[[Operation], object]) -> None:
        threads.append(threading.Thread(target=work, args=(warm,)))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join(60)


def succeed(operation: Operation) -> None:
    operation_run(operation_id=operation.pk)
    operation_succeed(operation_id=operation.pk)


def cancel(operation: Operation) -> None:
    operation_cancel(actor=SYSTEM, operation_id=operation.pk)
    operation_acknowledge(operation_id=operation.pk)


def test_it_warms_and_says_so_and_only_waits_when_it_runs_again(pipeline: Pipeline, worker: Any) -> None:
    worker(succeed)

    first = pipeline.run()
    factories.entry(on=Node.objects.get(), of=factories.version_of(Pin.objects.get()).artifact)
    again = pipeline.run()

    assert first.returncode == 0, first.stderr
    assert "moves 7002 bytes" in first.stderr
    assert again.returncode == 0, again.stderr
    assert "already pinned" in again.stderr
    assert Pin.objects.count() == ModelVersion.objects.count() == 1
    assert pipeline.token not in first.stdout + first.stderr


def test_it_needs_only_python_where_jq_is_not_installed(pipeline: Pipeline, worker: Any, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("curl", "python3", "od", "tr", "date", "mktemp", "rm", "sed", "head", "grep", "sleep"):
        found = shutil.which(name)
        assert found is not None, name
        (tools / name).symlink_to(found if name != "python3" else Path(sys.executable).resolve())
    pipeline.path = str(tools)
    worker(succeed)

    done = pipeline.run("--ignore", "*.bin", "--priority", "900", version="small")

    assert done.returncode == 0, done.stderr
    version = ModelVersion.objects.get(version="small")
    assert version.ignore_patterns == ["*.bin"] and version.artifact is not None
    assert version.artifact.files_count == 1
    assert Pin.objects.get().priority == 900


def test_it_stops_before_it_pins_what_does_not_fit(pipeline: Pipeline, worker: Any) -> None:
    worker(succeed)
    Node.objects.update(capacity_bytes=5000)

    done = pipeline.run()

    assert done.returncode == 1
    assert "needs 7002, free 4250, reserved 0 bytes" in done.stderr
    assert "code=pin:user:insufficient-capacity next_step=" in done.stderr.splitlines()[-1]
    assert not Pin.objects.exists()


def test_it_stops_before_it_evicts_what_must_stay(pipeline: Pipeline, worker: Any) -> None:
    worker(succeed)
    Node.objects.update(capacity_bytes=10_000)
    old = factories.version(model="old", version="v1", artifact=factories.artifact(size_bytes=5000))
    long_ago = timezone.now() - timedelta(days=1)
    factories.entry(on=Node.objects.get(), of=old.artifact, ready_at=long_ago)

    done = pipeline.run("--keep", "other v1", "--keep", "old v1")

    assert done.returncode == 1, done.stderr
    assert "code=pin:user:would-evict" in done.stderr.splitlines()[-1]
    assert not Pin.objects.exists()


def test_it_prints_code_and_next_step_of_what_failed(pipeline: Pipeline, worker: Any) -> None:
    worker(cancel)

    canceled = pipeline.run()
    unknown = pipeline.run(token="hearth_" + "0" * 64)
    elsewhere = pipeline.run("--uri", "file:///etc")

    assert [done.returncode for done in (canceled, unknown, elsewhere)] == [1, 1, 1]
    assert "code=operation:user:canceled" in canceled.stderr
    assert "code=token:user:unknown next_step=Create" in unknown.stderr
    assert "code=source:user:not-allowed next_step=Use a place" in elsewhere.stderr


def test_it_ends_with_two_when_its_time_is_up(pipeline: Pipeline, worker: Any) -> None:
    worker(lambda operation: operation_run(operation_id=operation.pk))

    done = pipeline.run("--timeout", "10")

    assert done.returncode == 2, done.stderr
    assert f"operations/{Operation.objects.get(kind=OperationKind.PIN_WARM).pk}" in done.stderr
    assert Operation.objects.get(kind=OperationKind.PIN_WARM).state == OperationState.RUNNING


def test_it_never_shows_the_token_to_the_process_list(pipeline: Pipeline, worker: Any, tmp_path: Path) -> None:
    curl = tmp_path / "bin" / "curl"
    curl.parent.mkdir()
    seen = tmp_path / "arguments"
    curl.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{seen}\nexec {shutil.which("curl")} "$@"\n')
    curl.chmod(0o755)
    pipeline.path = f"{curl.parent}:{pipeline.path}"
    worker(succeed)

    assert pipeline.run().returncode == 0
    assert "/api/v1/pins" in seen.read_text()
    assert pipeline.token not in seen.read_text()


def test_it_refuses_a_pin_that_lacks_a_pool(pipeline: Pipeline, worker: Any) -> None:
    worker(succeed)
    more = factories.pool()
    factories.node(of=more)

    assert pipeline.run().returncode == 0
    done = pipeline.run("--pool", more.full_name)

    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "code=pin:user:other-pools" in last and more.full_name in last and pipeline.pool not in last
    assert str(Pin.objects.get().pk) in last
    assert Pin.objects.get().pools.count() == 1


def test_it_waits_for_what_an_existing_pin_wants_now(pipeline: Pipeline, worker: Any) -> None:
    worker(succeed)
    assert pipeline.run().returncode == 0  # its operation has succeeded, and no node has the files

    late = pipeline.run("--timeout", "10")
    factories.entry(
        on=Node.objects.get(),
        of=factories.version_of(Pin.objects.get()).artifact,
        state=EntryState.FAILED,
        reason="IntegrityMismatch",
        message="Wrong bytes.",
    )
    failed = pipeline.run()
    Pin.objects.update(suspended=True)
    suspended = pipeline.run()

    assert late.returncode == 2, late.stderr
    assert f"pins/{Pin.objects.get().pk}" in late.stderr.splitlines()[-1]
    assert failed.returncode == 1 and "code=pin:node:failed" in failed.stderr, failed.stderr
    assert "IntegrityMismatch Wrong bytes." in failed.stderr
    assert suspended.returncode == 1 and "code=pin:user:suspended" in suspended.stderr, suspended.stderr


@pytest.mark.parametrize(
    ("gate_type", "value", "code"), [("All", 100, 2), ("Count", 1, 0), ("Percent", 50, 0), ("Timeout", 1, 0)]
)
def test_it_obeys_the_gate_of_an_existing_pin(
    pipeline: Pipeline, worker: Any, gate_type: str, value: int, code: int
) -> None:
    worker(succeed)
    assert pipeline.run().returncode == 0
    pin = Pin.objects.get()
    factories.entry(on=Node.objects.get(), of=factories.version_of(pin).artifact)
    factories.node(of=pin.pools.get())
    Pin.objects.update(gate_type=gate_type, gate_value=value)

    # Only who waits in vain needs to give up soon.
    done = pipeline.run("--timeout", "10" if code else "100")

    assert done.returncode == code, done.stderr


def test_it_fails_when_nothing_ever_answered(pipeline: Pipeline, worker: Any) -> None:
    closed = pipeline.url.rsplit(":", 1)[0] + ":9"

    refused = pipeline.run("--timeout", "3", HEARTH_URL=closed)
    wrong = pipeline.run(HEARTH_URL="http://[broken")

    assert refused.returncode == 1 and "code=pipeline:hearth:unreachable" in refused.stderr, refused.stderr
    assert "curl error 7" in refused.stderr
    assert wrong.returncode == 1 and "code=pipeline:user:address" in wrong.stderr, wrong.stderr


def test_it_sends_names_as_they_are(pipeline: Pipeline, worker: Any) -> None:
    done = pipeline.run("--model", "a b/../{c}?x=1")

    assert done.returncode == 1, done.stderr
    assert "/api/v1/models/a b/../{c}?x=1/versions" in done.stderr  # the address that the server says it got


def test_it_says_how_to_call_it() -> None:
    done = subprocess.run(["/bin/sh", str(SCRIPT), "--model"], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 1 and "code=pipeline:user:usage" in done.stderr
