"""The words of launches: phases in their order, who observes, what can be observed, and how a launch is named."""

from __future__ import annotations

import re
from enum import StrEnum
from uuid import UUID, uuid5

# Fixed for ever: another value would give every launch that is stored another name.
_LAUNCHES = UUID("6f1f7a52-9d4e-5c0b-8a37-2f5f0c1f7e10")


WAITING = "waiting"  # what an ensure step found that only asked: nobody could fetch the weights yet


# Endpoints that services.launches.trial_fleet makes, in local fleets and nowhere else; what somebody else calls
# trial-chat is his, and so is whatever a cluster of his has.
TRIAL_NAMESPACE, TRIAL_NAME = "local", "trial-"
TRIAL_PREFIX = f"{TRIAL_NAMESPACE}/{TRIAL_NAME}"
_DIGITS = "[0-9a-f]{8}"
TRIAL_SHORT_NAMES = f"^{TRIAL_NAME}{_DIGITS}$"
TRIAL_NAMES = f"^{TRIAL_PREFIX}{_DIGITS}$"
_TRIAL = re.compile(TRIAL_NAMES)


def is_trial(endpoint_name: str) -> bool:
    """Whether an endpoint of a local fleet is a trial's, by its full name."""
    return _TRIAL.fullmatch(endpoint_name) is not None


class Trials(StrEnum):
    """What of a selection becomes of launches that trials provoked: they are no demand, so they are left out."""

    WITHOUT = "Without"
    WITH = "With"
    ONLY = "Only"


class Phase(StrEnum):
    """In the order in which a launch reaches them."""

    WAITING = "WaitingForNode"
    IMAGE_PULL = "ImagePull"
    WEIGHTS_FETCH = "WeightsFetch"
    INITIALISATION = "RuntimeInitialisation"
    WEIGHTS_LOAD = "WeightsLoad"
    HEALTH_CHECKS = "HealthChecks"
    FIRST_REQUEST = "FirstRequest"


PHASES = tuple(Phase)


class Observer(StrEnum):
    """Who says so. What a runtime pushes about itself is believed over what others infer from the outside."""

    PUSHED = "Pushed"
    ENSURE = "Ensure"
    CLUSTER = "Cluster"
    RUNTIME_LOG = "RuntimeLog"
    READINESS = "Readiness"
    ROUTER = "Router"


class Clock(StrEnum):
    """Whose clock a time was read from: the control plane's (and the router's), or the node's."""

    SERVER = "Server"
    NODE = "Node"


class Mark(StrEnum):
    """A moment of a launch; SPAN is a whole phase that somebody measured."""

    CREATED = "Created"
    SCHEDULED = "Scheduled"
    PULLING = "Pulling"
    PULLED = "Pulled"
    IMAGE_PRESENT = "ImagePresent"
    ENSURE_STARTED = "EnsureStarted"
    ENSURE_ENDED = "EnsureEnded"
    RESTARTED = "Restarted"  # the container's previous run ended: where a restart's launch begins
    STARTED = "Started"
    LOAD_STARTED = "LoadStarted"
    LOADED = "Loaded"
    SERVING = "Serving"  # the runtime itself answers
    READY = "Ready"
    FIRST_SUCCESS = "FirstSuccess"
    ENDED = "Ended"
    NOTED = "Noted"  # said beside: why it waits, what was tried
    SPAN = "Span"


class PhaseState(StrEnum):
    """Unknown was not measured, NotReached did not happen (yet): neither is zero."""

    MEASURED = "Measured"
    UNKNOWN = "Unknown"
    NOT_REACHED = "NotReached"


class LaunchState(StrEnum):
    """Ended never became ready; Ready stays so whatever happens afterwards."""

    STARTING = "Starting"
    READY = "Ready"
    ENDED = "Ended"


class Cached(StrEnum):
    """What a launch found on its node: measured, not wished."""

    HIT = "Hit"
    PARTIAL = "Partial"
    MISS = "Miss"
    UNKNOWN = "Unknown"


class EventClass(StrEnum):
    WARM_RESTART = "WarmPodRestart"
    COLD_POD = "ColdPodOnWarmNode"
    NEW_NODE = "PodOnNewNode"
    NEW_VERSION = "NewModelVersion"
    NODE_LOSS = "RecoveryAfterNodeLoss"
    UNKNOWN = "Unknown"


class MissReason(StrEnum):
    """Why a launch missed the weights, from what is most to what is least specific."""

    FAILED = "FetchFailed"
    UNUSABLE = "CacheUnusable"  # the node's cache could not help, the weights went into the pod's own folder
    NEW_NODE = "NewNode"
    FIRST = "FirstOnNode"
    INCOMPLETE = "Incomplete"
    GONE = "Gone"  # this version was launched there before
    UNKNOWN = "Unknown"


def launch_id(*, cluster: str, pod_uid: str, container: str, restart_count: int) -> UUID:
    """The same for every observer: ``cluster`` is the cluster's name, ``pod_uid`` a pod's or an engine's."""
    return uuid5(_LAUNCHES, "\n".join((cluster, pod_uid, container, str(restart_count))))
