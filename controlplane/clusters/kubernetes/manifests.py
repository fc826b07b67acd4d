"""Manifests as ArtifactManifest objects: compressed, in chunks an API server takes, checked when put together. Pure.

Every chunk is immutable, and its name holds the digest and a checksum of the whole text. A manifest whose revisions
moved is published beside the old one before that goes, so that a reader always finds one that is whole.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.clusters import codec
from controlplane.clusters.documents import Manifest, Origin
from controlplane.clusters.gateway import NotFound, Unreachable
from controlplane.clusters.kubernetes.names import (
    API_VERSION,
    MANAGED_BY,
    MANIFEST_KIND,
    MANIFEST_LABEL,
    ORIGIN_ANNOTATION,
)

CHUNK_BYTES = 660_000  # 880 KB in base64, under what an API server and its store take
LONGEST_TEXT_BYTES = 256 * 1024 * 1024  # of one manifest, unpacked
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})\Z")


@dataclass(frozen=True, slots=True)
class Published:
    """One chunk's name, and which text it belongs to."""

    name: str
    checksum: str
    part: int
    parts: int


def origin_note(origin: Origin) -> dict[str, str]:
    """The annotation of every chunk that says where the bytes are."""
    return {ORIGIN_ANNOTATION: codec.dumps(origin)}


def origin_of(digest: str, chunks: Iterable[Mapping[str, Any]]) -> Origin:
    """What the newest chunk says; NotFound when none does, Unreachable when it cannot be read. A newer writer's fields
    are ignored."""
    notes = [
        (str(chunk["metadata"].get("creationTimestamp", "")), note)
        for chunk in chunks
        if (note := (chunk["metadata"].get("annotations") or {}).get(ORIGIN_ANNOTATION))
    ]
    if not notes:
        raise NotFound(f"Nobody said where the bytes of {digest} are.")
    try:
        return codec.loads(Origin, max(notes)[1], ignore_unknown=True)
    except codec.DecodeError as error:
        raise Unreachable(f"The origin of {digest} cannot be read: {error}") from None


def label_of(digest: str) -> str:
    """The label value by which the chunks of a digest are found; NotFound for what is no SHA-256 digest."""
    match = _DIGEST.match(digest)
    if match is None:
        raise NotFound(f"{digest!r:.80} is not a SHA-256 digest.")
    return match[1][:63]


def chunks_of(manifest: Manifest) -> tuple[dict[str, Any], ...]:
    """The objects of a manifest, the same for the same manifest."""
    text = codec.dumps(manifest).encode()
    checksum = hashlib.sha256(text).hexdigest()
    data = zlib.compress(text, 6)
    pieces = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    label = label_of(manifest.digest)
    return tuple(
        {
            "apiVersion": API_VERSION,
            "kind": MANIFEST_KIND,
            "metadata": {
                "name": f"sha256-{manifest.digest[7:]}.{checksum[:12]}.{part}.{len(pieces)}",
                "labels": {**MANAGED_BY, MANIFEST_LABEL: label},
            },
            "spec": {
                "digest": manifest.digest,
                "checksum": checksum,
                "part": part,
                "parts": len(pieces),
                "data": base64.b64encode(piece).decode(),
            },
        }
        for part, piece in enumerate(pieces)
    )


def published(name: str) -> Published | None:
    """What a chunk's name says; None for a name that Hearth did not give."""
    parts = name.split(".")
    if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return Published(name, parts[1], int(parts[2]), int(parts[3]))


def whole_sets(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names of every complete set of chunks by short checksum; what is incomplete is left out."""
    sets: dict[str, dict[int, Published]] = defaultdict(dict)
    for name in names:
        if (known := published(name)) is not None:
            sets[known.checksum][known.part] = known
    return {
        checksum: tuple(found[part].name for part in sorted(found))
        for checksum, found in sets.items()
        if len(found) == next(iter(found.values())).parts
    }


def assembled(digest: str, chunks: Sequence[Mapping[str, Any]]) -> Manifest:
    """The newest whole manifest among the chunks of one digest. NotFound without any, Unreachable when damaged."""
    chunks = [chunk for chunk in chunks if (chunk.get("spec") or {}).get("digest") == digest]
    sets = whole_sets(chunk["metadata"]["name"] for chunk in chunks)
    if not sets:
        raise NotFound(f"No manifest {digest}.")
    by_name = {chunk["metadata"]["name"]: chunk for chunk in chunks}

    def newest(checksum: str) -> tuple[str, int]:
        metadata = by_name[sets[checksum][0]]["metadata"]
        version = str(metadata.get("resourceVersion", ""))
        return str(metadata.get("creationTimestamp", "")), int(version) if version.isdigit() else 0

    return _read(digest, [by_name[name]["spec"] for name in sets[max(sets, key=newest)]])


def _read(digest: str, specs: Sequence[Mapping[str, Any]]) -> Manifest:
    try:
        data = b"".join(base64.b64decode(str(spec["data"]), validate=True) for spec in specs)
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data, LONGEST_TEXT_BYTES)
        if not unpacker.eof:
            raise ValueError("it is cut off or too large")
        if hashlib.sha256(text).hexdigest() != specs[0]["checksum"]:
            raise ValueError("its checksum does not match")
        manifest = codec.loads(Manifest, text)
        if manifest.digest != digest:
            raise ValueError("it is another one's")
    except (KeyError, ValueError, binascii.Error, zlib.error) as error:
        raise Unreachable(f"The stored manifest {digest} is damaged: {error}.") from None
    return manifest


def identity(manifest: Manifest) -> frozenset[tuple[str, int, str, str]]:
    """What the digest covers. A file's revision belongs to its source and may move without the content moving."""
    return frozenset((file.path, file.size_bytes, file.algorithm.value, file.checksum) for file in manifest.files)
