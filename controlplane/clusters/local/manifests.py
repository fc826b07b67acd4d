"""Immutable manifests in the store: compressed, in parts small enough for any API server, checked when read."""

from __future__ import annotations

import hashlib
import zlib

from controlplane.clusters import codec
from controlplane.clusters.documents import Manifest, Origin
from controlplane.clusters.gateway import Conflict, NotFound, Unreachable
from controlplane.clusters.local.store import Session

PART_BYTES = 900_000


def manifest_put(session: Session, manifest: Manifest) -> None:
    """Publish. The same files again are fine, also with newer revisions; Conflict when the digest stands for others."""
    text = codec.dumps(manifest).encode()
    checksum = hashlib.sha256(text).hexdigest()
    known = session.connection.execute(
        "SELECT checksum FROM manifests WHERE digest=? AND part=0", (manifest.digest,)
    ).fetchone()
    if known is not None:
        if known[0] == checksum:
            return
        if _identity(manifest_get(session, manifest.digest)) != _identity(manifest):
            raise Conflict(f"{manifest.digest} is published with other files.")
        manifest_delete(session, manifest.digest)
    data = zlib.compress(text, 6)
    parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    session.connection.executemany(
        "INSERT INTO manifests VALUES (?, ?, ?, ?, ?)",
        [(manifest.digest, number, len(parts), checksum, part) for number, part in enumerate(parts)],
    )


def manifest_get(session: Session, digest: str) -> Manifest:
    """NotFound when it was not published; Unreachable when what is stored is damaged or another one's."""
    rows = session.connection.execute(
        "SELECT parts, checksum, data FROM manifests WHERE digest=? ORDER BY part", (digest,)
    ).fetchall()
    if not rows:
        raise NotFound(f"No manifest {digest}.")
    try:
        text = zlib.decompress(b"".join(data for _, _, data in rows))
        manifest = codec.loads(Manifest, text)
    except (zlib.error, codec.DecodeError) as error:
        raise Unreachable(f"The stored manifest {digest} is damaged: {error}") from error
    whole = len(rows) == rows[0][0] and hashlib.sha256(text).hexdigest() == rows[0][1]
    if not whole or manifest.digest != digest:
        raise Unreachable(f"The stored manifest {digest} is damaged: its checksum does not match.")
    return manifest


def origin_put(session: Session, digest: str, origin: Origin) -> None:
    session.set_meta(f"origin:{digest}", codec.dumps(origin))


def origin_get(session: Session, digest: str) -> Origin:
    """NotFound when nobody said where the bytes are; Unreachable when what is stored is damaged."""
    text = session.meta(f"origin:{digest}")
    if not text:
        raise NotFound(f"Nobody said where the bytes of {digest} are.")
    try:
        return codec.loads(Origin, text, ignore_unknown=True)
    except codec.DecodeError as error:
        raise Unreachable(f"The stored origin of {digest} is damaged: {error}") from error


def digests(session: Session) -> list[str]:
    """Of everything that is published."""
    rows = session.connection.execute("SELECT DISTINCT digest FROM manifests ORDER BY digest").fetchall()
    return [row[0] for row in rows]


def _identity(manifest: Manifest) -> frozenset[tuple[str, int, str, str]]:
    """What the digest covers. A file's revision belongs to its source and may move without the content moving."""
    return frozenset((file.path, file.size_bytes, file.algorithm.value, file.checksum) for file in manifest.files)


def manifest_delete(session: Session, digest: str) -> None:
    session.connection.execute("DELETE FROM manifests WHERE digest=?", (digest,))
