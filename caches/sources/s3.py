"""S3 and everything that speaks it.

What stores state about content differs: S3 and SeaweedFS 4.48 give a full-object CRC64NVME or SHA-256 when the upload
asked for one (SeaweedFS also for multipart CRC64NVME) and COMPOSITE values for other multipart uploads; an upload
without a checksum algorithm has none. COMPOSITE values hash the parts' hashes and say nothing about the file's bytes
on their own, so such a file is anchored by its ETag only. boto3's own default, CRC32, is too weak to be an identity.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import obstore

from caches.sources import allowed, problems
from caches.sources.base import CHUNK_BYTES, PAGE_SIZE, STALL_SECONDS, Chunk, ListedFile, Page, Resolved, Terms
from caches.sources.checksums import crc64nvme_text, crc64nvme_value, sha256_hex
from caches.sources.s3_clients import bytes_store, control_client, write_ca_file
from caches.sources.s3_errors import control_errors, listing_errors, stream_errors
from controlplane.clusters.documents import Algorithm, ConnectionSpec, FileRecord, Reason
from controlplane.errors import Permanent

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import S3Store
    from types_boto3_s3 import S3Client


class S3Source:
    """See base.Source. Safe to share between threads."""

    def __init__(self, spec: ConnectionSpec, secret: Mapping[str, str], *, allow_private: bool = True) -> None:
        if secret and not (secret.get("access_key_id") and secret.get("secret_access_key")):
            raise problems.secret_missing(spec.secret_name, "lacks access_key_id or secret_access_key")
        allowed.check_endpoint(spec.endpoint, allow_private=allow_private)
        self.spec = spec
        self._secret = dict(secret)
        self._ca_file = write_ca_file(spec.ca_bundle) if spec.ca_bundle else None
        self._lock = threading.Lock()
        self._control: S3Client | None = None
        self._stores: dict[tuple[str, float], S3Store] = {}
        self._rebased: dict[tuple[str, FileRecord], FileRecord] = {}

    def probe(self) -> None:
        for bucket in self.spec.allowed:
            self.list_page(f"s3://{bucket}", page_size=1)

    def resolve(self, uri: str) -> Resolved:
        """Objects have versions, prefixes have none: every file carries its own."""
        allowed.split_s3(uri, self.spec)
        return Resolved(uri)

    def terms(self, uri: str) -> Terms | None:
        return None

    def check(self, uri: str) -> None:
        token = ""
        while True:
            page = self.list_page(uri, token, page_size=100)
            if page.files:
                self._check_file(uri, page.files[0].path)
                return
            if not page.next_token:
                raise problems.empty_place(uri)
            token = page.next_token

    def _check_file(self, uri: str, path: str) -> None:
        try:
            self.describe(uri, path)
        except Permanent as error:
            if error.reason != Reason.SOURCE_CHANGED:
                raise
            # Nothing is registered yet that could have changed.
            raise problems.not_found(path) from error

    def list_page(self, uri: str, token: str = "", page_size: int = PAGE_SIZE) -> Page:
        bucket, prefix = allowed.split_s3(uri, self.spec)
        inside = f"{prefix}/" if prefix else ""
        # Never StartAfter: SeaweedFS compares it with folder names and leaves out files (l/a/b after l/a).
        more: dict[str, Any] = {"ContinuationToken": token} if token else {}
        with listing_errors(bucket, uri):
            answer = self._client().list_objects_v2(Bucket=bucket, Prefix=inside, MaxKeys=page_size, **more)
            files = tuple(
                ListedFile(entry["Key"].removeprefix(inside), entry["Size"], _unquoted(entry["ETag"]))
                for entry in answer.get("Contents", [])
                # Consoles mark folders with empty objects.
                if not (entry["Key"].endswith("/") and entry["Size"] == 0)
            )
        following = answer.get("NextContinuationToken", "") if answer.get("IsTruncated") else ""
        if following and following == token:
            raise problems.rejected(uri, "the store gives the same page of its listing again and again.")
        return Page(files, following)

    def describe(self, uri: str, path: str) -> FileRecord:
        bucket, prefix = allowed.split_s3(uri, self.spec)
        with control_errors(bucket, path):
            head = self._client().head_object(Bucket=bucket, Key=_key(prefix, path), ChecksumMode="ENABLED")
            etag, size = _unquoted(head["ETag"]), head["ContentLength"]
        version_id = head.get("VersionId", "")
        algorithm, checksum = _anchor(head, etag)
        return FileRecord(
            path=path,
            size_bytes=size,
            algorithm=algorithm,
            checksum=checksum,
            revision=etag,
            version_id="" if version_id == "null" else version_id,
            scope="" if algorithm.is_content else f"{self.spec.name}:{bucket}",
        )

    def bind(self, uri: str, file: FileRecord) -> FileRecord:
        """An ETag is bound to its bytes already."""
        return file

    def read_range(
        self, uri: str, file: FileRecord, start: int, end: int, *, stall_seconds: float = STALL_SECONDS
    ) -> Iterator[Chunk]:
        if start >= end:
            return
        bucket, prefix = allowed.split_s3(uri, self.spec)
        with stream_errors(bucket, file.path):
            answer = self._open(uri, bucket, _key(prefix, file.path), file, (start, end), stall_seconds)
            stream = answer.stream(min_chunk_size=CHUNK_BYTES)
        position = start
        while True:
            with stream_errors(bucket, file.path):
                chunk = next(stream, None)
            if chunk is None:
                break
            position += len(chunk)
            if position > end:
                raise problems.unavailable(file.path, "the store sent more than was asked for.")
            yield memoryview(chunk)
        if position != end:
            raise problems.unavailable(file.path, "the stream ended early.")

    def read_head(self, uri: str, file: FileRecord, length: int) -> bytes:
        return b"".join(self.read_range(uri, file, 0, min(length, file.size_bytes), stall_seconds=10.0))

    def close(self) -> None:
        with self._lock:
            control, self._control = self._control, None
            self._stores.clear()
        if control is not None:
            control.close()
        if self._ca_file is not None:
            self._ca_file.unlink(missing_ok=True)

    def _open(
        self, uri: str, bucket: str, key: str, file: FileRecord, span: tuple[int, int], stall_seconds: float
    ) -> GetResult:
        """Open a range of the registered revision, or of one that the store says has the very same content."""
        current = self._rebased.get((uri, file), file)
        store = self._store(bucket, stall_seconds)
        try:
            with stream_errors(bucket, file.path):
                return _get(store, key, current, span)
        except Permanent as error:
            if error.reason != Reason.SOURCE_CHANGED or not file.algorithm.is_content:
                raise
            # Another store's copy, or the same bytes uploaded again: ETag and version differ, the checksum decides.
            found = self.describe(uri, file.path)
            if (found.size_bytes, found.algorithm, found.checksum) != (file.size_bytes, file.algorithm, file.checksum):
                raise
            self._rebased[(uri, file)] = found
        with stream_errors(bucket, file.path):
            return _get(store, key, found, span)

    def _client(self) -> S3Client:
        with self._lock:
            if self._control is None:
                self._control = control_client(self.spec, self._secret, str(self._ca_file) if self._ca_file else None)
            return self._control

    def _store(self, bucket: str, stall_seconds: float) -> S3Store:
        with self._lock:
            store = self._stores.get((bucket, stall_seconds))
            if store is None:
                store = self._stores[bucket, stall_seconds] = bytes_store(
                    self.spec, self._secret, bucket, stall_seconds
                )
            return store


def _get(store: S3Store, key: str, file: FileRecord, span: tuple[int, int]) -> GetResult:
    options: GetOptions = {"range": span, "if_match": f'"{file.revision}"'}
    if file.version_id:
        options["version"] = file.version_id
    answer = obstore.get(store, key, options=options)
    # A store, or a cache in front of it, that ignores If-Match must not slip another content in.
    meta = answer.meta
    if _unquoted(meta["e_tag"] or "") != file.revision or meta["size"] != file.size_bytes or answer.range != span:
        raise problems.changed(file.path)
    return answer


def _anchor(head: Mapping[str, Any], etag: str) -> tuple[Algorithm, str]:
    """The strongest statement about the whole content, else the ETag."""
    if head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
        # Older stores leave the type out and mark composite values with "-<parts>", which does not decode.
        with contextlib.suppress(KeyError, ValueError):
            return Algorithm.SHA256, sha256_hex(head["ChecksumSHA256"])
        with contextlib.suppress(KeyError, ValueError):
            return Algorithm.CRC64NVME, crc64nvme_text(crc64nvme_value(head["ChecksumCRC64NVME"]))
    return Algorithm.ETAG, etag


def _key(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix else path


def _unquoted(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')
