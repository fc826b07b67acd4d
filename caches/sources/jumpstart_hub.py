"""Gated models: the hub gives addresses with a signature of their own, each for some minutes, once terms are accepted.

The one request is signed here: the vendor's description of its whole API would cost an agent a second and a hundred
megabytes. Addresses are renewed when they stop serving, for all files at once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from caches.domain.manifests import path_problem
from caches.sources import allowed, http_ranges, problems
from caches.sources.base import STALL_SECONDS, Chunk, ListedFile, Page
from caches.sources.http_client import Answer, HttpClient, refusal
from caches.sources.http_ranges import Ask, Expired, content_range, unquoted
from caches.sources.jumpstart_uri import ModelPlace
from controlplane.clusters.documents import Algorithm, ConnectionSpec, FileRecord
from controlplane.errors import HearthError

PUBLIC_HUB = "SageMakerPublicHub"
MOST_RESULTS = 100
MAX_PAGES = 300
PARALLEL = 8
_TARGET = "SageMaker.CreateHubContentPresignedUrls"
_THROTTLED = frozenset({"ThrottlingException", "Throttling", "TooManyRequestsException"})
_NEXT_STEP = "Check that the connection's credentials may call CreateHubContentPresignedUrls, and the accepted terms."


class GatedFiles:
    """The files of one gated model. Safe to share between threads."""

    def __init__(
        self, client: HttpClient, spec: ConnectionSpec, secret: Mapping[str, str], place: ModelPlace, *,
        allow_private: bool,
    ) -> None:  # fmt: skip
        self._client, self._spec, self._secret, self._place = client, spec, secret, place
        self._base = (spec.hub_endpoint or f"https://api.sagemaker.{spec.region}.amazonaws.com").rstrip("/")
        allowed.check_endpoint(self._base, allow_private=allow_private)
        self._allow_private = allow_private
        self._lock = threading.Lock()
        self._urls: dict[str, str] = {}

    def page(self, shown: str, token: str, page_size: int) -> Page:
        """One page of the hub's list, each file asked for its size and revision."""
        urls, following = self._ask(shown, token, min(page_size, MOST_RESULTS))
        with self._lock:
            self._urls.update(urls)
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="gated") as pool:
            records = list(pool.map(self.describe, urls))
        files = tuple(ListedFile(record.path, record.size_bytes, record.revision) for record in records)
        if following and following == token:
            raise problems.rejected(shown, "the hub gives the same page of its list again and again.")
        return Page(files, following)

    def describe(self, path: str) -> FileRecord:
        """Signed addresses may be read and not asked for their headers alone, so one byte is."""
        for renewed in (False, True):
            with self._client.open(path, self._url(path, renew=renewed), headers={"Range": "bytes=0-0"}) as answer:
                if answer.status in (200, 206, 416):
                    return self._record(path, answer)
                if answer.status not in (401, 403, 404, 410) or renewed:
                    raise refusal(path, answer)
        raise AssertionError("the loop returns or raises")

    def read(self, file: FileRecord, start: int, end: int, stall_seconds: float) -> Iterator[Chunk]:
        """See Source.read_range."""
        ask = Ask(file.path, start, end, file.size_bytes, {"If-Match": f'"{file.revision}"'}, "", stall_seconds)

        def check(answer: Answer) -> None:
            if unquoted(answer.headers.get("ETag", "")) != file.revision:
                raise problems.changed(file.path)

        url = self._url(file.path)
        try:
            yield from http_ranges.read(self._client, url, ask, check)
            return
        except Expired:
            pass
        try:
            yield from http_ranges.read(self._client, self._url(file.path, stale=url, renew=True), ask, check)
        except Expired as expired:
            raise expired.error from expired

    def head(self, file: FileRecord, length: int) -> bytes:
        end = min(length, file.size_bytes)
        return b"".join(map(bytes, self.read(file, 0, end, min(10.0, STALL_SECONDS)))) if end else b""

    def _record(self, path: str, answer: Answer) -> FileRecord:
        if answer.status == 206:
            span = content_range(answer)
            size = span[2] if span else None
        elif answer.status == 416:  # an empty file has no first byte
            size = 0
        else:
            length = answer.headers.get("Content-Length", "")
            size = int(length) if length.isdecimal() else None
        etag = unquoted(answer.headers.get("ETag", ""))
        if size is None or (not etag and size):
            raise problems.rejected(path, "the store says neither its size nor its revision.")
        scope = f"{self._spec.name}:{self._place.bucket}"
        return FileRecord(path, size, Algorithm.ETAG, etag or "empty", etag or "empty", scope=scope)

    def _url(self, path: str, *, stale: str = "", renew: bool = False) -> str:
        """The address of a file; with ``renew`` a fresh one, unless another thread has fetched it meanwhile."""
        with self._lock:
            known = self._urls.get(path, "")
            if known and not (renew and stale in ("", known)):
                return known
            token = ""
            for _ in range(MAX_PAGES):
                urls, token = self._ask(path, token, MOST_RESULTS)
                self._urls.update(urls)
                if not token:
                    break
            if path not in self._urls or (stale and self._urls[path] == stale):
                raise problems.changed(path, "It is no longer there.")
            return self._urls[path]

    def _ask(self, shown: str, token: str, most: int) -> tuple[dict[str, str], str]:
        """Addresses by path, and the token of the next page."""
        config = {"AcceptEula": bool(self._place.eula), "ExpectedS3Url": self._place.artifact}
        asked: dict[str, Any] = {
            "HubName": PUBLIC_HUB, "HubContentType": "Model", "HubContentName": self._place.model_id,
            "HubContentVersion": self._place.version, "AccessConfig": config, "MaxResults": most,
        }  # fmt: skip
        if token:
            asked["NextToken"] = token
        body = json.dumps(asked).encode()
        headers = self._signed(body)
        with self._client.open(
            shown, f"{self._base}/", method="POST", headers=headers, authorization=headers["Authorization"], body=body
        ) as answer:
            if answer.status != 200:
                raise _refused(shown, answer)
            said = answer.json(shown)
        if not isinstance(said, dict) or not isinstance(said.get("AuthorizedUrlConfigs"), list):
            raise problems.rejected(shown, "the hub's answer cannot be read.")
        urls = dict(self._entry(shown, entry) for entry in said["AuthorizedUrlConfigs"])
        return urls, str(said.get("NextToken") or "")

    def _entry(self, shown: str, entry: Any) -> tuple[str, str]:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("Url", "LocalPath")):
            raise problems.rejected(shown, "the hub's answer cannot be read.")
        path, url = entry["LocalPath"].removeprefix("/"), entry["Url"]
        if problem := path_problem(path):
            raise problems.unsafe_file(path, problem)
        try:
            allowed.check_url(url, allow_private=self._allow_private)
        except ValueError as error:
            raise problems.rejected(shown, "the hub gives what is no address.") from error
        return path, url

    def _signed(self, body: bytes) -> dict[str, str]:
        if not self._secret:
            raise problems.access_denied(self._spec.name, "Gated models are read with credentials alone.", _NEXT_STEP)
        headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": _TARGET}
        request = AWSRequest("POST", f"{self._base}/", headers, body)
        keys = Credentials(
            self._secret["access_key_id"], self._secret["secret_access_key"], self._secret.get("session_token") or None
        )
        SigV4Auth(keys, "sagemaker", self._spec.region).add_auth(request)
        return {str(name): str(value) for name, value in request.headers.items()}


def _refused(shown: str, answer: Answer) -> HearthError:
    """The hub answers most refusals with 400 and a word for the kind."""
    try:
        said = answer.json(shown)
        kind = str(said.get("__type", "")).rpartition("#")[2] if isinstance(said, dict) else ""
    except HearthError:
        kind = ""
    if kind in _THROTTLED:
        return problems.throttled(shown)
    if kind == "ResourceNotFound":
        return problems.no_such_model(shown)
    if answer.status in (401, 403) or kind in ("AccessDeniedException", "UnrecognizedClientException"):
        return problems.access_denied(shown, "The hub refuses access to this gated model.", _NEXT_STEP)
    if kind == "ValidationException":
        return problems.access_denied(shown, "The hub does not give this artifact on these terms.", _NEXT_STEP)
    return refusal(shown, answer)
