"""What travels between the control plane and the nodes.

Three documents: NodeCache (one per node: ``spec`` written by Hearth, ``status`` by the node's agent),
ArtifactManifest (immutable, named by digest) and the consumers seen on a node. Nothing here imports Django: the
agent, the router and every gateway share these shapes. Sizes are bytes, rates bytes per second, times aware UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

ANY_DIGEST = "*"
"""Among the digests of a Consumer: it mounts the whole store, so it may use anything there."""


POOL_LABEL = "cache.hearth.dev/pool"
"""Which pool has a node: two may select it, and only the agent of the one that has it goes there."""


class Action(StrEnum):
    """What the agent must do with one artifact. Absence of an entry never means Evict."""

    ENSURE = "Ensure"
    EVICT = "Evict"


MOST_DAMAGED = 100  # paths that ScrubFindings names: a status must stay small


class NodeState(StrEnum):
    """Derived at reading time from the node's facts (controlplane.clusters.freshness), never stored."""

    READY = "Ready"
    NOT_READY = "NotReady"
    CORDONED = "Cordoned"
    TERMINATING = "Terminating"
    LOST = "Lost"
    UNKNOWN = "Unknown"


class ArtifactKind(StrEnum):
    WEIGHTS = "Weights"
    IMAGE = "Image"


class EntryState(StrEnum):
    """Observed state of one artifact on one node. Unknown is derived from ``observed_at`` and never stored."""

    ABSENT = "Absent"
    QUEUED = "Queued"
    DOWNLOADING = "Downloading"
    VERIFYING = "Verifying"
    READY = "Ready"
    REPAIRING = "Repairing"
    EVICTING = "Evicting"
    FAILED = "Failed"
    LOST = "Lost"


class Reason(StrEnum):
    """The closed set of entry failure reasons."""

    INVALID_REQUEST = "InvalidRequest"
    ACCESS_DENIED = "AccessDenied"
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    SOURCE_CHANGED = "SourceChanged"
    INTEGRITY_MISMATCH = "IntegrityMismatch"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    NODE_UNAVAILABLE = "NodeUnavailable"
    CANCELED = "Canceled"
    INTERNAL = "Internal"


class WaitReason(StrEnum):
    """The closed set of reasons why a pod does not run what it should."""

    UNSCHEDULABLE = "Unschedulable"  # no node takes it
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONFIGURATION_ERROR = "ConfigurationError"  # something that it names is not there, e.g. a Secret
    CRASHING = "Crashing"  # it ends again and again
    START_FAILED = "StartFailed"  # anything else that keeps a container from starting
    NOT_ANSWERING = "NotAnswering"  # it runs, and its startup or readiness probe does not succeed


class SourceType(StrEnum):
    S3 = "S3"
    FILESYSTEM = "Filesystem"
    HUGGING_FACE = "HuggingFace"
    JUMP_START = "JumpStart"
    REGISTRY = "Registry"  # of container images: asked by the control plane alone, holds no weights


class Algorithm(StrEnum):
    """How a file's anchor was stated. The first three are content checksums; the rest only name a revision."""

    SHA256 = "SHA-256"  # hex, lower case
    CRC64NVME = "CRC64NVME"  # base64 of the big-endian 8 bytes, as S3 prints it
    GIT = "Git-SHA-1"  # hex, lower case: the id of the file as a blob of git, which covers its size too
    ETAG = "ETag"  # S3 ETag without quotes (plus VersionId in FileRecord.version_id)
    STAT = "Stat"  # filesystem: "<size>-<mtime_ns>-<inode>"

    @property
    def is_content(self) -> bool:
        return self in (Algorithm.SHA256, Algorithm.CRC64NVME, Algorithm.GIT)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a manifest. ``path`` is relative POSIX; ``revision`` is what a ranged read must match."""

    path: str
    size_bytes: int
    algorithm: Algorithm
    checksum: str
    revision: str  # what a read must match: the ETag for S3 and hubs, the Stat string for a filesystem
    version_id: str = ""  # S3 VersionId when the bucket keeps versions
    scope: str = ""  # the store in which a checksum that is no content checksum has a meaning; else ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Every file of one artifact in path order. ``digest`` is ``sha256:<64 hex>`` of the canonical form."""

    digest: str
    files: tuple[FileRecord, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class ConnectionSpec:
    """Where a store is, without its credentials: those are read by ``secret_name`` on the node."""

    name: str
    type: SourceType
    endpoint: str = ""
    region: str = ""
    addressing: str = "path"  # "path" or "virtual"
    ca_bundle: str = ""  # PEM text
    secret_name: str = ""
    allowed: tuple[str, ...] = ()  # buckets (S3), root folders (Filesystem), repositories or models
    namespaces: tuple[str, ...] = ()  # whose endpoints may have it read for them; empty is every namespace
    bytes_per_second: int | None = None  # this node's share of the store's limit; None is unlimited
    manifest: str = ""  # JumpStart: s3://bucket/key of its list of models; "" is the region's own
    hub_endpoint: str = ""  # JumpStart: the API that gives gated models; "" is the region's own


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an artifact's bytes can be had now. Travels beside its manifest and may change; the manifest cannot.

    The later fields are what a control plane with a fresh database learns its versions from.
    """

    connection: ConnectionSpec
    uri: str
    size_bytes: int
    witness: str = ""
    model: str = ""
    version: str = ""
    allow_patterns: tuple[str, ...] = ()
    ignore_patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredEntry:
    """One line of ``NodeCache.spec.desired``: lower ``order`` goes first; Evict lines are handled before Ensure."""

    digest: str
    kind: ArtifactKind
    action: Action
    connection: str  # ConnectionSpec.name
    uri: str  # s3://bucket/prefix, file:///root/folder or hf://organisation/name@commit
    size_bytes: int
    order: int
    verify_round: int = 0  # raised to ask for a scrub now; the agent echoes the last one it finished
    retry_round: int = 0  # raised to ask a Failed entry to try again before its retry_at
    witness: str = ""  # what other nodes computed for the same bytes; "" while nobody has


@dataclass(frozen=True, slots=True)
class Limits:
    """Pacing on one node. ``None`` is unlimited."""

    max_downloads: int = 2
    max_requests: int = 8
    bytes_per_second: int | None = None
    high_watermark_bytes: int | None = None  # Hearth's store plus everything else on the disk stays under this
    paused: bool = False  # no new byte is asked for; what is Ready stays


@dataclass(frozen=True, slots=True)
class NodeCacheSpec:
    """The whole desired state of one node incarnation. An agent ignores a spec whose ``node_uid`` is not its own."""

    node_name: str
    node_uid: str
    pool: str
    desired: tuple[DesiredEntry, ...] = ()
    connections: tuple[ConnectionSpec, ...] = ()
    limits: Limits = field(default_factory=Limits)
    status_interval_seconds: float = 30.0
    scrub_interval_seconds: float = 86400.0


@dataclass(frozen=True, slots=True)
class Desired:
    """The spec as stored, with the generation that the agent echoes in its status."""

    generation: int
    spec: NodeCacheSpec


@dataclass(frozen=True, slots=True)
class ScrubFindings:
    """What was found wrong since the scrub of ``verify_round`` was asked for, repaired or not."""

    verify_round: int
    damaged: tuple[str, ...]  # paths in order, at most MOST_DAMAGED
    damaged_count: int  # of all of them


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """What the agent observed of one artifact on its node."""

    digest: str
    state: EntryState
    reason: str = ""  # a Reason value, "" when nothing is wrong
    message: str = ""
    attempts: int = 0
    retry_at: datetime | None = None
    bytes_done: int = 0  # verified or published bytes on disk
    bytes_total: int = 0
    bytes_moved: int = 0  # read from the source over the entry's life on this node, repeats and repairs included
    rate_bytes_per_second: float | None = None
    eta_seconds: float | None = None
    started_at: datetime | None = None
    ready_at: datetime | None = None
    verified_at: datetime | None = None
    last_used_at: datetime | None = None
    verify_round: int = 0
    retry_round: int = 0
    witness: str = ""
    damaged: tuple[str, ...] = ()  # paths that the last scrub found wrong and that are not repaired yet
    scrub: ScrubFindings | None = None  # kept until the next verify_round; None: nothing was found wrong


@dataclass(frozen=True, slots=True)
class Orphan:
    """A tree in the node's store that no desired line mentions. Reported, never removed by itself."""

    name: str  # folder name under weights/ or partial/
    bytes: int
    partial: bool


@dataclass(frozen=True, slots=True)
class CapacityStatus:
    """``capacity`` is the disk (or quota), ``used`` Hearth's own store, ``other`` everything else on that disk."""

    capacity_bytes: int
    used_bytes: int
    other_bytes: int
    reserved_bytes: int  # unwritten remainder of running downloads

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes - self.other_bytes)


@dataclass(frozen=True, slots=True)
class NodeCacheStatus:
    """The only observation of a node's store, written by that node's agent alone."""

    node_name: str
    node_uid: str
    observed_generation: int
    reported_at: datetime
    capacity: CapacityStatus
    entries: tuple[EntryStatus, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    agent_version: str = ""
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """A Kubernetes-style condition. ``status`` is True, False or Unknown; ``reason`` is CamelCase."""

    type: str
    status: str
    reason: str
    message: str
    last_transition: datetime


@dataclass(frozen=True, slots=True)
class Consumer:
    """A non-terminal pod or engine that mounts a digest on one node incarnation, or that serves an endpoint: such a one
    may have no digest, and no node yet.

    ``wait_reason`` is a WaitReason while it does not run what it should, ``wait_message`` the cluster's own words for
    it; "" otherwise. ``leaving``: its end was asked for, and it gets nothing new. ``address`` is where it answers:
    host:port, or a host alone when its endpoint's document names the port; empty while it has none. ``warm_up`` is how
    the request went that it was to answer first: "ok", why it serves without having answered it, or "" while that is
    not known or nothing was asked.
    """

    uid: str
    name: str
    node_name: str
    node_uid: str
    digests: frozenset[str]
    ready: bool = False
    restart_count: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    warm_up: str = ""
    wait_reason: str = ""
    wait_message: str = ""
    leaving: bool = False
