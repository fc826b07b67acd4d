"""What can go wrong on a person's machine, said in one sentence that ends in what to do."""

from __future__ import annotations

import shutil
from pathlib import Path


class EmbeddedError(Exception):
    """Something the person at the keyboard can fix; the text is printed as it is, without a traceback."""


def require_space(folder: Path, needed: int) -> None:
    """Raise EmbeddedError unless the file system of ``folder`` has ``needed`` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EmbeddedError(
            f"The disk under {folder} has {free / 1e9:.1f} GB free and Hearth needs {needed / 1e9:.1f} GB to start. "
            "Free some space, or put the state elsewhere: HEARTH_STATE_DIR=/path/with/room make run"
        )


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log file, or nothing where there is none."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
