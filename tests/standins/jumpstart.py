"""JumpStart's border: the vendor's buckets on a real S3 server (moto), and the hub's one call, which signs addresses.

The documents have the vendor's layout with made-up models. The private bucket cannot be read but by an address that the
hub gave, to whoever signed the request and accepted the terms, until ``signature`` changes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote, unquote

import boto3
from botocore.config import Config

from tests.standins.serving import Asked, Said, Server, ranged, serving

REGION = "eu-west-1"
CONTENT, PRIVATE = f"jumpstart-cache-prod-{REGION}", f"jumpstart-private-cache-prod-{REGION}"
KEYS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "wJalr-example"}
TERMS = b"You may warm this model."
IMAGE = f"111122223333.dkr.ecr.{REGION}.amazonaws.com/acme:9"


def spec_of(
    model_id: str, version: str, key: str, *, image: str = IMAGE, family: str = "g6", **fields: Any
) -> dict[str, Any]:
    """A specification whose variants, as the vendor's, come from the component of its configuration."""
    component = {
        "hosting_instance_type_variants": {
            "regional_aliases": {REGION: {"i": image}},
            "variants": {family: {"regional_properties": {"image_uri": "$i"}}},
        }
    }
    return {
        "model_id": model_id, "version": version, "url": "", "hosting_prepacked_artifact_key": key,
        "default_inference_instance_type": f"ml.{family}.xlarge",
        "inference_configs": {"f": {"component_names": ["c"]}},
        "inference_environment_variables": [
            {"name": "SERVER", "type": "text", "default": 1, "required_for_model_class": True},
            {"name": "OTHER", "type": "text", "default": "x", "required_for_model_class": False},
        ],
        "inference_config_components": {"c": component}, **fields,
    }  # fmt: skip


@dataclass
class JumpStart:
    """``private`` are the files of the gated bucket by key. ``fault(asked)`` answers first, for hub and bucket.
    ``bucket_at``: where readers find the gated bucket, if that is not its own address."""

    endpoint: str
    manifest: list[dict[str, Any]] = field(default_factory=list)
    private: dict[str, bytes] = field(default_factory=dict)
    signature: str = "sig-1"
    fault: Callable[[Asked], Said | None] = lambda asked: None
    page_size: int = 2
    keys: Mapping[str, str] = field(default_factory=lambda: KEYS)
    image: str = IMAGE
    family: str = "g6"
    bucket_at: str = ""
    root: str = field(default_factory=lambda: secrets.token_hex(6))  # moto's buckets are shared: each test has a folder
    hub: Server = field(init=False)
    bucket: Server = field(init=False)

    def __post_init__(self) -> None:
        self.s3 = _writer(self.endpoint, self.keys["access_key_id"], self.keys["secret_access_key"])
        self.hub, self.bucket = Server(self._hub), Server(self._bucket)

    @property
    def manifest_key(self) -> str:
        return f"{self.root}/models_manifest.json"

    @property
    def terms_key(self) -> str:
        return f"{self.root}/terms.txt"

    @property
    def manifest_uri(self) -> str:
        return f"s3://{CONTENT}/{self.manifest_key}"

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=CONTENT, Key=key, Body=body, ChecksumAlgorithm="SHA256")

    def remove(self, key: str) -> None:
        self.s3.delete_object(Bucket=CONTENT, Key=key)

    def offer(self, model_id: str, version: str, key: str, **fields: Any) -> None:
        """A model in the manifest, with its specification; its files are put by the test."""
        spec_key = f"{self.root}/{model_id}/specs_v{version}.json"
        self.manifest.append({"model_id": model_id, "version": version, "min_version": "2.9.0", "spec_key": spec_key})
        spec = spec_of(model_id, version, key, image=self.image, family=self.family, **fields)
        self.put(spec_key, json.dumps(spec).encode())
        self.put(self.manifest_key, json.dumps(self.manifest).encode())

    def gate(self, model_id: str, version: str, key: str, files: Mapping[str, bytes], **fields: Any) -> None:
        """A gated model with its terms and its files."""
        self.put(self.terms_key, TERMS)
        self.offer(model_id, version, key, gated_bucket=True, hosting_eula_key=self.terms_key, **fields)
        self.private.update({f"{key}{path}": body for path, body in files.items()})

    def _hub(self, asked: Asked) -> Said:
        if (said := self.fault(asked)) is not None:
            return said
        signed = asked.headers.get("authorization", "")
        if (
            not signed.startswith(f"AWS4-HMAC-SHA256 Credential={self.keys['access_key_id']}/")
            or "/sagemaker/" not in signed
        ):
            return _refusal("UnrecognizedClientException")
        if asked.headers.get("x-amz-target") != "SageMaker.CreateHubContentPresignedUrls":
            return _refusal("UnknownOperationException")
        body = json.loads(asked.body)
        if not body["AccessConfig"]["AcceptEula"]:
            return _refusal("ValidationException")
        prefix = f"s3://{PRIVATE}/"
        if not body["AccessConfig"]["ExpectedS3Url"].startswith(prefix):
            return _refusal("ValidationException")
        key = body["AccessConfig"]["ExpectedS3Url"].removeprefix(prefix)
        found = sorted(name for name in self.private if name.startswith(key))
        if body["HubContentName"] not in {entry["model_id"] for entry in self.manifest}:
            return _refusal("ResourceNotFound")
        start = int(body.get("NextToken", 0))
        most = min(self.page_size, body["MaxResults"])
        entries = [
            {"Url": f"{self.bucket_at or self.bucket.url}/{quote(name)}?X-Amz-Signature={self.signature}",
             "LocalPath": f"/{name.removeprefix(key)}"}
            for name in found[start : start + most]
        ]  # fmt: skip
        more = {"NextToken": str(start + most)} if start + most < len(found) else {}
        return Said(200, json.dumps({"AuthorizedUrlConfigs": entries, **more}).encode())

    def _bucket(self, asked: Asked) -> Said:
        if (said := self.fault(asked)) is not None:
            return said
        if asked.query.get("X-Amz-Signature") != self.signature or asked.method != "GET":
            return Said(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
        body = self.private.get(unquote(asked.path).removeprefix("/"))
        if body is None:
            return Said(404, b"<Error><Code>NoSuchKey</Code></Error>")
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        if asked.headers.get("if-match", etag) != etag:
            return Said(412)
        return ranged(asked, body, {"ETag": etag})


@cache
def _writer(endpoint: str, key_id: str, key: str) -> Any:
    """A client of the server that has the content bucket, made once."""
    client: Any = boto3.session.Session().client(
        "s3", endpoint_url=endpoint, region_name=REGION, aws_access_key_id=key_id,
        aws_secret_access_key=key, config=Config(s3={"addressing_style": "path"}),
    )  # fmt: skip
    there = (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists)
    with suppress(*there):  # moto's servers of one process share their buckets
        client.create_bucket(Bucket=CONTENT, CreateBucketConfiguration={"LocationConstraint": REGION})
    return client


def _refusal(kind: str) -> Said:
    return Said(400, json.dumps({"__type": kind, "message": "It may quote what was sent."}).encode())


@contextmanager
def jumpstart(s3_endpoint: str, **fields: Any) -> Iterator[JumpStart]:
    """``s3_endpoint`` is that of a server whose buckets stay."""
    standing = JumpStart(s3_endpoint, **fields)
    with serving(standing.hub, standing.bucket):
        yield standing
