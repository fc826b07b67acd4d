"""`manage.py run` as a person uses it: one address, Ctrl-C, a kill, a second start."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.embedded import ports, records
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import ROOT, holder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.xdist_group("program")]


class Run:
    """One `manage.py run --no-demo` on a state of its own."""

    def __init__(self, state: Path, port: int) -> None:
        self.state = state
        own = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "HEARTH_STATE_DIR"}
        self.env = {key: value for key, value in os.environ.items() if key not in own}
        self.env["HEARTH_STATE_DIR"] = str(state)
        self.env["http_proxy"] = "http://127.0.0.1:9"  # where nobody is: all that it starts it asks directly
        self.argv = [sys.executable, str(ROOT / "manage.py"), "run", "--no-demo", "--port", str(port)]
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv, cwd=ROOT, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def greeting(self) -> str:
        """Everything it says until it is ready, or has given up."""
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("Everything runs"):
                break
        return said

    def pids(self) -> dict[str, int]:
        return {
            record["name"]: record["pid"]
            for record in (json.loads(path.read_text()) for path in (self.state / "pids").glob("*.json"))
        }

    def refused(self, state: Path | None = None) -> str:
        """What another one says, on another ``state`` or on the same."""
        env = {**self.env, "HEARTH_STATE_DIR": str(state or self.state)}
        done = subprocess.run(self.argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        return done.stderr


@pytest.fixture
def program() -> Iterator[Run]:
    folder = Path(tempfile.mkdtemp(prefix="hearth-program-"))
    folder.chmod(0o755)
    run = Run(folder / "state", ports.free_port())
    yield run
    with run.process:
        run.process.kill()
    records.wait_until(lambda: not any(records.started_at(pid) for pid in run.pids().values()), 60)
    shutil.rmtree(folder)


def gone(pids: dict[str, int], within: float = 60.0) -> list[str]:
    records.wait_until(lambda: not any(records.started_at(pid) for pid in pids.values()), within)
    return [name for name, pid in pids.items() if records.started_at(pid)]


def assert_nobody_comes_between(program: Run, name: str, address: str) -> None:
    """The port of a server that ended is nobody else's; whoever asks meanwhile is answered by the next one."""
    before = program.pids()[name]
    os.killpg(before, signal.SIGKILL)
    with pytest.raises(EmbeddedError, match="is taken by"):
        ports.take_port(int(re.findall(r":(\d+)/", address)[0]), "")
    try:
        urllib.request.urlopen(address, timeout=120).close()
    except urllib.error.HTTPError as refused:
        refused.close()  # a router without an endpoint
    assert program.pids()[name] != before


def test_it_serves_one_address_recovers_from_a_kill_and_stops_on_ctrl_c(program: Run) -> None:
    said = program.greeting()
    addresses = re.findall(r"http://127\.0\.0\.1:\d+/", said)
    assert len(addresses) == 1, said
    with urllib.request.urlopen(f"{addresses[0]}healthz", timeout=60) as answer:
        assert answer.status == 200
    router = re.search(r"127\.0\.0\.1:\d+/v1", said)
    assert router is not None, said
    assert_nobody_comes_between(program, "web", f"{addresses[0]}healthz")
    assert_nobody_comes_between(program, "router", f"http://{router[0]}/models")
    first = program.pids()
    assert {"postgres", "valkey", "web", "worker", "beat"} <= set(first)

    second = program.refused()
    assert f"process {program.process.pid}" in second and addresses[0] in second
    assert "Traceback" not in second
    elsewhere = program.refused(program.state.parent / "other")
    assert f"Port {program.argv[-1]} on 127.0.0.1 is taken by " in elsewhere and "make run PORT=" in elsewhere
    assert f"(process {program.process.pid})" in elsewhere or not Path("/proc/net/tcp").exists()
    assert not (program.state.parent / "other").exists()

    with program.process:
        program.process.kill()
    assert gone(first) == []

    program.process = program.start()
    assert addresses[0] in program.greeting()
    again = program.pids()
    assert not set(again.values()) & set(first.values())
    program.process.send_signal(signal.SIGINT)
    out, _ = program.process.communicate(timeout=120)
    assert program.process.returncode == 0
    assert "Traceback" not in out
    assert gone(again, within=0) == []
    assert holder(program.state) is None
    assert list((program.state / "pids").iterdir()) == []
