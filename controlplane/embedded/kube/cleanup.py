"""Put back what clusters without an owner left on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from controlplane.embedded.kube import machine
from controlplane.embedded.kube.ledger import Ledger
from controlplane.embedded.processes import AlreadyRunning, Supervisor, holder


def clean(folder: Path) -> list[str]:
    """End what an earlier cluster in a folder left and undo its changes; returns what was undone.

    Raises AlreadyRunning while its owner lives.
    """
    folder = folder.absolute()
    if not (folder / "ledger").exists():
        return []
    # Claiming the state ends what is recorded there, or refuses while the owner lives.
    with Supervisor(folder, label="A Kubernetes cluster"):
        undone = Ledger(folder / "ledger").undo_all()
        for name in ("nodes", "registry", "etcd"):
            shutil.rmtree(folder / name, ignore_errors=True)
        return undone


def clean_abandoned(*, but: Path | None = None) -> list[Path]:
    """Clean every registered cluster of this machine whose owner is gone; returns their folders."""
    cleaned = []
    for folder in machine.members():
        if folder == but or holder(folder) is not None:
            continue
        if (folder / "ledger").exists():
            try:
                clean(folder)
            except AlreadyRunning:
                continue  # another cluster that starts at this moment does it
        else:
            machine.leave(str(folder))  # its folder was deleted by hand
        cleaned.append(folder)
    return cleaned
