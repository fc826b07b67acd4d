"""What the processes of the image need, and a base image need not have; and how they start and end there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from controlplane.embedded import ports
from controlplane.embedded.processes import ROOT


def test_celery_starts_where_the_system_has_no_time_zones() -> None:
    env = {**os.environ, "PYTHONTZPATH": ""}
    argv = [sys.executable, "-m", "celery", "--app=controlplane.celery", "worker", "--help"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-1000:]


def test_a_process_waits_for_a_database_and_hears_when_its_address_is_corrected(tmp_path: Path) -> None:
    """And ends when asked."""
    file = tmp_path / "database-url"
    addresses = (
        (f"postgres://nobody:sesame@{ports.HOST}:{ports.free_port()}/none\n", "Waiting for the database: "),
        ("postgress://nobody:sesame@host/none\n", "Waiting for the address of a database: "),
        (os.environ["DATABASE_URL"], "Waiting for "),
    )
    file.write_text(addresses[0][0])
    env = {
        **{name: value for name, value in os.environ.items() if name != "DATABASE_URL"},
        "DATABASE_URL_FILE": str(file), "HEARTH_DATABASE_POOL": "0", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    argv = [sys.executable, "manage.py", "await_schema"]
    with subprocess.Popen(
        argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for address, reason in addresses:
                (tmp_path / "new").write_text(address)
                (tmp_path / "new").replace(file)
                said = next(line for line in process.stdout if line.startswith("Waiting"))  # some have more lines
                assert said.startswith(reason) and "sesame" not in said, said
            assert " migrations, " in said
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 1
        finally:
            process.kill()
