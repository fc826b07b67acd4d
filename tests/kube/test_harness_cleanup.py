"""Whatever ends a cluster, the machine is afterwards as it was before."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.embedded import records
from controlplane.embedded.kube import cgroups, cleanup, links, machine, mounts
from controlplane.embedded.kube.cluster import KubeCluster, missing_for_nodes
from controlplane.embedded.kube.ledger import Ledger
from controlplane.embedded.processes import ROOT, AlreadyRunning, holder
from tests.kube import pods
from tests.plugins.kube import running
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.xdist_group("kube-machines")]

HOLD = (
    "import pathlib, sys, time\n"
    "from controlplane.embedded.kube.cluster import KubeCluster\n"
    "with KubeCluster(pathlib.Path(sys.argv[1]), label='A test', registry=True) as cluster:\n"
    "    cluster.add_node('doomed')\n"
    "    print(cluster.token, flush=True)\n"
    "    time.sleep(600)\n"
)


@pytest.fixture(autouse=True)
def _needs_nodes() -> None:
    missing = missing_for_nodes()
    if missing and not os.environ.get("CI"):
        pytest.skip(missing)


def traces(folder: Path) -> dict[str, list[str]]:
    """Everything on this machine that belongs to clusters below a folder, or to clusters as such."""
    own = str(folder)
    found = {
        "mounts": mounts.under(own),
        "processes": [path.name for path in Path("/proc").glob("[0-9]*") if _mentions(path, own)],
        "members": [str(path) for path in machine.members() if str(path).startswith(own)],
    }
    return {kind: rows for kind, rows in found.items() if rows}


def _mentions(process: Path, folder: str) -> bool:
    with contextlib.suppress(OSError):
        return folder in (process / "cmdline").read_text() and records.started_at(int(process.name)) != ""
    return False


def of_token(token: str) -> dict[str, list[str]]:
    """Links, routes and control groups of one cluster."""
    found = {
        "links": [name for name in os.listdir("/sys/class/net") if name.startswith(f"hk{token}")],
        "groups": [str(path) for path in cgroups.ROOT.glob(f"*/hearth-{token}-*")],
    }
    return {kind: rows for kind, rows in found.items() if rows}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a cluster may live; cleaned whatever a test leaves."""
    yield tmp_path / "cluster"
    cleanup.clean(tmp_path / "cluster")


@pytest.fixture
def abandoned(folder: Path) -> str:
    """A cluster with a node whose owner was killed without a word; returns its token."""
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    token = str(owner.stdout.readline(), "ascii").strip()
    assert len(token) == 6, "the owner did not start its cluster"
    assert set(of_token(token)) == {"links", "groups"}, "there is nothing to clean up: the test proves nothing"
    owner.send_signal(signal.SIGKILL)
    owner.wait(timeout=60)
    owner.stdout.close()
    return token


def test_it_leaves_nothing_behind_and_its_neighbour_alone(kube_cluster: KubeCluster) -> None:
    settings = _settings()
    with running("A test of its end", registry=True) as cluster:
        cluster.add_node("one")
        cluster.add_node("two")
        folder, token = cluster.folder, cluster.token
        network = cluster.control.network.whole
        assert set(traces(folder)) == {"mounts", "processes", "members"}
        assert set(of_token(token)) == {"links", "groups"}
    assert traces(folder) == {}
    assert of_token(token) == {}
    assert network not in {row["dst"] for row in links.routes()}
    assert not folder.exists()
    assert _settings() == settings
    # Settings are shared: the end of one cluster must not take the network from another.
    assert settings["net/ipv4/ip_forward"] == "1\n"
    served = pods.run(kube_cluster, "neighbour", "node-a", "echo still here > /tmp/index.html; httpd -f -p 80 -h /tmp")
    asks = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc {served['status']['podIP']} 80"
    pods.run(kube_cluster, "neighbours-client", "node-b", asks)
    assert "still here" in pods.logs(kube_cluster, "neighbours-client")


def test_it_puts_back_kernel_settings_and_mount_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, points = tmp_path / "sys", (str(tmp_path / "var/lib/kubelet"), str(tmp_path / "var/lib/cni"))
    for name in ("kernel/panic", "net/ipv4/ip_forward"):
        (settings / name).parent.mkdir(parents=True)
        (settings / name).write_text("0\n")
    Path(points[1]).mkdir(parents=True)
    monkeypatch.setattr(machine, "STATE", tmp_path / "run")
    monkeypatch.setattr(machine, "_SYS", settings)
    monkeypatch.setattr(machine, "MOUNT_POINTS", points)
    machine.join("/one")
    (settings / "kernel/panic").write_text("10\n")  # as kubelets do
    machine.join("/two")
    machine.leave("/one")
    assert (settings / "kernel/panic").read_text() == "10\n"
    assert machine.members() == [Path("/two")]
    machine.leave("/two")
    assert {name: (settings / name).read_text() for name in ("kernel/panic", "net/ipv4/ip_forward")} == {
        "kernel/panic": "0\n",
        "net/ipv4/ip_forward": "0\n",
    }
    assert [Path(point).exists() for point in points] == [False, True]


def test_it_starts_again_where_an_owner_was_killed(folder: Path, abandoned: str) -> None:
    with KubeCluster(folder, label="A second start", registry=True) as cluster:
        assert of_token(abandoned) == {}
        assert cluster.add_node("doomed").uid
    assert traces(folder) == {}


def test_it_runs_for_people_until_they_stop_it(folder: Path) -> None:
    command = [sys.executable, "-m", "controlplane.embedded.kube", "up", str(folder), "--nodes", "1"]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert running.stdout is not None
    said = [next(running.stdout) for _ in range(3)]
    running.send_signal(signal.SIGTERM)
    rest, _ = running.communicate(timeout=120)
    assert f"export KUBECONFIG={folder}/admin.kubeconfig" in said[1]
    assert running.returncode == 0, rest
    assert traces(folder) == {}


def test_it_finds_what_was_abandoned_in_other_folders(folder: Path, abandoned: str) -> None:
    cleanup.clean_abandoned()
    # A cluster that another worker starts at this moment may do it in our place.
    until(lambda: of_token(abandoned) == {} and traces(folder) == {}, "nothing is left")
    assert list((folder / "ledger").iterdir()) == []


def test_it_touches_no_cluster_whose_owner_lives(kube_cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kube_cluster.folder not in cleanup.clean_abandoned()
    # Whoever comes between the look and the claim loses nothing either.
    monkeypatch.setattr(cleanup, "holder", lambda folder: None if folder == kube_cluster.folder else holder(folder))
    assert kube_cluster.folder not in cleanup.clean_abandoned()
    with pytest.raises(AlreadyRunning):
        cleanup.clean(kube_cluster.folder)
    assert of_token(kube_cluster.token)
    assert kube_cluster.client.is_ready()


def test_it_undoes_a_ledger_that_was_cut_off(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.note("node-x", "folder", str(tmp_path / "made"))
    (tmp_path / "made").mkdir()
    with (tmp_path / "ledger" / "node-x.jsonl").open("a") as lines:
        lines.write('{"kind": "folder", "what": "/not/all of')
    assert ledger.undo_all() == ["node-x"]
    assert not (tmp_path / "made").exists()
    assert ledger.undo_all() == []


def test_it_undoes_what_was_noted_and_never_made(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    changes = {
        "cgroup": "hearth-none-1",
        "link": "hknone",
        "blackhole": "10.199.0.0/16 7",
        "mounts": str(tmp_path / "none"),
        "machine": str(tmp_path),
    }
    for kind, what in changes.items():
        ledger.note("node-x", kind, what)
    ledger.undo("node-x")
    assert not list((tmp_path / "ledger").iterdir())


def _settings() -> dict[str, str]:
    """Kernel settings that kubelets and bridges write."""
    names = ["kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom", "net/ipv4/ip_forward"]
    names += ["kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"]
    return {name: (Path("/proc/sys") / name).read_text() for name in names}
