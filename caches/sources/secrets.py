"""Credentials by name, as files ``<folder>/<name>.json`` of mode 0600. Their content is never logged or shown."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from caches.sources import problems

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?")


def read_secret(name: str, folder: Path | None = None) -> Mapping[str, str]:
    """The content of a secret, read afresh; {} for the name "". Permanent(AccessDenied) when it cannot be read."""
    if not name:
        return {}
    path = _path(name, folder)
    try:
        if not _is_private(path.stat()):
            raise problems.secret_missing(name, "may be read by other users, so it is not used: its mode must be 0600")
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise problems.secret_missing(name) from error
    except (OSError, ValueError) as error:
        raise problems.secret_missing(name, "cannot be read") from error
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise problems.secret_missing(name, "is not an object of texts")
    return content


def _is_private(found: os.stat_result) -> bool:
    """Readable by nobody else. What a kubelet mounts is root's and readable by the pod's own group, which holds the
    processes of this very pod."""
    mounted = found.st_uid == 0 != os.geteuid() and found.st_gid in os.getgroups() and not found.st_mode & 0o037
    return mounted or not found.st_mode & 0o077


def write_secret(name: str, content: Mapping[str, str], folder: Path | None = None) -> Path:
    """Replace a secret in one rename; it has mode 0600 from its first byte. ValueError for an impossible name."""
    path = _path(name, folder)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".secret-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(dict(content), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def delete_secret(name: str, folder: Path | None = None) -> bool:
    """Remove a secret. False when there was none."""
    try:
        _path(name, folder).unlink()
    except FileNotFoundError:
        return False
    return True


def secret_names(folder: Path | None = None) -> tuple[str, ...]:
    """The names that exist, in order."""
    place = folder or secrets_folder()
    return tuple(sorted(path.stem for path in place.glob("*.json") if _NAME.fullmatch(path.stem)))


def secrets_folder() -> Path:
    """Where Django's settings say, in a process that runs Django; otherwise where its environment says."""
    conf = sys.modules.get("django.conf")
    if conf is not None and conf.settings.configured:
        return Path(conf.settings.SECRETS_DIR)
    state = Path(os.environ.get("HEARTH_STATE_DIR") or Path(__file__).resolve().parents[2] / ".run")
    return Path(os.environ.get("HEARTH_SECRETS_DIR") or state / "secrets")


def _path(name: str, folder: Path | None) -> Path:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a secret's name has lower-case letters, digits, dots and dashes, at most 100")
    return (folder or secrets_folder()) / f"{name}.json"
