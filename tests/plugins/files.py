"""Changing files as people and tools do, and seeing to it that the change can be told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def stirred(path: Path, change: Callable[[], object]) -> None:
    """Make the change. The kernel's clock ticks coarsely: until it has moved, attributes are set once more."""
    before = path.stat().st_ctime_ns
    change()
    while path.stat().st_ctime_ns == before:
        path.chmod(path.stat().st_mode & 0o7777)


def rewrite(path: Path, data: bytes) -> None:
    """As a copy tool does that writes in place and keeps times: size, modification time and inode stay."""
    facts = path.stat()

    def write() -> None:
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    stirred(path, write)
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (facts.st_size, facts.st_mtime_ns, facts.st_ino)
