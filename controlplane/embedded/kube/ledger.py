"""What a cluster changes on the machine, written down before it is changed, so that any later start can undo it.

One file for each scope (a node, the network), one line for each change, undone last first. Undoing what was never
done, or was undone already, does nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from controlplane.embedded.kube import cgroups, links, machine, mounts
from controlplane.embedded.problems import EmbeddedError


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs from before: its kind, and which."""

    kind: str
    what: str


_UNDO: Mapping[str, Callable[[str], None]] = {
    "cgroup": cgroups.remove,
    "link": links.remove_link,
    "blackhole": links.remove_blackhole,
    "mounts": mounts.remove_under,
    "machine": machine.leave,
    "folder": lambda path: shutil.rmtree(path, ignore_errors=True),
}


class Ledger:
    """The changes of one cluster; ``folder`` holds a file for each scope."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, scope: str, kind: str, what: str) -> None:
        """Write a change down; only after this may it be made."""
        assert kind in _UNDO
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._file(scope).open("a") as lines:
            lines.write(json.dumps(asdict(Change(kind, what))) + "\n")

    def undo(self, scope: str) -> None:
        """Put back everything of a scope, last change first. What fails is named together, after the rest was tried."""
        failed = []
        for change in reversed(self._read(scope)):
            try:
                _UNDO[change.kind](change.what)
            except (OSError, EmbeddedError) as error:
                failed.append(f"{change.kind} {change.what}: {error}")
        if failed:
            raise EmbeddedError(
                f"Not everything that Kubernetes changed on this machine could be put back: {'; '.join(failed)}. "
                f"Run 'python -m controlplane.embedded.kube clean {self.folder.parent}' again."
            )
        self._file(scope).unlink(missing_ok=True)

    def undo_all(self) -> list[str]:
        """Put back everything, nodes before what they stand on; returns the scopes that had something."""
        scopes = sorted((path.stem for path in self.folder.glob("*.jsonl")), key=lambda scope: scope == SHARED)
        for scope in scopes:
            self.undo(scope)
        return scopes

    def _read(self, scope: str) -> list[Change]:
        try:
            lines = self._file(scope).read_text().splitlines()
        except FileNotFoundError:
            return []
        changes = []
        for line in lines:
            try:
                changes.append(Change(**json.loads(line)))
            except (ValueError, TypeError):
                continue  # cut off while it was written: the change was not made
        return [change for change in changes if change.kind in _UNDO]

    def _file(self, scope: str) -> Path:
        return self.folder / f"{scope}.jsonl"


# What every node of the cluster stands on.
SHARED = "cluster"
