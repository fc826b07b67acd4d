"""Writing to a store: only for the demo's own models. Hearth never writes to anybody's source."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from caches.sources.s3_clients import control_client
from caches.sources.s3_errors import control_errors
from controlplane.clusters.documents import ConnectionSpec


class Uploader:
    """Puts whole objects into one bucket of a connection, each with a full-object CRC64NVME computed on the way."""

    def __init__(self, spec: ConnectionSpec, secret: Mapping[str, str], bucket: str) -> None:
        self._client = control_client(spec, secret, None)
        self.bucket = bucket

    def make_bucket(self) -> None:
        """Create the bucket unless it is there."""
        taken = (self._client.exceptions.BucketAlreadyOwnedByYou, self._client.exceptions.BucketAlreadyExists)
        with control_errors(self.bucket, self.bucket), contextlib.suppress(*taken):
            self._client.create_bucket(Bucket=self.bucket)

    def sizes(self, prefix: str) -> Mapping[str, int]:
        """Size by key of what is below ``prefix``, at most 1000 objects."""
        with control_errors(self.bucket, prefix):
            answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return {entry["Key"]: entry["Size"] for entry in answer.get("Contents", [])}

    def put(self, key: str, body: bytes) -> None:
        """Replace one object; it is there whole or not at all."""
        with control_errors(self.bucket, key):
            self._client.put_object(Bucket=self.bucket, Key=key, Body=body, ChecksumAlgorithm="CRC64NVME")

    def close(self) -> None:
        self._client.close()
