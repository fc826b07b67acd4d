"""What registries say about images: manifests and indexes taken apart. Pure; anything unexpected is a ValueError."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INDEXES = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
MANIFESTS = frozenset(
    {"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}
)
CONFIGS = frozenset({"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"})
ACCEPT = ", ".join(sorted(INDEXES | MANIFESTS))
MAX_LAYERS = 512
MAX_PLATFORMS = 64
MAX_BYTES = 2**50
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Blob:
    """One descriptor: a layer, a configuration or a platform's manifest."""

    digest: str
    size_bytes: int
    media_type: str = ""
    platform: str = ""  # "linux/arm64/v8"; "" where none is said
    is_stargz: bool = False


@dataclass(frozen=True, slots=True)
class ImageManifest:
    config: Blob
    layers: tuple[Blob, ...]

    @property
    def compressed_bytes(self) -> int:
        """What a pull moves: the layers and the configuration, each once."""
        return sum({blob.digest: blob.size_bytes for blob in (*self.layers, self.config)}.values())


def media_type_of(document: Any, header: str) -> str:
    """What a document is, by its own word, else by its header; schema 1 has no word of its own."""
    if not isinstance(document, Mapping):
        raise ValueError("not an object")
    own = document.get("mediaType")
    stated = own if isinstance(own, str) and own else header.partition(";")[0].strip()
    if document.get("schemaVersion") == 1 or ("manifest.v1" in stated and "oci" not in stated):
        return "schema1"
    if stated in INDEXES | MANIFESTS:
        return stated
    # OCI leaves the field out where a registry states the type by other means, and some forget that.
    if "manifests" in document:
        return "application/vnd.oci.image.index.v1+json"
    if "layers" in document and "config" in document:
        return "application/vnd.oci.image.manifest.v1+json"
    return stated


def platforms_of(index: Mapping[str, Any]) -> tuple[Blob, ...]:
    """The manifests of an index that are for a platform; attestations and the like are none."""
    entries = _list(index.get("manifests"), MAX_PLATFORMS * 4)
    found = [_blob(entry) for entry in entries]
    real = [blob for blob in found if blob.platform and "unknown" not in blob.platform.split("/")]
    if len(real) > MAX_PLATFORMS:
        raise ValueError("more platforms than any image has")
    return tuple(real or [blob for blob in found if not blob.platform])


def manifest_of(document: Mapping[str, Any]) -> ImageManifest:
    config = _blob(document.get("config"))
    if config.media_type not in CONFIGS:
        raise ValueError("it is no image but another kind of artifact")
    return ImageManifest(config, tuple(_blob(entry) for entry in _list(document.get("layers"), MAX_LAYERS)))


def platform_of(document: Any) -> str:
    """``os/architecture[/variant]`` of an index's entry or of an image's configuration; "" where it is not said."""
    if not isinstance(document, Mapping):
        return ""
    parts = [document.get("os"), document.get("architecture"), document.get("variant")]
    named = [part for part in parts if isinstance(part, str) and part]
    return "/".join(named)[:60] if parts[0] and parts[1] and len(named) >= 2 else ""


def _blob(entry: Any) -> Blob:
    if not isinstance(entry, Mapping):
        raise ValueError("a descriptor is no object")
    digest, size, kind = entry.get("digest"), entry.get("size"), entry.get("mediaType")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError("a descriptor has no sha256 digest")
    if type(size) is not int or not 0 <= size <= MAX_BYTES:
        raise ValueError("a descriptor has no size")
    annotations = entry.get("annotations")
    marks = annotations if isinstance(annotations, Mapping) else {}
    return Blob(
        digest=digest,
        size_bytes=size,
        media_type=kind if isinstance(kind, str) else "",
        platform=platform_of(entry.get("platform")),
        is_stargz=any("toc.digest" in str(name) or "chunked" in str(name) for name in marks),
    )


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("a list is missing or too long")
    return value
