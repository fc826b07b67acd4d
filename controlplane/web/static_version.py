"""One short digest of everything served below /static/, so that every address is immutable without a build step.

The digest is part of STATIC_URL: relative imports between ES modules and references from CSS and SVG keep working,
browsers may keep each file for a year, and a changed file has a new address after the next start.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path


def static_version(folder: Path) -> str:
    """Eight hex digits over own files (names and content) and the versions of the packaged ones."""
    state = hashlib.sha256()
    for package in ("plotly", "django-htmx", "drf-spectacular-sidecar"):
        state.update(f"{package} {version(package)}\n".encode())
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            state.update(f"{file.relative_to(folder)}\0".encode())
            state.update(file.read_bytes())
    return state.hexdigest()[:8]
