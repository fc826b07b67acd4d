"""What a cluster can be asked and told: one Protocol, whole from the start.

``clusters/local`` implements it on the embedded fleet and ``clusters/kubernetes`` on an API server; both pass the same
contract suite (tests/contracts). Calls are synchronous, bounded by their own timeout, and raise only GatewayError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from controlplane.clusters.documents import Consumer, Manifest, NodeCacheSpec, NodeCacheStatus, Origin
from controlplane.clusters.endpoints import EndpointCalls, ObservedEndpoint
from controlplane.clusters.pod_runs import ObservedPod


class GatewayError(Exception):
    """Anything a cluster can answer that is not the wanted answer."""


class Gone(GatewayError):
    """The watch token is too old: list again."""


class Conflict(GatewayError):
    """Another writer was first: read again and decide again. ``managers`` are those who own what was to be written."""

    def __init__(self, message: str, managers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.managers = managers


class NotFound(GatewayError):
    """No such object (or the node's uid is another one now)."""


class NoNamespace(NotFound):
    """Not even the namespace of the object is there."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"The namespace {namespace} is not there.")
        self.namespace = namespace


class Unreachable(GatewayError):
    """No answer: connection refused, timed out, 5xx."""


class NodeUnreachable(Unreachable):
    """The cluster answers; the machine that it would have to ask does not."""


class Refused(GatewayError):
    """The cluster will not do that for Hearth: credentials, permissions, or a rule of the cluster. Asking again
    changes nothing before somebody did."""


class Forbidden(Refused):
    """The cluster's roles do not give Hearth's account that right: a role binding helps. A quota or an admission rule
    that says no is a Refused like any other."""


class NotApplicable(GatewayError):
    """This kind of cluster has no such thing. Never to be read as Ready."""


class Throttled(GatewayError):
    """Asked to slow down."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Kind(StrEnum):
    """What can be listed and watched."""

    NODE = "Node"
    NODE_CACHE = "NodeCache"
    CONSUMER = "Consumer"
    POD = "Pod"
    EVENT = "Event"
    ENDPOINT = "InferenceEndpointConfig"
    JUMPSTART_MODEL = "JumpStartModel"


class EventType(StrEnum):
    ADDED = "Added"
    MODIFIED = "Modified"
    DELETED = "Deleted"
    BOOKMARK = "Bookmark"


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """One machine incarnation as the cluster reports it. ``ready`` None means the cluster does not know."""

    name: str
    uid: str
    labels: Mapping[str, str]
    ready: bool | None
    schedulable: bool
    created_at: datetime
    taints: tuple[str, ...] = ()
    terminating_at: datetime | None = None  # a termination notice, e.g. a spot interruption


@dataclass(frozen=True, slots=True)
class ObservedNodeCache:
    """A NodeCache as stored: ``generation`` counts changes of spec; ``status`` is None until an agent wrote one."""

    node_name: str
    node_uid: str
    generation: int
    spec: NodeCacheSpec
    status: NodeCacheStatus | None


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something that happened to an object of the cluster, for launch timelines and pages. ``restart_count`` is which
    run of an engine it belongs to.

    ``at`` is when it was seen last, ``first_at`` when first where that is another time. ``container`` is the one of a
    pod that it is about; ``init`` when that only prepares. ``reporter`` is the component that says so.
    """

    uid: str
    at: datetime
    object_kind: str
    object_name: str
    object_uid: str
    reason: str
    message: str
    restart_count: int = 0
    first_at: datetime | None = None
    container: str = ""
    init: bool = False
    reporter: str = ""


Observed = ObservedNode | ObservedNodeCache | Consumer | ObservedPod | ClusterEvent | ObservedEndpoint


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything of one kind, and the token from which a watch continues without a gap.

    A list of nodes says which cluster answered: ``cluster_uid`` stays the same for as long as the cluster does, and is
    another one for whatever is built anew at its address; "" where that cannot be told.
    """

    items: tuple[Observed, ...]
    token: str
    cluster_uid: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change; a BOOKMARK has no object and only moves the token."""

    type: EventType
    kind: Kind
    token: str
    object: Observed | None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this cluster can do, asked once at start."""

    workloads: bool = False
    images: bool = False
    taints: bool = False
    server_side_apply: bool = False
    agents: bool = False  # False: something else starts them, as the local fleet's supervisor does
    version: str = ""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that an agent puts up with; an empty ``key`` is every taint, an empty ``effect`` every effect."""

    key: str = ""
    value: str = ""  # "" tolerates any value
    effect: str = ""


@dataclass(frozen=True, slots=True)
class PoolAgent:
    """The agents of one pool: one on each node that ``node_selector`` matches, with the pool's folder of the node."""

    pool: str
    image: str
    cache_path: str  # absolute folder on the node, the only one that the agent writes
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = (Toleration(),)
    server: str = ""  # address of the API server as the nodes reach it; "" is what the cluster gives its pods
    priority_class: str = "system-node-critical"
    image_pull_secrets: tuple[str, ...] = ()
    source_paths: tuple[str, ...] = ()  # more folders of the node, to read Filesystem connections from


@dataclass(frozen=True, slots=True)
class ImageHolder:
    """Desired presence of one image digest on some nodes of one pool."""

    pool: str
    reference: str  # repository@sha256:…
    nodes: tuple[str, ...] = ()  # by name; the pool's others do not get it
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = (Toleration(),)
    pull_secrets: tuple[str, ...] = ()  # names, where the holders run
    helper_image: str = ""  # what mounts the image where nodes can mount images; "" never does


@dataclass(frozen=True, slots=True)
class ImagePresence:
    """Observed presence of one image on one node; ``ready`` None is unknown. ``reason`` is a documents.Reason value
    where it failed, "" while it is on its way; not ``holdable``: it is there and nothing can keep it there."""

    node_name: str
    node_uid: str
    reference: str
    ready: bool | None
    reason: str = ""
    message: str = ""
    leaving: bool = False  # what held it is being removed
    holdable: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """A served model's desired Deployment, as a document of the cluster's own kind."""

    name: str
    namespace: str
    document: Mapping[str, object]


class ClusterGateway(EndpointCalls, Protocol):
    """See the module docstring. ``kinds`` and tokens are opaque to callers; a token is valid for its own kind only."""

    def capabilities(self) -> Capabilities: ...

    # observation
    def list(self, kind: Kind) -> Listing: ...
    def watch(self, kind: Kind, token: str, timeout_seconds: float) -> Iterator[WatchEvent]:
        """Changes after ``token`` until the timeout; raises Gone when the token was compacted away."""
        ...

    def consumers(self, node_name: str, node_uid: str) -> tuple[Consumer, ...]:
        """A fresh listing, never a cache; raises when it cannot be had, so that the caller evicts nothing."""
        ...

    # node caches
    def apply_node_cache(self, spec: NodeCacheSpec, *, take_over: bool = False) -> int:
        """Server-side apply of the spec; returns the generation. NotFound when the node incarnation is gone.

        Fields that another manager changed raise Conflict with its name; ``take_over`` takes them back instead.
        """
        ...

    def delete_node_cache(self, node_name: str, node_uid: str) -> None:
        """Forget spec and status of one incarnation; nothing on the node is removed. No error when there is none."""
        ...

    def apply_manifest(self, manifest: Manifest, origin: Origin | None = None) -> None:
        """Publish the files, and where their bytes can be had: an agent that is asked for the artifact by a pod reads
        both. Without ``origin`` the known one stays."""
        ...

    def delete_manifest(self, digest: str) -> None: ...
    def manifests(self) -> Iterator[tuple[Manifest, Origin | None]]:
        """Everything that is published, in the order of digests, with where its bytes are if somebody said so. What
        is damaged or incomplete is left out: it is published again by whoever has it."""
        ...

    def apply_secret(self, name: str, data: Mapping[str, str]) -> None: ...
    def delete_secret(self, name: str) -> None: ...
    def set_node_labels(self, node_name: str, node_uid: str, labels: Mapping[str, str | None]) -> None:
        """Set (or remove, with None) the given labels only; Conflict when the uid is another one now."""
        ...

    def set_node_taint(self, node_name: str, node_uid: str, taint: str, present: bool) -> None: ...

    # agents (NotApplicable where something else starts them)
    def apply_agent(self, agent: PoolAgent) -> None: ...
    def delete_agent(self, pool: str) -> None: ...
    def has_agents(self, pool: str) -> bool:
        """Whether an agent of the pool may still run: one that is being ended does, until its node has said so or the
        time it was given has passed."""
        ...

    # images (NotApplicable on the local fleet)
    def apply_image_holder(self, holder: ImageHolder) -> None:
        """Have the image on exactly these nodes of the pool; whoever holds it already is not disturbed."""
        ...

    def delete_image_holder(self, pool: str, reference: str) -> None: ...
    def renew_image_holder(self, pool: str, reference: str, node_name: str) -> None:
        """Have the holder there made again, so that its node fetches what it has lost. No error where there is none."""
        ...

    def image_holders(self, pool: str) -> tuple[str, ...]:
        """The references that the pool has holders for."""
        ...

    def image_presence(self, pool: str) -> tuple[ImagePresence, ...]:
        """What the pool's holders say now; a node without a line has no holder."""
        ...

    def apply_pull_secret(self, name: str, registry: str, username: str, password: str) -> None:
        """Credentials by which the holders that name them pull from this registry (host and port)."""
        ...

    def delete_pull_secret(self, name: str) -> None:
        """No error when there is none."""
        ...

    def images_listed(self, node_name: str, node_uid: str) -> frozenset[str] | None:
        """Digests that the node itself says it has, held or not; None where its list does not tell all. It proves
        that something may still be there, never that it can be used."""
        ...

    # workloads
    def apply_workload(self, workload: Workload) -> None: ...
    def delete_workload(self, namespace: str, name: str) -> None: ...
    def logs(
        self,
        consumer_uid: str,
        max_bytes: int,
        *,
        name: str = "",
        container: str = "",
        restart_count: int | None = None,
    ) -> bytes:
        """The beginning of one run's log, each line after the time at which it was written.

        ``name`` (namespace/name) spares a search, ``container`` is the first one where it is not said, and without
        ``restart_count`` it is the run of now. NotFound when the pod is gone, or nobody keeps that run's log any more.
        """
        ...


class ObservationSink(Protocol):
    """What an app registers to hear what the watcher sees (controlplane.clusters.sinks).

    ``relisted`` carries the complete set, so anything missing from it is gone; ``changed`` carries increments.
    Both may repeat: a sink must be idempotent.
    """

    def relisted(self, cluster_id: str, kind: Kind, items: tuple[Observed, ...], at: datetime) -> None: ...
    def changed(self, cluster_id: str, events: tuple[WatchEvent, ...], at: datetime) -> None: ...
