"""What a pod says whose source is not what was registered, as far as the store's own statements tell."""

from __future__ import annotations

import pytest

from caches.agent.ensure_step import fetch
from caches.agent.ensure_step.options import PodSource
from caches.domain.manifests import manifest_build
from controlplane.clusters.documents import Algorithm, ConnectionSpec, FileRecord, Reason, SourceType
from controlplane.errors import Permanent

CRC, ETAG = (Algorithm.CRC64NVME, "0" * 11 + "="), (Algorithm.ETAG, "e" * 32)


def record(path: str, anchor: tuple[Algorithm, str]) -> FileRecord:
    scope = "" if anchor[0].is_content else "s3:bucket"
    return FileRecord(path, 4, anchor[0], anchor[1], "e" * 32, scope=scope)


@pytest.mark.parametrize(
    ("kind", "now", "says", "step"),
    [
        # Put back with the same bytes, by a plain PUT: the agent takes it, so the pod must not say that it changed.
        (SourceType.S3, [ETAG], "or the same ones without a checksum (0.bin).", "with a CRC64NVME checksum"),
        (SourceType.S3, [ETAG, CRC, ETAG], "without a checksum (0.bin and 1 more).", "node's agent"),
        (SourceType.S3, [CRC], "now, not sha256:w.", "put the files back."),
        (SourceType.FILESYSTEM, [ETAG], "now, not sha256:w.", "put the files back."),
    ],
)
def test_it_says_what_it_cannot_know(
    monkeypatch: pytest.MonkeyPatch, kind: SourceType, now: list[tuple[Algorithm, str]], says: str, step: str
) -> None:
    manifest = manifest_build([record(f"{number}.bin", anchor) for number, anchor in enumerate(now)])
    monkeypatch.setattr(fetch, "open_source", lambda *_: None)
    monkeypatch.setattr(fetch, "manifest_of", lambda *_: manifest)
    source = PodSource(ConnectionSpec("s3", kind, allowed=("bucket",)), "s3://bucket/m")
    with pytest.raises(Permanent) as refused:
        fetch.manifest_by_pod(source, {}, "sha256:w")
    error = refused.value
    assert error.reason == Reason.SOURCE_CHANGED and manifest.digest in error.detail
    assert error.detail.endswith(says) and step in error.next_step
    assert fetch.manifest_by_pod(source, {}, manifest.digest) is manifest
