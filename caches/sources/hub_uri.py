"""``hf://org/name@revision/folder``: addresses on a hub, and which of them a connection may read.

The revision is a branch, a tag or a commit, ``main`` when it is left out; a slash in it is written %2F. The name of the
connection may stand before the repository, as in ``hf://connection/org/name``, and is taken off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from caches.domain.manifests import path_problem
from caches.sources import problems
from controlplane.clusters.documents import ConnectionSpec

SCHEME = "hf://"
DEFAULT_REVISION = "main"
_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A repository (``org/name``) at a revision, and a folder in it ("" for all)."""

    repository: str
    revision: str = DEFAULT_REVISION
    folder: str = ""

    @property
    def is_commit(self) -> bool:
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def uri(self) -> str:
        tail = f"/{quote(self.folder)}" if self.folder else ""
        return f"{SCHEME}{self.repository}@{quote(self.revision, safe='')}{tail}"

    def inside(self, path: str) -> str:
        """The path in the repository of a path below the folder."""
        return f"{self.folder}/{path}" if self.folder else path


def split_hub(uri: str, spec: ConnectionSpec) -> HubPlace:
    """The place that an allowed address names; Permanent(InvalidRequest) otherwise."""
    if not uri.startswith(SCHEME):
        raise problems.bad_uri(uri, "a HuggingFace connection reads hf:// addresses.")
    named, at, tail = uri.removeprefix(SCHEME).partition("@")
    parts = named.split("/")
    if len(parts) == 3 and parts[0] == spec.name:
        del parts[0]
    if len(parts) != 2 or not all(is_part(part) for part in parts):
        raise problems.bad_uri(uri, "the repository is written organisation/name.")
    revision, _, folder = tail.partition("/")
    revision, folder = unquote(revision), unquote(folder).removesuffix("/")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise problems.bad_uri(uri, "what follows @ is no branch, tag or commit.")
    if folder and (problem := path_problem(folder)):
        raise problems.bad_uri(uri, f"{problem}.")
    repository = "/".join(parts)
    if not may_read(repository, spec.allowed):
        raise problems.not_allowed(f"Repository {repository}", spec.name)
    return HubPlace(repository, revision or DEFAULT_REVISION, folder)


def may_read(repository: str, allowed: tuple[str, ...]) -> bool:
    """``allowed`` names repositories (org/name), organisations (org) or everything (*)."""
    return not {"*", repository, repository.partition("/")[0]}.isdisjoint(allowed)


def is_part(text: str) -> bool:
    """Whether this can be an organisation's or a repository's name."""
    return _PART.fullmatch(text) is not None and ".." not in text and "--" not in text


def check_repository(text: str) -> None:
    """Refuse what cannot stand in the allowed list of a HuggingFace connection."""
    parts = text.split("/")
    if text != "*" and (len(parts) > 2 or not all(is_part(part) for part in parts)):
        raise problems.bad_uri(text, "name repositories (organisation/name), organisations, or * for all.")
