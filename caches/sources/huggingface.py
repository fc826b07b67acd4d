"""The Hugging Face Hub and everything that speaks its API (mirrors, proxies), over plain HTTP.

A branch or tag is resolved to a commit once, and everything after reads that commit. The hub states the SHA-256 of
files in its large-file store and git's blob id of all others: both are checksums of the content, so everything here is
anchored. Without access, a gated repository is still listed, with masked checksums: that is a refusal, not an answer.
ADR 28 says why this is not huggingface_hub.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from caches.sources import allowed, http_ranges, problems
from caches.sources.base import PAGE_SIZE, STALL_SECONDS, Chunk, ListedFile, Page, Resolved, Terms
from caches.sources.http_client import Answer, HttpClient, origin, refusal
from caches.sources.http_ranges import Ask, Expired, unquoted
from caches.sources.hub_uri import HubPlace, split_hub
from controlplane.clusters.documents import Algorithm, ConnectionSpec, FileRecord, Reason
from controlplane.errors import HearthError, Permanent

DEFAULT_ENDPOINT = "https://huggingface.co"
MAX_LIMIT = 1000  # entries of one page that the hub gives at most
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
# Readable by everybody in a gated repository, so they prove nothing.
_OPEN_FILES = frozenset({"README.md", ".gitattributes"})


class HuggingFaceSource:
    """See base.Source. Safe to share between threads. ``secret`` has ``token``; {} reads what is public."""

    def __init__(self, spec: ConnectionSpec, secret: Mapping[str, str], *, allow_private: bool = True) -> None:
        if secret and not secret.get("token"):
            raise problems.secret_missing(spec.secret_name, "lacks token")
        self.spec = spec
        self._base = (spec.endpoint or DEFAULT_ENDPOINT).rstrip("/")
        allowed.check_endpoint(self._base, allow_private=allow_private)
        self._authorization = f"Bearer {secret['token']}" if secret else ""
        self._client = HttpClient(spec, allow_private=allow_private)
        self._lock = threading.Lock()
        self._commits: dict[HubPlace, str] = {}
        self._known: dict[tuple[HubPlace, str], FileRecord] = {}
        self._served: dict[tuple[HubPlace, str], _Served] = {}

    def probe(self) -> None:
        for name in self.spec.allowed:
            if "/" in name:
                self._place(f"hf://{name}")
            else:
                author = {} if name == "*" else {"author": name}
                self._ask(name, f"/api/models?{urlencode({'limit': 1, **author})}")

    def resolve(self, uri: str) -> Resolved:
        place = self._place(uri)
        return Resolved(place.uri, place.revision)

    def terms(self, uri: str) -> Terms | None:
        return None

    def check(self, uri: str) -> None:
        token = ""
        while True:
            page = self.list_page(uri, token, page_size=MAX_LIMIT)
            closed = [file for file in page.files if file.path not in _OPEN_FILES and file.size_bytes]
            token = page.next_token
            if closed or not token:
                break
        if not page.files:
            raise problems.empty_place(uri)
        # What lies in the large-file store is what matters, and may be guarded differently.
        closed.sort(key=lambda file: len(file.revision), reverse=True)
        file = self.describe(uri, (closed or page.files)[0].path)
        try:
            self.read_head(uri, file, 1)
        except Permanent as error:
            if error.reason != Reason.SOURCE_CHANGED:
                raise
            raise problems.not_found(file.path) from error  # nothing is registered yet that could have changed

    def list_page(self, uri: str, token: str = "", page_size: int = PAGE_SIZE) -> Page:
        place = self._place(uri)
        query = {"recursive": "true", "limit": str(min(page_size, MAX_LIMIT))} | ({"cursor": token} if token else {})
        folder = f"/{quote(place.folder)}" if place.folder else ""
        entries, answer = self._ask(
            uri, f"/api/models/{place.repository}/tree/{place.revision}{folder}?{urlencode(query)}"
        )
        if not isinstance(entries, list):
            raise problems.rejected(uri, "the hub's listing cannot be read.")
        files = [self._listed(uri, place, entry) for entry in entries if _kind(entry) == "file"]
        following = _cursor(answer)
        if following and following == token:
            raise problems.rejected(uri, "the hub gives the same page of its listing again and again.")
        return Page(tuple(files), following)

    def describe(self, uri: str, path: str) -> FileRecord:
        place = self._place(uri)
        with self._lock:
            known = self._known.get((place, path))
        if known is not None:
            return known
        body = json.dumps({"paths": [place.inside(path)], "expand": False}).encode()
        entries, _ = self._ask(
            path, f"/api/models/{place.repository}/paths-info/{place.revision}", method="POST", body=body
        )
        for entry in entries if isinstance(entries, list) else ():
            if _kind(entry) == "file" and entry.get("path") == place.inside(path):
                self._listed(uri, place, entry)
                return self._known[place, path]
        raise problems.changed(path, "It is no longer there.")

    def bind(self, uri: str, file: FileRecord) -> FileRecord:
        """A commit is bound to its bytes already."""
        return file

    def read_range(
        self, uri: str, file: FileRecord, start: int, end: int, *, stall_seconds: float = STALL_SECONDS
    ) -> Iterator[Chunk]:
        if start >= end:
            return
        place = self._place(uri)
        key = (place, file.path)
        ask = Ask(file.path, start, end, file.size_bytes, stall_seconds=stall_seconds)
        served = self._served.get(key)
        if served is not None:
            try:
                # The token belongs to the hub alone; where it sends its readers has a signature of its own.
                yield from http_ranges.read(self._client, served.url, ask, served.check)
                return
            except Expired:
                self._served.pop(key, None)
        ask = replace(ask, authorization=self._authorization)
        path = quote(place.inside(file.path))
        url = f"{self._base}/{place.repository}/resolve/{place.revision}/{path}"
        try:
            yield from http_ranges.read(self._client, url, ask, lambda answer: self._check_served(key, file, answer))
        except Expired as expired:
            raise self._refused(file.path, expired.answer) from expired

    def read_head(self, uri: str, file: FileRecord, length: int) -> bytes:
        return b"".join(self.read_range(uri, file, 0, min(length, file.size_bytes), stall_seconds=10.0))

    def close(self) -> None:
        self._client.close()

    def _place(self, uri: str) -> HubPlace:
        """The place with its revision resolved; the hub is asked once for each branch or tag."""
        place = split_hub(uri, self.spec)
        if place.is_commit:
            return place
        with self._lock:
            commit = self._commits.get(place, "")
        if not commit:
            found, _ = self._ask(uri, f"/api/models/{place.repository}/revision/{quote(place.revision, safe='')}")
            commit = str(found.get("sha", "")) if isinstance(found, dict) else ""
            if not _SHA1.fullmatch(commit):
                raise problems.rejected(uri, "the hub names no commit.")
            with self._lock:
                commit = self._commits.setdefault(place, commit)
        return HubPlace(place.repository, commit, place.folder)

    def _ask(self, shown: str, path: str, *, method: str = "GET", body: bytes | None = None) -> tuple[Any, Answer]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        with self._client.open(
            shown, self._base + path, method=method, headers=headers, authorization=self._authorization, body=body
        ) as answer:
            if answer.status != 200:
                raise self._refused(shown, answer)
            return answer.json(shown), answer

    def _refused(self, shown: str, answer: Answer) -> HearthError:
        code = answer.stated("X-Error-Code")
        if code == "GatedRepo":
            return problems.gated(shown)
        if answer.status == 401 and not self._authorization:
            return problems.access_denied(
                shown, "The hub wants a token: the repository is private, gated or not there.", _TOKEN_STEP
            )
        if answer.status in (401, 403):
            return problems.access_denied(shown, "The hub refuses this token.", _TOKEN_STEP)
        if code == "RevisionNotFound":
            return problems.no_such_revision(shown)
        if answer.status != 404:
            return refusal(shown, answer)
        if "/api/models/" not in answer.url:
            return problems.changed(shown, "It is no longer there.")
        return problems.empty_place(shown) if code == "EntryNotFound" else problems.no_such_repository(shown)

    def _listed(self, uri: str, place: HubPlace, entry: Mapping[str, Any]) -> ListedFile:
        """Remembers the record on the way: of a commit, nothing has to be asked twice."""
        lfs = entry.get("lfs")
        stated = lfs if isinstance(lfs, Mapping) else entry
        checksum, size, whole = stated.get("oid"), stated.get("size"), entry.get("path")
        if not isinstance(whole, str) or type(size) is not int or size < 0 or not isinstance(checksum, str):
            raise problems.rejected(uri, "the hub's listing cannot be read.")
        path = whole.removeprefix(f"{place.folder}/") if place.folder else whole
        algorithm, form = (Algorithm.SHA256, _SHA256) if stated is lfs else (Algorithm.GIT, _SHA1)
        if not form.fullmatch(checksum):
            raise problems.gated(uri)
        record = FileRecord(path, size, algorithm, checksum, revision=checksum)
        with self._lock:
            self._known[place, path] = record
        return ListedFile(path, size, checksum)

    def _check_served(self, key: tuple[HubPlace, str], file: FileRecord, answer: Answer) -> None:
        """The answer is of the registered content, as the hub itself says before it sends readers elsewhere."""
        wanted = file.checksum if file.algorithm in (Algorithm.SHA256, Algorithm.GIT) else file.revision
        stated = unquoted(answer.stated("X-Linked-Etag") or answer.headers.get("ETag", ""))
        if not (_SHA256.fullmatch(stated) or _SHA1.fullmatch(stated)):
            raise problems.rejected(file.path, "the hub does not say which content it sends (X-Linked-Etag, ETag).")
        if stated != wanted:
            raise problems.changed(file.path)
        if (size := answer.stated("X-Linked-Size")) and size != str(file.size_bytes):
            raise problems.changed(file.path, "It has another size than was registered.")
        if origin(answer.url) != origin(self._base):
            self._served[key] = _Served(answer.url, answer.headers.get("ETag", ""))


_TOKEN_STEP = "Store a token that may read this repository in the connection's secret, under token."


@dataclass(frozen=True, slots=True)
class _Served:
    """Where the hub sends readers of a file, for a while; asked directly, the hub is spared a request a range."""

    url: str
    etag: str

    def check(self, answer: Answer) -> None:
        if answer.headers.get("ETag", "") != self.etag:
            raise Expired(problems.changed("It"), answer)


def _kind(entry: Any) -> str:
    return str(entry.get("type", "")) if isinstance(entry, Mapping) else ""


def _cursor(answer: Answer) -> str:
    """The token of the next page, from the Link header; only its cursor is taken, never its host."""
    found = _NEXT.search(answer.headers.get("Link", ""))
    return parse_qs(urlsplit(found[1]).query).get("cursor", [""])[0] if found else ""
