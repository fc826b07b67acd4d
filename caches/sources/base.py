"""What a store can be asked, the same for every type, by the worker (catalogue) and the node's agent (bytes).

A source is bound to one ConnectionSpec and its credentials, is safe to share between threads, imports no Django and
raises only ``controlplane.errors``: ``Permanent`` or ``Transient`` with a ``documents.Reason`` value in ``reason``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from controlplane.clusters.documents import ConnectionSpec, FileRecord

PAGE_SIZE = 500
STALL_SECONDS = 30.0  # no byte for so long: Transient. A slow but moving stream never trips it.
CHUNK_BYTES = 4 * 1024 * 1024  # how much one step of a range yields at most, roughly

Chunk = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file as a listing names it: ``path`` relative to the URI, ``revision`` as in FileRecord.revision."""

    path: str
    size_bytes: int
    revision: str


@dataclass(frozen=True, slots=True)
class Page:
    """``next_token`` is "" on the last page. A page may be empty and still have a next one.

    The order is the store's own: SeaweedFS, for one, walks folders and does not sort whole keys.
    """

    files: tuple[ListedFile, ...]
    next_token: str = ""


@dataclass(frozen=True, slots=True)
class Resolved:
    """An address that means the same content for as long as the store can say so: a branch or a tag has become a
    commit in it, a range of versions one version. ``revision`` is that commit or version, "" where the store has none.
    ``facts`` is what else was learnt on the way, as JSON.
    """

    uri: str
    revision: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Terms:
    """What somebody must accept before ``subject`` may be read; ``place`` is where the text is, ``digest`` its SHA-256.
    ``accepted_uri`` is the resolved address once that is done."""

    subject: str
    version: str
    place: str
    digest: str
    text: str
    accepted_uri: str


class Source(Protocol):
    """``uri`` is ``s3://bucket/prefix``, ``file:///root/folder``, ``hf://organisation/name@revision`` or
    ``jumpstart://model@version``; it must lie inside the connection's ``allowed``."""

    spec: ConnectionSpec

    def probe(self) -> None:
        """Ask the store whether every place of the connection's ``allowed`` answers; raises as ``check`` does."""
        ...

    def resolve(self, uri: str) -> Resolved:
        """The address to register and to read by, whatever its branch or version range means tomorrow.

        Permanent(SourceUnavailable) where there is no such branch, tag or version; otherwise as ``check``.
        """
        ...

    def terms(self, uri: str) -> Terms | None:
        """What must be accepted before the content of a resolved address may be registered; None: nothing."""
        ...

    def check(self, uri: str) -> None:
        """Prove cheaply that the place exists, may be listed, and that one of its files may be read.

        Raises Permanent: AccessDenied (credentials, policy), SourceUnavailable (no such bucket, folder or prefix),
        InvalidRequest (outside the allowed list, refused address); Transient: SourceUnavailable.
        """
        ...

    def list_page(self, uri: str, token: str = "", page_size: int = PAGE_SIZE) -> Page:
        """The files below ``uri`` after ``token`` (opaque, from the previous page), at most ``page_size``."""
        ...

    def describe(self, uri: str, path: str) -> FileRecord:
        """Size, revision and the strongest checksum that the store states for the whole file; reads no content."""
        ...

    def bind(self, uri: str, file: FileRecord) -> FileRecord:
        """The record by which all reads of one download go: where a revision alone would not tell a file that is
        written over while it is read, bound to the state that it is in now. Permanent(SourceChanged) as below.
        """
        ...

    def read_range(
        self, uri: str, file: FileRecord, start: int, end: int, *, stall_seconds: float = STALL_SECONDS
    ) -> Iterator[Chunk]:
        """Yield exactly the bytes ``start`` (included) to ``end`` (excluded) of ``file.revision``.

        Chunks are borrowed: use one before asking for the next. Permanent(SourceChanged) when the file is gone or is
        no longer that revision; Transient(SourceUnavailable) when the stream breaks, ends early or stalls.
        """
        ...

    def read_head(self, uri: str, file: FileRecord, length: int) -> bytes:
        """The first ``length`` bytes (fewer when the file is shorter), for headers."""
        ...

    def close(self) -> None:
        """Let go of connections. The source is not used afterwards."""
        ...
