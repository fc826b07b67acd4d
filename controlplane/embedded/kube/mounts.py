"""Mounts of this machine: which there are below a folder, and how to end them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from controlplane.embedded import spawn
from controlplane.embedded.problems import EmbeddedError

_ATTEMPTS = 20  # mounts that lie on top of each other


def under(folder: str) -> list[str]:
    """Mount points at or below a folder, the last mounted first."""
    points = [_plain(line.split(" ")[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in reversed(points) if point == folder or point.startswith(folder.rstrip("/") + "/")]


def remove_under(folder: str) -> None:
    """Unmount everything at or below a folder; what is still in use disappears with its last user."""
    for _ in range(_ATTEMPTS):
        points = under(folder)
        if not points:
            return
        for point in points:
            subprocess.run(["umount", "--lazy", point], capture_output=True, check=False, timeout=30)
    raise EmbeddedError(f"something below {folder} stays mounted")


def tmpfs(path: Path, size: int) -> None:
    """Mount an empty file system of ``size`` bytes: what is full there is really full."""
    path.mkdir(parents=True, exist_ok=True)
    options = f"size={size},mode=0755,nosuid,nodev"
    spawn.run(["mount", "-t", "tmpfs", "-o", options, "hearth", str(path)], cwd=Path("/"), what=f"Mounting {path}")


def _plain(text: str) -> str:
    """The kernel writes space, tab and backslash as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
