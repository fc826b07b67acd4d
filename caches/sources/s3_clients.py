"""The two S3 clients: boto3 for control calls, obstore for bytes. Only proxies come from the environment.

Both get endpoint, region and credentials from the connection alone, so that a worker's or node's own AWS variables,
profiles and instance role never read anything on somebody's behalf. Without a secret, requests go unsigned.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from obstore.store import S3Store

from controlplane.clusters.documents import ConnectionSpec

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential
    from types_boto3_s3 import S3Client

DEFAULT_REGION = "us-east-1"
CONNECT_SECONDS = 5
CONTROL_READ_SECONDS = 15
CONTROL_ATTEMPTS = 3
CONTROL_CONNECTIONS = 32

_session_lock = threading.Lock()  # a boto3 session may be used by one thread at a time, its clients by all


def control_client(spec: ConnectionSpec, secret: Mapping[str, str], ca_file: str | None) -> S3Client:
    """boto3 with bounded time: three attempts of at most 5 s to connect and 15 s to answer."""
    options: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": CONTROL_READ_SECONDS,
        "retries": {"total_max_attempts": CONTROL_ATTEMPTS, "mode": "standard"},
        "max_pool_connections": CONTROL_CONNECTIONS,
        "s3": {"addressing_style": "virtual" if spec.addressing == "virtual" else "path"},
        "ignore_configured_endpoint_urls": True,
        # Checksums are compared by us with what was registered; many stores do not know the newer defaults.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if not secret:
        options["signature_version"] = UNSIGNED
    with _session_lock:
        client: S3Client = _session().client(
            "s3",
            region_name=spec.region or DEFAULT_REGION,
            endpoint_url=spec.endpoint or None,
            aws_access_key_id=secret.get("access_key_id"),
            aws_secret_access_key=secret.get("secret_access_key"),
            aws_session_token=secret.get("session_token") or None,
            verify=ca_file,
            config=Config(**options),
        )
    # boto3 looks for the bucket's region on its own when it is redirected, with dozens of requests in the worst case;
    # a wrong region is an error here, and nobody is followed to another host.
    client.meta.events.register("before-call.s3", _never_redirect)
    return client


def bytes_store(spec: ConnectionSpec, secret: Mapping[str, str], bucket: str, stall_seconds: float) -> S3Store:
    """obstore for one bucket. It never retries by itself: the caller knows what is already on disk.

    It follows HTTP redirects and offers no switch for that; no credentials go along, and an answer passes only as the
    very part, size and ETag that were asked for.
    """
    region = spec.region or DEFAULT_REGION
    config: S3Config = {
        "bucket": bucket,
        "region": region,
        "endpoint": _store_endpoint(spec, bucket, region),
        "virtual_hosted_style_request": spec.addressing == "virtual",
    }
    config["skip_signature"] = not secret
    options: ClientConfig = {
        "allow_http": spec.endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        # Per read, so a slow stream that moves lives on; the whole request has no limit of its own.
        "read_timeout": timedelta(seconds=stall_seconds),
        "timeout": timedelta(days=1),
    }
    if spec.ca_bundle:
        options["root_certificate"] = spec.ca_bundle
    return S3Store(
        config=config,
        client_options=options,
        credential_provider=_credentials(secret) if secret else None,
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )


def _credentials(secret: Mapping[str, str]) -> Callable[[], S3Credential]:
    """Not as settings: those left out, such as the token, would be filled in from the process's own variables."""
    found: S3Credential = {
        "access_key_id": secret["access_key_id"],
        "secret_access_key": secret["secret_access_key"],
        "token": secret.get("session_token") or None,
        "expires_at": None,
    }
    return lambda: found


@cache
def _session() -> boto3.session.Session:
    """Without files, profile and variables. One for the process: reading S3's description costs a fifth of a second."""
    nowhere = (None, None, os.devnull, None)
    variables = {
        "config_file": nowhere,
        "credentials_file": nowhere,
        "profile": (None, None, None, None),
        "ca_bundle": (None, None, None, None),
    }
    return boto3.session.Session(botocore_session=botocore.session.Session(session_vars=variables))


def _never_redirect(params: dict[str, Any], **_: object) -> None:
    params.setdefault("context", {}).setdefault("s3_redirect", {})["redirected"] = True


def write_ca_file(pem: str) -> Path:
    """boto3 takes authorities only as a file; the caller removes it."""
    handle, path = tempfile.mkstemp(prefix="hearth-ca-", suffix=".pem")
    with os.fdopen(handle, "w") as file:
        file.write(pem)
    return Path(path)


def _store_endpoint(spec: ConnectionSpec, bucket: str, region: str) -> str:
    """Always explicit, or the AWS_ENDPOINT_URL of the process would be used. Virtual style names the bucket here."""
    base = spec.endpoint.rstrip("/") or f"https://s3.{region}.amazonaws.com"
    if spec.addressing != "virtual":
        return base
    scheme, _, host = base.partition("://")
    return f"{scheme}://{bucket}.{host}"
