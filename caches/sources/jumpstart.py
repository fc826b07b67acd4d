"""JumpStart: a model's id and version lead to its artifact in S3 and to its image, by the vendor's public documents.

Resolving reads the manifest and the specification once; nodes read by the resolved address, which names the artifact.
Models with terms are read only by an address that says which text was accepted; whether somebody did accept it is the
catalogue's business. Gated ones come through the hub's signed addresses.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from caches.sources import problems
from caches.sources.base import PAGE_SIZE, STALL_SECONDS, Chunk, ListedFile, Page, Resolved, Terms
from caches.sources.http_client import HttpClient
from caches.sources.jumpstart_hub import GatedFiles
from caches.sources.jumpstart_spec import MANIFEST_KEY, JumpStartModel, model_of, spec_key_of
from caches.sources.jumpstart_uri import ModelPlace, buckets_of, split_jumpstart
from caches.sources.s3 import S3Source
from controlplane.clusters.documents import ConnectionSpec, FileRecord, Reason, SourceType
from controlplane.errors import Permanent

MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
MAX_TERMS_BYTES = 512 * 1024


class JumpStartSource:
    """See base.Source. Safe to share between threads. ``secret`` is as for S3."""

    def __init__(self, spec: ConnectionSpec, secret: Mapping[str, str], *, allow_private: bool = True) -> None:
        self.spec = spec
        self._content, _ = buckets_of(spec)
        self._s3 = S3Source(
            replace(spec, type=SourceType.S3, allowed=buckets_of(spec)), secret, allow_private=allow_private
        )
        self._secret, self._private = dict(secret), allow_private
        self._client = HttpClient(spec, allow_private=allow_private)
        self._lock = threading.Lock()
        self._gated: dict[ModelPlace, GatedFiles] = {}

    def probe(self) -> None:
        self._manifest()

    def resolve(self, uri: str) -> Resolved:
        place = split_jumpstart(uri, self.spec)
        model = self.model(uri)
        content, gated = buckets_of(self.spec)
        artifact = f"s3://{gated if model.gated_bucket else content}/{model.artifact_key}"
        place = replace(place, version=model.version, artifact=artifact, gated=model.gated_bucket)
        facts = {
            "jumpstart": {
                "model_id": model.model_id, "version": model.version, "artifact": artifact,
                "compression": "Gzip" if model.is_packed else "None", "deprecated": model.deprecated,
                "instance_type": model.instance_type, "image": model.image,
                "environment": dict(model.environment),
            }
        }  # fmt: skip
        return Resolved(place.uri, model.version, facts)

    def model(self, uri: str, instance_type: str = "") -> JumpStartModel:
        """What the address means now for an instance type: artifact, image, environment."""
        place = split_jumpstart(uri, self.spec)
        try:
            found = spec_key_of(self._manifest(), place.model_id, place.version)
            if found is None:
                raise problems.no_such_model(f"{place.model_id}@{place.version}")
            version, key = found
            document = self._json(key)
            return model_of(
                document, place.model_id, version, region=self.spec.region,
                instance_type=instance_type or place.instance_type,
            )  # fmt: skip
        except ValueError as error:
            raise problems.not_offered(f"{place.model_id}@{place.version}", f"{error}.") from error

    def terms(self, uri: str) -> Terms | None:
        place = split_jumpstart(uri, self.spec)
        model = self.model(uri)
        if not model.eula_key and not model.gated_bucket:
            return None
        if not model.eula_key:
            raise problems.not_offered(place.model_id, "it is gated, and its terms are not published.")
        text = self._read(model.eula_key, MAX_TERMS_BYTES)
        digest = hashlib.sha256(text).hexdigest()
        shown = text.decode("utf-8", "replace").replace("\0", "")
        return Terms(
            subject=place.model_id, version=model.version, place=f"s3://{self._content}/{model.eula_key}",
            digest=digest, text=shown, accepted_uri=replace(place, eula=digest).uri,
        )  # fmt: skip

    def check(self, uri: str) -> None:
        place = self._place(uri)
        if (terms := self.terms(uri)) is not None and terms.digest != place.eula:
            raise problems.terms_required(terms.subject, terms.place)
        page = self.list_page(uri, page_size=100)
        if not page.files:
            raise problems.empty_place(place.artifact)
        self.read_head(uri, self.describe(uri, page.files[0].path), 1)

    def list_page(self, uri: str, token: str = "", page_size: int = PAGE_SIZE) -> Page:
        place = self._place(uri)
        if place.gated:
            return self._files(place).page(uri, token, page_size)
        folder, name = _split(place)
        if not name:
            return self._s3.list_page(folder, token, page_size)
        record = self._s3.describe(folder, name)
        return Page((ListedFile(name, record.size_bytes, record.revision),))

    def describe(self, uri: str, path: str) -> FileRecord:
        place = self._place(uri)
        if place.gated:
            return self._files(place).describe(path)
        folder, name = _split(place)
        if name and path != name:
            raise problems.changed(path, "It is no longer there.")
        record = self._s3.describe(folder, path)
        return record if record.algorithm.is_content else replace(record, scope=f"{self.spec.name}:{place.bucket}")

    def bind(self, uri: str, file: FileRecord) -> FileRecord:
        """An ETag is bound to its bytes already."""
        return file

    def read_range(
        self, uri: str, file: FileRecord, start: int, end: int, *, stall_seconds: float = STALL_SECONDS
    ) -> Iterator[Chunk]:
        if start >= end:
            return
        place = self._place(uri)
        if place.gated:
            yield from self._files(place).read(file, start, end, stall_seconds)
        else:
            yield from self._s3.read_range(_split(place)[0], file, start, end, stall_seconds=stall_seconds)

    def read_head(self, uri: str, file: FileRecord, length: int) -> bytes:
        place = self._place(uri)
        if place.gated:
            return self._files(place).head(file, length)
        return self._s3.read_head(_split(place)[0], file, length)

    def close(self) -> None:
        self._s3.close()
        self._client.close()

    def _place(self, uri: str) -> ModelPlace:
        """A resolved place; others are resolved on the way. Gated ones must say what was accepted."""
        place = split_jumpstart(uri, self.spec)
        if not place.artifact:
            place = split_jumpstart(self.resolve(uri).uri, self.spec)
        if place.gated and not place.eula:
            raise problems.terms_required(place.model_id)
        return place

    def _files(self, place: ModelPlace) -> GatedFiles:
        with self._lock:
            if place not in self._gated:
                self._gated[place] = GatedFiles(
                    self._client, self.spec, self._secret, place, allow_private=self._private
                )
            return self._gated[place]

    def _manifest(self) -> Any:
        return self._json(self.spec.manifest.removeprefix("s3://").partition("/")[2] or MANIFEST_KEY)

    def _json(self, key: str) -> Any:
        try:
            return json.loads(self._read(key, MAX_DOCUMENT_BYTES))
        except (ValueError, RecursionError) as error:
            raise problems.rejected(f"s3://{self._content}/{key}", "it is no JSON.") from error

    def _read(self, key: str, limit: int) -> bytes:
        """A whole document of the content bucket."""
        parent, _, name = f"{self._content}/{key}".rpartition("/")
        place = f"s3://{parent}"
        try:
            file = self._s3.describe(place, name)
            if file.size_bytes > limit:
                raise problems.rejected(f"{place}/{name}", "it is larger than any such document.")
            return self._s3.read_head(place, file, limit)
        except Permanent as error:
            if error.reason != Reason.SOURCE_CHANGED:
                raise
            raise problems.not_found(f"{place}/{name}") from error


def _split(place: ModelPlace) -> tuple[str, str]:
    """The folder to read in, and the one file in it where the artifact is packed ("" for all)."""
    if place.artifact.endswith("/"):
        return place.artifact.rstrip("/"), ""
    folder, _, name = place.artifact.rpartition("/")
    return folder, name
