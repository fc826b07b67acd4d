"""`make run-kube` as a person uses it: one address, real nodes that get warm, kubectl beside it, nothing left over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.clusters.kubernetes import names
from controlplane.embedded import records
from controlplane.embedded.kube import cgroups
from controlplane.embedded.kube.api import Client
from controlplane.embedded.kube.cluster import missing_for_nodes
from controlplane.embedded.processes import ROOT
from tests.e2e.program import Program

# The cluster's three nodes and three more would not fit into a small machine at once.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.xdist_group("run-kube")]

WARM_SECONDS = 240.0


@pytest.fixture
def folder() -> Iterator[Path]:
    missing = missing_for_nodes()
    if missing and not os.environ.get("CI"):
        pytest.skip(missing)
    made = Path(tempfile.mkdtemp(prefix="hearth-run-kube-"))
    yield made
    shutil.rmtree(made)


def left(folder: Path) -> list[str]:
    """Mounts and processes of this program that are still there."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found = [point for point in mounts if str(folder) in point]
    found += [str(path) for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder) in _text(path)]
    return found


def _changes(folder: Path) -> list[str]:
    """Paths that exist while the links and control groups do that this cluster wrote down."""
    lines = [json.loads(line) for line in _ledger(folder).splitlines()]
    links = [f"/sys/class/net/{line['what']}" for line in lines if line["kind"] == "link"]
    return links + [f"{cgroups.ROOT}/pids/{line['what']}" for line in lines if line["kind"] == "cgroup"]


def _ledger(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted((folder / "kube" / "ledger").glob("*.jsonl")))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def kubectl(folder: Path, *arguments: str) -> str:
    kubeconfig = folder / "kube" / "admin.kubeconfig"
    program = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(
        [str(program), "--kubeconfig", str(kubeconfig), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def warm(folder: Path) -> dict[str, list[str]]:
    """The states of each node's entries, by its name, as its agent reports them."""
    server = json.loads((folder / "kube" / "admin.kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
    found = Client(server, folder / "kube" / "pki", "admin").get(names.NODE_CACHES)["items"]
    return {
        item["metadata"]["name"]: [entry["state"] for entry in item.get("status", {}).get("entries", [])]
        for item in found
    }


def test_it_warms_real_nodes_obeys_kubectl_and_leaves_nothing_behind(folder: Path) -> None:
    with Program(folder, nodes=3, more=["--kubernetes"]) as program:
        wanted = {"node-a": ["Ready"] * 2, "node-b": ["Ready"] * 2, "node-c": ["Ready"] * 2}
        assert records.wait_until(lambda: warm(folder) == wanted, WARM_SECONDS), warm(folder)

        table = kubectl(folder, "get", "nodecaches").splitlines()
        assert table[0].split() == ["NAME", "DESIRED", "READY", "FREE", "REPORTED", "AGE"]
        assert [line.split()[:3] for line in table[1:]] == [[name, "2", "2"] for name in wanted]
        with urllib.request.urlopen(f"{program.address}/login", timeout=60) as page:
            assert "Sign in" in page.read().decode()

        # Hearth has its own account; a person's kubectl has everything.
        assert "token" in json.loads((folder / "kube" / "hearth.kubeconfig").read_text())["users"][0]["user"]
        for secret in ("hearth.kubeconfig", "admin.kubeconfig", "s3.json"):
            assert (folder / "kube" / secret).stat().st_mode & 0o077 == 0

        assert "lost power" in verb(program, "stop", "node-c")
        assert "node-c  pool-b  stopped" in verb(program, "list")
        assert "is dead already" not in verb(program, "start", "node-c")
        assert "There is no machine node-x" in verb(program, "stop", "node-x", fails=True)
        changes = _changes(folder)
        assert len(changes) == 1 + 3 * 2 and all(Path(path).exists() for path in changes)
    assert [path for path in changes if Path(path).exists()] == []
    assert left(folder) == []


def verb(program: Program, *arguments: str, fails: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "kube", *arguments],
        env=program.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert bool(done.returncode) is fails, done.stderr
    return done.stdout + done.stderr
