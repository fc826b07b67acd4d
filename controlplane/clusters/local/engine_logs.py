"""What engines write: a file for each run, as a container runtime keeps them.

It outlives its engine for a while, because logs are read after the start. Imports no Django.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.clusters.gateway import NotFound

MOST_FILES = 200
_FOLDER = "engine-logs"
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_LAST_BYTES, _LAST_CHARACTERS = 4096, 300


@contextmanager
def log_opened(fleet: Path, uid: str, run: int) -> Iterator[int]:
    """The file that this run writes to, empty, as a descriptor. The oldest ones go. Raises OSError."""
    folder = fleet / _FOLDER
    folder.mkdir(exist_ok=True)
    _sweep(folder)
    descriptor = os.open(_path(fleet, uid, run), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def log_read(fleet: Path, uid: str, run: int | None, most: int) -> bytes:
    """The first ``most`` bytes of a run's log; ``run`` None is the latest. NotFound where nothing is kept."""
    if not _UID.match(uid):
        raise NotFound(f"No engine {uid!r:.80}.")
    if run is None:
        run = max((int(path.name.split(".")[1]) for path in (fleet / _FOLDER).glob(f"{uid}.*.log")), default=0)
    try:
        with _path(fleet, uid, run).open("rb") as file:
            return file.read(most)
    except OSError:
        raise NotFound(f"No log is kept of run {run} of engine {uid}.") from None


def last_words(fleet: Path, uid: str, run: int) -> str:
    """The last line that says something; "" where there is none."""
    try:
        with _path(fleet, uid, run).open("rb") as file:
            file.seek(-min(_LAST_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return "".join(one if one.isprintable() else " " for one in text)[:_LAST_CHARACTERS]


def _path(fleet: Path, uid: str, run: int) -> Path:
    return fleet / _FOLDER / f"{uid}.{run}.log"


def _sweep(folder: Path) -> None:
    """By age. One that is still written to is read no more by then, and goes when its engine does."""
    found = sorted(folder.glob("*.log"), key=_age, reverse=True)
    for path in found[MOST_FILES - 1 :]:
        path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
