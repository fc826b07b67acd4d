"""Manifests: which files an artifact has, the digest that is its identity, and which paths are safe on a node.

The digest covers, for each file, path, size, algorithm and checksum, and for anchors that are no content checksums also
their scope (the store they come from). Revisions and version ids say how to read a file and are no part of the
identity, so the same content on two stores is one artifact.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterable

from controlplane.clusters.documents import Algorithm, FileRecord, Manifest

MAX_COMPONENT_BYTES = 255  # NAME_MAX of every file system in use
MAX_PATH_BYTES = 1024  # S3's own limit of a key
MAX_ENCODED_BYTES = 256 * 1024 * 1024  # a manifest that unpacks to more is not one of ours
RESERVED_PREFIX = ".hearth"
_DIGEST_HEAD = b"hearth-manifest-1\n"


def manifest_digest(files: Iterable[FileRecord]) -> str:
    """``sha256:<64 hex>`` of the canonical form, whatever the order of ``files``."""
    lines = [
        [file.path, file.size_bytes, file.algorithm.value, file.checksum]
        + ([] if file.algorithm.is_content else [file.scope])
        for file in _ordered(files)
    ]
    text = json.dumps(lines, ensure_ascii=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(_DIGEST_HEAD + text.encode("ascii")).hexdigest()


def manifest_build(files: Iterable[FileRecord]) -> Manifest:
    """Order the files, check every path and derive the digest. ValueError names the first path that is not safe."""
    ordered = _ordered(files)
    for file in ordered:
        if problem := path_problem(file.path):
            raise ValueError(f"{file.path!r}: {problem}")
    if groups := case_collisions(file.path for file in ordered):
        raise ValueError(f"names that cannot live side by side: {', '.join(groups[0])}")
    return Manifest(digest=manifest_digest(ordered), files=ordered)


def manifest_encode(manifest: Manifest) -> bytes:
    """zlib-compressed canonical JSON; the digest travels with it and is recomputed on arrival."""
    lines = [
        [f.path, f.size_bytes, f.algorithm.value, f.checksum, f.revision, f.version_id, f.scope] for f in manifest.files
    ]
    text = json.dumps({"digest": manifest.digest, "files": lines}, ensure_ascii=True, separators=(",", ":"))
    return zlib.compress(text.encode("ascii"), level=6)


def manifest_decode(data: bytes) -> Manifest:
    """The inverse. ValueError when the bytes are damaged, a path is unsafe or the digest does not match the files."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data, MAX_ENCODED_BYTES)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError("truncated or too large")
        document = json.loads(text)
        files = [_file(line) for line in document["files"]]
        claimed = str(document["digest"])
    except (zlib.error, KeyError, TypeError, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"not a manifest: {error}") from error
    manifest = manifest_build(files)
    if manifest.digest != claimed:
        raise ValueError(f"the files give {manifest.digest}, the manifest says {claimed}")
    return manifest


def path_problem(path: str) -> str | None:
    """Why this relative path must not be written below a node's store, or None when it may."""
    if not path:
        return "empty path"
    if path.startswith("/"):
        return "absolute path"
    if "\\" in path:
        return "backslash in the path"
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in path):
        return "control character or broken encoding in the path"
    if len(path.encode()) > MAX_PATH_BYTES:
        return f"path longer than {MAX_PATH_BYTES} bytes"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"{part!r} as a part of the path"
        if len(part.encode()) > MAX_COMPONENT_BYTES:
            return f"a name longer than {MAX_COMPONENT_BYTES} bytes"
        if part.casefold().startswith(RESERVED_PREFIX):
            return f"names that begin with {RESERVED_PREFIX} are reserved"
    return None


def case_collisions(paths: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Groups of paths that cannot live side by side: equal but for case or Unicode form, twice, or file and folder."""
    groups: dict[str, list[str]] = defaultdict(list)
    folders: dict[str, str] = {}
    for path in paths:
        folded = _folded(path)
        groups[folded].append(path)
        while "/" in folded:
            folded = folded.rsplit("/", 1)[0]
            if folded in folders:
                break
            folders[folded] = path
    found = [tuple(sorted(group)) for group in groups.values() if len(group) > 1]
    found += [(group[0], folders[folded]) for folded, group in groups.items() if folded in folders]
    return tuple(sorted(found))


def _ordered(files: Iterable[FileRecord]) -> tuple[FileRecord, ...]:
    return tuple(sorted(files, key=lambda file: file.path))


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _file(line: list[object]) -> FileRecord:
    path, size, algorithm, checksum, revision, version_id, scope = line
    if type(size) is not int or size < 0:
        raise ValueError(f"size of {path!r}")
    return FileRecord(
        path=_text(path),
        size_bytes=size,
        algorithm=Algorithm(_text(algorithm)),
        checksum=_text(checksum),
        revision=_text(revision),
        version_id=_text(version_id),
        scope=_text(scope),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"text expected, not {value!r}")
    return value
