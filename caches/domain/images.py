"""References to images as people write them: ``[registry/]repository[:tag][@digest]``. Pure.

What a reference names is settled by asking its registry, once; afterwards only the digest counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST_REFERENCE = 300  # as long as the names in records
DEFAULT_TAG = "latest"
DEFAULT_REGISTRY = "registry-1.docker.io"  # where the images of references that name no registry are served
DEFAULT_NAMES = frozenset({"", "docker.io", "index.docker.io", DEFAULT_REGISTRY})
_DEFAULT_NAME, _DEFAULT_FOLDER = "docker.io", "library/"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?")


class NotAReference(ValueError):
    """The text cannot name an image; its message says why."""


@dataclass(frozen=True, slots=True)
class ImageReference:
    """``registry`` is "" where none was written. Exactly one of ``tag`` and ``digest`` decides: the digest if given."""

    registry: str
    repository: str
    tag: str  # "" where only a digest was written
    digest: str = ""

    @property
    def name(self) -> str:
        """Registry and repository, as every reference to it begins."""
        return f"{self.registry}/{self.repository}" if self.registry else self.repository

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"

    def by_digest(self, digest: str) -> str:
        """The reference by which nodes are told: no tag, so that nobody asks the registry what it means; and the
        default registry by the name under which they look for its credentials, not by its address."""
        name = f"{_DEFAULT_NAME}/{self.repository}" if self.registry == DEFAULT_REGISTRY else self.name
        return f"{name}@{digest}"

    def is_at(self, host: str) -> bool:
        """Whether this host, in lower case, is its registry; the default one has several names."""
        return host == self.registry or {host, self.registry} <= DEFAULT_NAMES

    @property
    def spellings(self) -> tuple[str, ...]:
        """The repository as people may have written it: the default registry's ``x`` is its ``library/x``."""
        short = self.repository.removeprefix(_DEFAULT_FOLDER)
        if self.registry not in DEFAULT_NAMES or "/" in short:
            return (self.repository,)
        return short, f"{_DEFAULT_FOLDER}{short}"


def parse_reference(text: str) -> ImageReference:
    """Take a reference apart; without tag and digest it means the tag ``latest``. Raises NotAReference."""
    text = text.strip()
    if not text or len(text) > LONGEST_REFERENCE:
        raise NotAReference(f"A reference has 1 to {LONGEST_REFERENCE} characters.")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise NotAReference("What follows @ is a digest: sha256: and 64 hexadecimal digits.")
    registry, rest = _split_registry(rest)
    repository, colon, tag = rest.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise NotAReference("A tag has letters, digits and . _ -, at most 128, and begins with none of . and -.")
    if not all(_PART.fullmatch(part) for part in repository.split("/")):
        raise NotAReference("A repository has lower case letters, digits and . _ - between slashes, no address scheme.")
    return ImageReference(registry, repository, tag if colon else "" if digest else DEFAULT_TAG, digest)


def _split_registry(text: str) -> tuple[str, str]:
    """A first part with a dot, a colon or the name localhost is where the registry is."""
    first, slash, rest = text.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        return "", text
    if not _REGISTRY.fullmatch(first):
        raise NotAReference(f"{first[:80]!r} is no address of a registry.")
    return first.lower(), rest
