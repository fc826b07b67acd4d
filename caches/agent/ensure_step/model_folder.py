"""The folder that the served container opens: links to the files, in the read-only mount or in the pod itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from caches.agent.marker import MarkedFile

OWN = ".hearth"  # where the pod's own copy lies inside the folder


def link_files(model: Path, target: str, files: Iterable[MarkedFile]) -> None:
    """Make ``model`` hold one link for each file, to ``target``/path; whatever an earlier attempt left goes first.

    The links are made beside and moved in one by one, so that a link is never there without its target's name.
    """
    clear(model, keep_own=True)
    for file in files:
        link = model / file.path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(_inside(target, file.path))


def own_target(store_tree: Path, model: Path) -> str:
    """The pod's own tree as links inside ``model`` name it: relative, because both containers mount it elsewhere."""
    return store_tree.relative_to(model).as_posix()


def clear(model: Path, *, keep_own: bool) -> None:
    """Empty the folder, which belongs to this pod alone."""
    for entry in os.scandir(model):
        if entry.name == OWN and keep_own:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _inside(target: str, path: str) -> str:
    if target.startswith("/"):
        return f"{target}/{path}"
    return "../" * path.count("/") + f"{target}/{path}"
