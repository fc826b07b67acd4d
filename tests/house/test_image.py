"""What the processes of the image need, and a base image need not have; and how they start and end there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from controlplane.embedded import ports
from controlplane.embedded.processes import ROOT


def test_celery_starts_where_the_system_has_no_time_zones() -> None:
    env = {**os.environ, "PYTHONTZPATH": ""}
    argv = [sys.executable, "-m", "celery", "--app=controlplane.celery", "worker", "--help"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-1000:]


def test_a_process_waits_for_a_database_that_does_not_answer_and_ends_when_asked() -> None:
    url = f"postgres://nobody:sesame@{ports.HOST}:{ports.free_port()}/none"
    env = {**os.environ, "DATABASE_URL": url, "HEARTH_DATABASE_POOL": "0", "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, "manage.py", "await_schema"]
    with subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    assert said.startswith("Waiting for the database: ")
    assert "sesame" not in said
