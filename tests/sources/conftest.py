"""Stores for these tests: SeaweedFS for real bytes, moto's server for versions and what SeaweedFS lacks."""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer
from types_boto3_s3 import S3Client

from caches.sources import open_source
from caches.sources.base import Source
from controlplane.clusters.documents import ConnectionSpec, SourceType
from controlplane.embedded.seaweed import S3

_count = itertools.count(1)


@dataclass(frozen=True)
class Bucket:
    """A fresh bucket, a writer's client for it, and how to read it as Hearth does."""

    name: str
    client: S3Client
    endpoint: str
    secret: dict[str, str]

    def put(self, key: str, body: bytes, **options: Any) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body, **options)

    def put_multipart(self, key: str, pieces: list[bytes], algorithm: str, kind: str) -> None:
        """Upload in parts with a checksum of ``kind`` FULL_OBJECT or COMPOSITE; all but the last are 5 MiB or more."""
        client: Any = self.client
        place: dict[str, Any] = {"Bucket": self.name, "Key": key}
        place["UploadId"] = client.create_multipart_upload(**place, ChecksumAlgorithm=algorithm, ChecksumType=kind)[
            "UploadId"
        ]
        parts = []
        for number, piece in enumerate(pieces, start=1):
            answer = client.upload_part(**place, PartNumber=number, Body=piece, ChecksumAlgorithm=algorithm)
            stated = {name: value for name, value in answer.items() if name.startswith("Checksum")}
            parts.append({"PartNumber": number, "ETag": answer["ETag"], **stated})
        client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts}, ChecksumType=kind)

    def spec(self, **fields: Any) -> ConnectionSpec:
        merged: dict[str, Any] = {"name": "store", "endpoint": self.endpoint, "region": "us-east-1"} | fields
        return ConnectionSpec(type=SourceType.S3, allowed=(self.name,), **merged)

    def open(self, **fields: str) -> Source:
        return open_source(self.spec(**fields), self.secret)


def make_bucket(endpoint: str, secret: dict[str, str]) -> Bucket:
    client: S3Client = boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=secret["access_key_id"],
        aws_secret_access_key=secret["secret_access_key"],
        config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
    )
    name = f"bucket-{next(_count)}"
    client.create_bucket(Bucket=name)
    return Bucket(name, client, endpoint, secret)


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def moto_bucket(moto_endpoint: str) -> Bucket:
    return make_bucket(moto_endpoint, {"access_key_id": "any", "secret_access_key": "any"})


@pytest.fixture
def bucket(s3_server: S3) -> Bucket:
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    return make_bucket(s3_server.endpoint, keys)


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Where nobody listens, and nobody can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
