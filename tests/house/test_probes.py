"""The liveness probes of deploy/, run as they stand there: who hangs is ended, who waits for somebody else is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.embedded.processes import ROOT

KUBELET_LONGEST_BACK_OFF = 600.0  # seconds without an end after which a container starts at once again


def probe_of(name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / f"deploy/base/hearth/{name}.yaml").read_text())
    (deployment,) = [item for item in documents if item["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probe: dict[str, Any] = container["livenessProbe"]
    return probe


def run(name: str, folder: Path, env: dict[str, str] | None = None) -> int:
    """The exit code of a process's own probe, with its files in the test's folder."""
    command = [word.replace("/tmp/", f"{folder}/") for word in probe_of(name)["exec"]["command"]]
    if command[0] == "python":
        command[0] = sys.executable
    return subprocess.run(command, env=env, check=False, capture_output=True, timeout=120).returncode


@pytest.mark.parametrize(
    ("name", "age", "healthy"),
    [
        ("beat", 0, True), ("beat", 590, True), ("beat", 630, False), ("beat", None, True),
        ("watcher", 0, True), ("watcher", 45, True), ("watcher", 90, False), ("watcher", None, True),
    ],
)  # fmt: skip
def test_it_ends_a_process_whose_file_grew_old(tmp_path: Path, name: str, age: float | None, healthy: bool) -> None:
    file = tmp_path / "heartbeat"
    if age is not None:
        file.touch()
        then = time.time() - age
        os.utime(file, (then, then))
    assert (run(name, tmp_path) == 0) is healthy


@pytest.mark.parametrize(
    ("answer", "code", "healthy"),
    [
        ("celery@here: OK\n    pong", 0, True),
        ("Error: No nodes replied within time constraint", 69, False),
        ("Error: Could not connect to the message broker.", 69, True),  # the broker's illness
        ("Traceback (most recent call last):", 1, True),  # the question's own
    ],
)
def test_it_ends_a_worker_that_does_not_answer_and_none_whose_broker_is_away(
    tmp_path: Path, answer: str, code: int, healthy: bool
) -> None:
    (tmp_path / "answer").write_text(f"{answer}\n")
    celery = tmp_path / "celery"
    celery.write_text(f'#!/bin/sh\ncat "{tmp_path}/answer" >&2\nexit {code}\n')
    celery.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert (run("worker", tmp_path, env) == 0) is healthy


def test_a_clock_that_waits_for_its_broker_is_never_kept_from_starting() -> None:
    """Ended more seldom than the kubelet remembers, it starts at once when the broker is back."""
    probe = probe_of("beat")
    (silent,) = [int(word.split("> ")[-1].rstrip(")")) for word in probe["exec"]["command"] if "heartbeat" in word]
    assert silent + probe["periodSeconds"] * (probe.get("failureThreshold", 3) - 1) > KUBELET_LONGEST_BACK_OFF


@pytest.mark.parametrize("name", ["beat", "watcher", "worker", "web"])
def test_it_is_patient_with_a_busy_node(name: str) -> None:
    probe = probe_of(name)
    assert probe["timeoutSeconds"] <= probe["periodSeconds"]
    assert probe["periodSeconds"] * probe.get("failureThreshold", 3) >= 60
