"""A registry that says what a test wants, in place of the client that asks one over HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from caches.models import Image, SourceConnection
from caches.services.images import resolver as image_resolver
from caches.services.images.catalogue import image_register
from caches.services.images.resolving import image_resolve_step
from controlplane.audit.services import SYSTEM
from controlplane.errors import HearthError
from controlplane.operations.models import Operation


@dataclass(frozen=True, slots=True)
class Resolved:
    digest: str
    media_type: str = "application/vnd.oci.image.index.v1+json"
    platforms: Sequence[str] = ("linux/amd64", "linux/arm64")
    compressed_bytes: int = 400
    unpacked_bytes: int = 1000


@dataclass
class Registry:
    """``names`` maps references to what they resolve to; an error there is raised instead."""

    names: dict[str, Resolved | HearthError] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    closed: int = 0
    meanwhile: Callable[[], object] = lambda: None

    def resolve(self, reference: str) -> Resolved:
        self.asked.append(reference)
        self.meanwhile()
        found = self.names[reference]
        if isinstance(found, HearthError):
            raise found
        return found

    def current_digest(self, reference: str) -> str:
        return self.resolve(reference).digest

    def close(self) -> None:
        self.closed += 1

    def push(self, reference: str, content: str, **facts: Any) -> str:
        """The reference names another image from now on; its digest."""
        made = "sha256:" + hashlib.sha256(content.encode()).hexdigest()
        self.names[reference] = Resolved(made, **facts)
        return made


def use(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    def opened(connection: SourceConnection | None) -> Registry:
        return registry

    monkeypatch.setattr(image_resolver, "open_resolver", opened)
    return registry


def registered(reference: str) -> Image:
    """The image, after its operation has ended."""
    _, operation = image_register(actor=SYSTEM, reference=reference)
    assert image_resolve_step(operation_id=operation.pk)
    ended = Operation.objects.get(pk=operation.pk)
    assert ended.result is not None, ended.error
    return Image.objects.get(pk=ended.result["image_id"])
