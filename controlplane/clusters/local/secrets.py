"""Credentials on the local fleet: one 0600 file per name in a 0700 folder, replaced whole. Imports no Django."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from controlplane.clusters.gateway import NotFound, Unreachable

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")  # as a file, with room for more


def secret_write(fleet: Path, name: str, data: Mapping[str, str]) -> None:
    """Replace the secret; a reader sees the old one or the new one."""
    path = _path(fleet, name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(dict(data), file)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def secret_read(fleet: Path, name: str) -> Mapping[str, str]:
    """NotFound when there is none. Its values appear in no message."""
    try:
        data = json.loads(_path(fleet, name).read_text())
    except FileNotFoundError:
        raise NotFound(f"No secret {name} on this fleet.") from None
    except OSError as error:
        raise Unreachable(f"The secret {name} cannot be read ({error.strerror}).") from None
    except ValueError:
        raise Unreachable(f"The secret {name} cannot be read: its file is not JSON.") from None
    if not isinstance(data, dict):
        raise Unreachable(f"The secret {name} cannot be read: its file holds no names and values.")
    return {str(key): str(value) for key, value in data.items()}


def secret_delete(fleet: Path, name: str) -> None:
    path = _path(fleet, name)
    path.unlink(missing_ok=True)
    # What a kill left in the middle of writing holds credentials too.
    unfinished = re.compile(re.escape(f".{path.name}.") + r"\d+\.[0-9a-f]{8}")
    for beside in path.parent.glob(".*") if path.parent.is_dir() else ():
        if unfinished.fullmatch(beside.name):
            beside.unlink(missing_ok=True)


def _path(fleet: Path, name: str) -> Path:
    if _NAME.fullmatch(name) is None:
        raise NotFound(f"{name!r:.80} cannot be the name of a secret.")
    return fleet / "secrets" / f"{name}.json"
