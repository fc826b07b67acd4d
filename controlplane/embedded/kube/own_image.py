"""Hearth's own image: its name has the content in it, so that whether it was built is known in a moment."""

from __future__ import annotations

import hashlib

from controlplane.embedded.kube import rootfs
from controlplane.embedded.kube.images import OWN, Builder
from controlplane.embedded.processes import ROOT


def tag() -> str:
    """``repository:content`` of what the tree would give now."""
    return f"{OWN}:{_content()}"


def build() -> str:
    """Its local name; built unless it was: a build in which nothing changed takes eleven seconds of the processor."""
    builder, name = Builder(), tag()
    return f"localhost/{name}" if builder.has(name) else builder.build(ROOT, ROOT / "Dockerfile", name)


def _content() -> str:
    """Differs when anything does that goes into the image: what .dockerignore lets in, the recipe, the base."""
    content = hashlib.sha256(rootfs.fingerprint().encode())
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for top in ("Dockerfile", ".dockerignore", *let_in):
        for path in sorted((ROOT / top).rglob("*")) if (ROOT / top).is_dir() else [ROOT / top]:
            if path.is_file() and "__pycache__" not in path.parts:
                content.update(f"\0{path.relative_to(ROOT)}\0".encode())
                content.update(path.read_bytes())
    return content.hexdigest()[:16]
