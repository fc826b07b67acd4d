"""The health checks of docker-compose.yml, run as they stand there: they tell the truth about a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import LazySettings

from controlplane import heartbeat
from controlplane.celery import app, publish
from controlplane.embedded import records
from controlplane.embedded.processes import ROOT

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def _check(service: str, *changes: tuple[str, str], env: dict[str, str] | None = None) -> int:
    """The exit code of a service's own check, with parts of its text changed to fit the test."""
    kind, text = SERVICES[service]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    text = text.replace("$$", "$")
    for old, new in changes:
        assert old in text, f"the check of {service} does not speak of {old}"
        text = text.replace(old, new)
    return subprocess.run(["sh", "-c", text], cwd=ROOT, env=env, capture_output=True, timeout=120).returncode


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_it_checks_every_process_that_goes_on(name: str) -> None:
    check = SERVICES[name].get("healthcheck")
    if name == "web":
        assert check is None, "the image brings its own"
    elif name == "migrate":
        assert check == {"disable": True}, "it ends by itself"
    else:
        assert check is not None and check["test"] and not check.get("disable")


@pytest.mark.parametrize("name", ["worker", "beat", "watcher"])
def test_it_gives_a_start_on_a_slow_machine_its_time(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    seconds = {key: int(check[key].removesuffix("s")) for key in ("interval", "timeout", "start_period")}
    assert seconds["timeout"] < seconds["interval"] and seconds["start_period"] >= 30
    assert check["retries"] >= 2, "one slow answer is no illness"


@pytest.mark.parametrize("name", ["beat", "watcher"])
def test_it_looks_at_the_file_that_the_process_touches(name: str) -> None:
    environment = SERVICES[name]["environment"]
    assert environment["HEARTH_HEARTBEAT_FILE"] in SERVICES[name]["healthcheck"]["test"][1]
    assert environment["HEARTH_HEARTBEAT_FILE"].startswith("/tmp/"), "the only place it may write to"
    assert "/tmp" in SERVICES[name]["tmpfs"]
    assert set(SERVICES["web"]["environment"]) < set(environment), "nothing of the others' settings is lost"


@pytest.mark.parametrize("name", ["beat", "watcher"])
@pytest.mark.parametrize(("age", "healthy"), [(0, True), (15, True), (45, False), (86400, False), (None, False)])
def test_it_calls_a_process_ill_whose_file_is_old_or_missing(
    tmp_path: Path, name: str, age: float | None, healthy: bool
) -> None:
    file = tmp_path / "heartbeat"
    if age is not None:
        file.touch()
        then = time.time() - age
        os.utime(file, (then, then))
    assert (_check(name, ("/tmp/heartbeat", str(file))) == 0) is healthy


@pytest.fixture
def file(tmp_path: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.HEARTBEAT_FILE = str(tmp_path / "heartbeat")
    monkeypatch.setattr(heartbeat, "_last", -100.0)
    return tmp_path / "heartbeat"


def test_it_touches_its_file_once_a_second_at_most(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [50.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    heartbeat.beat()
    os.utime(file, (0, 0))
    clock[0] += 0.9
    heartbeat.beat()
    assert file.stat().st_mtime == 0
    clock[0] += 0.2
    heartbeat.beat()
    assert file.stat().st_mtime > 0


def test_it_never_fails_the_process_for_its_file(
    file: Path, settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.HEARTBEAT_FILE = str(file / "no" / "folder")
    heartbeat.beat()
    assert "No such file or directory" in caplog.text
    settings.HEARTBEAT_FILE = ""
    heartbeat.beat()
    assert not file.exists()


def test_it_shows_life_when_the_broker_takes_a_message_and_only_then(
    file: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError("connection refused")

    with monkeypatch.context() as away:
        away.setattr(app.amqp, "send_task_message", refused)
        assert publish("health.test") is False
    assert not file.exists()
    app.send_task("health.test", queue="health-test", expires=1)
    assert file.exists()


@pytest.mark.e2e
def test_it_asks_the_very_worker_whether_it_takes_messages(valkey_url: str, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    argv = [
        sys.executable,
        "-m",
        "celery",
        "--app=controlplane.celery",
        "worker",
        "--pool=solo",
        "--queues=health-test",
    ]
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [*argv, "--without-mingle", "--without-gossip"], cwd=ROOT, env=env, stdout=output, stderr=output
        )
    with worker:
        try:
            assert records.wait_until(lambda: "ready" in log.read_text() or worker.poll() is not None, 120)
            assert worker.poll() is None, log.read_text()
            # It says ready some moments before it is subscribed to what it is asked by; a probe asks again, too.
            assert records.wait_until(lambda: _check("worker", env=env) == 0, 60)
            other = ("celery@$(uname -n)", "celery@elsewhere")
            assert _check("worker", other, ("--timeout 10", "--timeout 1"), env=env) != 0
        finally:
            worker.terminate()
