"""What every cluster of this machine shares: kernel settings and mount points that kubelets change.

The first cluster with nodes writes down how they were, the last one puts them back. A cluster is registered by its
folder, so the next start also finds those whose owner was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATE = Path("/run/hearth-kube")
# Written by kubelets and by the bridge plugin.
_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
_SYS = Path("/proc/sys")
# Paths that no option moves; each node has its own file system there, which needs something to be mounted on.
MOUNT_POINTS = ("/var/lib/kubelet", "/var/lib/cni")


def join(cluster: str) -> None:
    """Register the cluster in a folder; the first one writes down how the machine was."""
    with _locked():
        before = STATE / "before.json"
        if not before.exists():
            settings = {name: (_SYS / name).read_text() for name in _SETTINGS if (_SYS / name).exists()}
            absent = [point for point in MOUNT_POINTS if not Path(point).exists()]
            unfinished = before.with_suffix(".new")
            unfinished.write_text(json.dumps({"settings": settings, "absent": absent}))
            unfinished.rename(before)
        _user(cluster).write_text(cluster)
        for point in MOUNT_POINTS:
            Path(point).mkdir(parents=True, exist_ok=True)
        # Pods of different nodes reach each other through the machine.
        (_SYS / "net/ipv4/ip_forward").write_text("1")


def leave(cluster: str) -> None:
    """Forget a cluster; the last one puts the machine back. Nothing happens when none is registered."""
    if not STATE.exists():
        return
    with _locked():
        _user(cluster).unlink(missing_ok=True)
        before = STATE / "before.json"
        if members() or not before.exists():
            return
        document = json.loads(before.read_text())
        for name, value in document["settings"].items():
            if (_SYS / name).read_text() != value:
                (_SYS / name).write_text(value)
        for point in document["absent"]:
            with contextlib.suppress(OSError):  # somebody else uses it by now
                Path(point).rmdir()
        before.unlink()


def members() -> list[Path]:
    """Folders of the clusters that are registered, whether their owner lives or not."""
    return [Path(path.read_text()) for path in sorted(STATE.glob("*.cluster"))]


def _user(cluster: str) -> Path:
    return STATE / f"{hashlib.sha256(cluster.encode()).hexdigest()[:16]}.cluster"


@contextmanager
def _locked() -> Iterator[None]:
    STATE.mkdir(mode=0o700, exist_ok=True)
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
