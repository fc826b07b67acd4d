"""What an ensure step is told, by arguments and by its environment (credentials by environment alone)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.clusters import codec
from controlplane.clusters.documents import ConnectionSpec, SourceType

# Names in the environment, and what a source calls them.
_KEYS = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
}
_CREDENTIALS: Mapping[SourceType, Mapping[str, str]] = {
    SourceType.S3: _KEYS,
    SourceType.JUMP_START: _KEYS,
    SourceType.HUGGING_FACE: {"HF_TOKEN": "token"},
}


@dataclass(frozen=True, slots=True)
class PodSource:
    """Where the pod itself could fetch from. ``connection.secret_name`` plays no part: the secret is the pod's own."""

    connection: ConnectionSpec
    uri: str
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """``store`` is the store's folder as this container sees it, ``mount`` where the served container sees the tree."""

    digest: str
    store: Path
    model: Path
    mount: str
    who: str
    report: Path
    source: PodSource | None
    secret: Mapping[str, str]
    answer_seconds: float
    high_watermark: float


def read_options(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Options:
    """Exits with a usage message for arguments that make no sense; ValueError for a source that does not."""
    parser = argparse.ArgumentParser(prog="hearth-ensure", description="Make an artifact present, then exit.")
    parser.add_argument("--digest", required=True, help="sha256:… of the artifact")
    parser.add_argument("--store", type=Path, required=True, help="the node's store, e.g. /hearth/store")
    parser.add_argument("--model", type=Path, required=True, help="empty folder shared with the served container")
    parser.add_argument("--mount", required=True, help="where the served container mounts weights/<digest> read-only")
    parser.add_argument(
        "--report", type=Path, default=Path("/dev/termination-log"), help="where the outcome is written"
    )
    parser.add_argument("--answer-seconds", type=float, default=5.0, help="how long an agent may be silent")
    parser.add_argument("--high-watermark", type=float, default=0.85, help="share of the disk that may be filled")
    given = parser.parse_args(arguments)
    source = _source(environment.get("HEARTH_SOURCE", ""))
    names = _CREDENTIALS.get(source.connection.type, {}) if source else {}
    return Options(
        digest=given.digest,
        store=given.store,
        model=given.model,
        mount=given.mount.rstrip("/"),
        who=f"{environment.get('POD_NAMESPACE', '')}/{environment.get('POD_NAME', '')}".strip("/"),
        report=given.report,
        source=source,
        secret={ours: environment[name] for name, ours in names.items() if environment.get(name)},
        answer_seconds=max(0.1, given.answer_seconds),
        high_watermark=min(1.0, max(0.0, given.high_watermark)),
    )


def _source(text: str) -> PodSource | None:
    return codec.loads(PodSource, text) if text else None
