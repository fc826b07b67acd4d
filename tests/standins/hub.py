"""The Hugging Face Hub's border: its API, its resolve addresses, and the store to which it sends readers.

Behaves as documented and as huggingface_hub expects it: branches that name commits, listings in pages with a Link
header, large files behind a redirect with X-Linked-Etag, X-Error-Code, gated repositories that are listed for everybody
and whose checksums are masked where nobody has access.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.standins.serving import Asked, Said, Server, ranged, serving

LARGE = 10 * 1024  # files from this size on lie in the large-file store


@dataclass
class Repository:
    """``gated``: "" for everybody; "masked" lists it with masked checksums and refuses its files."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: str = ""

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """A new commit that holds exactly these files; the branch names it from now on."""
        name = secrets.token_hex(20)
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Hub:
    """``tokens`` have access to everything; ``fault(asked)`` may answer first, on the hub or on its store."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.tokens: set[str] = set()
        self.api, self.store = Server(self._api), Server(self._store)
        self.fault: Callable[[Asked], Said | None] = lambda asked: None
        self.store_at = ""  # where readers find the store, if that is not its own address
        self.signature = "signed"  # what an address of the store must carry now

    @property
    def endpoint(self) -> str:
        return self.api.url

    def repository(self, name: str, **fields: Any) -> Repository:
        return self.repositories.setdefault(name, Repository(**fields))

    def _api(self, asked: Asked) -> Said:
        if (said := self.fault(asked)) is not None:
            return said
        parts = asked.path.removeprefix("/").split("/")
        if parts[:2] == ["api", "models"]:
            if len(parts) == 2:
                return _json([{"id": name} for name in self.repositories][: int(asked.query["limit"])])
            return self._models("/".join(parts[2:4]), parts[4], [unquote(part) for part in parts[5:]], asked)
        return self._file("/".join(parts[:2]), parts[3], unquote("/".join(parts[4:])), asked)

    def _may(self, asked: Asked) -> bool:
        return asked.headers.get("authorization", "").removeprefix("Bearer ") in self.tokens

    def _models(self, name: str, verb: str, rest: list[str], asked: Asked) -> Said:
        repository = self.repositories.get(name)
        if repository is None or (repository.private and not self._may(asked)):
            known = "authorization" in asked.headers
            return _error(404 if known else 401, "RepoNotFound")
        commit = repository.branches.get(rest[0], rest[0])
        if commit not in repository.commits:
            return _error(404, "RevisionNotFound")
        if verb == "revision":
            return _json({"id": name, "sha": commit, "gated": "manual" if repository.gated else False})
        masked = bool(repository.gated) and not self._may(asked)
        entries = [_entry(path, content, masked) for path, content in sorted(repository.commits[commit].items())]
        if verb == "paths-info":
            wanted = json.loads(asked.body)["paths"]
            return _json([entry for entry in entries if entry["path"] in wanted])
        folder = "/".join(rest[1:])
        return self._tree([entry for entry in entries if not folder or entry["path"].startswith(f"{folder}/")], asked)

    def _tree(self, entries: list[dict[str, Any]], asked: Asked) -> Said:
        if not entries:
            return _error(404, "EntryNotFound")
        folders = sorted({entry["path"].rpartition("/")[0] for entry in entries} - {""})
        everything = [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders] + entries
        start, limit = int(asked.query.get("cursor", "0")), int(asked.query["limit"])
        said = _json(everything[start : start + limit])
        if start + limit < len(everything):
            # As behind a proxy that does not rewrite: the address names another host.
            said.headers["Link"] = f'<http://hub.invalid{asked.path}?limit={limit}&cursor={start + limit}>; rel="next"'
        return said

    def _file(self, name: str, revision: str, path: str, asked: Asked) -> Said:
        repository = self.repositories.get(name)
        if repository is None:
            return _error(404, "RepoNotFound")
        files = repository.commits.get(repository.branches.get(revision, revision), {})
        content = files.get(path)
        if content is None:
            return _error(404, "EntryNotFound" if files else "RevisionNotFound")
        if (repository.gated or repository.private) and not self._may(asked) and path != "README.md":
            return _error(403 if "authorization" in asked.headers else 401, "GatedRepo")
        commit = {"X-Repo-Commit": repository.branches.get(revision, revision)}
        if len(content) < LARGE:
            return ranged(asked, content, {"ETag": f'"{blob_id(content)}"', **commit})
        digest = hashlib.sha256(content).hexdigest()
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content)), **commit}
        where = f"{self.store_at or self.store.url}/{name}/{digest}?signature={self.signature}"
        return Said(302, b"", {"Location": where, "ETag": f'"{blob_id(content)}"', **linked})

    def _store(self, asked: Asked) -> Said:
        if (said := self.fault(asked)) is not None:
            return said
        if asked.query.get("signature") != self.signature:
            return Said(403, b"<Error><Code>AccessDenied</Code></Error>")
        digest = asked.path.rpartition("/")[2]
        for repository in self.repositories.values():
            for files in repository.commits.values():
                for content in files.values():
                    if len(content) >= LARGE and hashlib.sha256(content).hexdigest() == digest:
                        return ranged(asked, content, {"ETag": f'"xet-{digest[:8]}"'})
        return Said(404)


def _entry(path: str, content: bytes, masked: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": blob_id(content)}
    if len(content) >= LARGE:
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": "*" * 64 if masked else digest, "size": len(content), "pointerSize": 134}
    return entry


def _json(value: Any) -> Said:
    return Said(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _error(status: int, code: str) -> Said:
    return Said(status, json.dumps({"error": code}).encode(), {"X-Error-Code": code})


@contextmanager
def hub() -> Iterator[Hub]:
    """A hub and the store that it sends readers to, on two ports: two origins."""
    standing = Hub()
    with serving(standing.api, standing.store):
        yield standing
