"""What an endpoint's status says, and what the mirrors of its caches show. Pure; the words are the vendor's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from caches.domain.endpoints.reading import Ignored
from caches.domain.endpoints.workload import selector
from caches.domain.gating import Gate, GateState
from caches.domain.rollouts import BEFORE_SWITCH, RolloutState
from controlplane.errors import FieldError

LONGEST_MESSAGE = 2000
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """A cache as its mirrors show it. ``state`` is the vendor's word: Pending, Downloading, Ready, Failed."""

    state: str
    ready: int
    target: int
    message: str = ""
    cold: str = ""  # which nodes are not ready and why, while the numbers alone are said
    gate: str = ""  # that pods may start although some are not, in a sentence

    @property
    def phase(self) -> str:
        """The launch article's word for it."""
        return "Complete" if self.state == "Ready" else self.state


@dataclass(frozen=True, slots=True)
class WorkFacts:
    """The Deployment's numbers."""

    replicas: int
    wanted: int
    available: int
    complete: bool
    failed: str = ""
    wait_reason: str = ""  # a WaitReason, "" while no pod waits
    waits: str = ""  # which pod waits, and why


@dataclass(frozen=True, slots=True)
class WarmUpFacts:
    """Of the pods that there are: how many answered the warm-up request, and why others serve without."""

    pods: int
    warm: int
    failed: Mapping[str, str]  # reason by name of the pod


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """Everything that a status is made of. ``problem``: why Hearth could not do its part, e.g. a foreign Deployment."""

    name: str
    generation: int
    now: datetime
    refusals: Sequence[FieldError] = ()
    ignored: Sequence[Ignored] = ()
    state: RolloutState | None = None
    reason: str = ""
    message: str = ""
    weights: CacheFacts | None = None
    image: CacheFacts | None = None
    token: str | None = None  # why its hub token cannot be read, "" where it can; None: it names none
    connection: str | None = None  # why the named connection is not followed, "" where it is; None: it names none
    moved: str = ""  # that the image's tag names another digest now
    work: WorkFacts | None = None
    warm_up: WarmUpFacts | None = None  # None: none is asked for
    deleting: bool = False
    problem: str = ""
    unwritten: str = ""  # why the cluster does not take this very status


def cache_facts(gate: Gate | None, *, moving: bool, cold: str = "") -> CacheFacts:
    """A cache's state from its gate over all targets: those are not what the endpoint's own gate asks for, and nothing
    is said of what is required. ``moving``: bytes are on their way somewhere. ``cold``: of the targets that are not
    ready, see gating.cold_words."""
    if gate is None:
        return CacheFacts("Pending", 0, 0, "Nothing is asked of any node yet.")
    numbers = (gate.ready, gate.required)
    if gate.state is GateState.OPEN:
        return CacheFacts("Ready", *numbers)
    # Over all targets the numbers say it; the gate's own words stand where there is nothing to count.
    state = "Failed" if gate.state is GateState.FAILED else "Downloading" if moving else "Pending"
    return CacheFacts(state, *numbers, "", cold) if gate.required else CacheFacts(state, *numbers, gate.reason)


def image_facts(gate: Gate, *, moving: bool, cold: str = "") -> CacheFacts:
    """As cache_facts; of an image the vendor also says where only some nodes cannot have it."""
    facts = cache_facts(gate, moving=moving, cold=cold)
    return replace(facts, state="PartiallyReady") if facts.state == "Failed" and facts.ready else facts


def endpoint_status(facts: StatusFacts, before: Mapping[str, Any]) -> Json:
    """The status to write. ``before`` is the one there is: conditions that did not turn keep their time."""
    work = facts.work
    status: Json = {
        "state": _state(facts),
        "observedGeneration": facts.generation,
        "replicas": work.replicas if work else before.get("replicas", 0) if facts.deleting else 0,
        "selector": ",".join(f"{name}={value}" for name, value in selector(facts.name).items()),
        "conditions": _conditions(facts, before),
    }
    if facts.image is not None:
        status["imageCacheStatus"] = _counts(facts.image)
    return status


def _counts(cache: CacheFacts) -> Json:
    return {
        "state": cache.state,
        "readyNodes": cache.ready,
        "targetNodes": cache.target,
        # One that is ready needs no words.
        "message": (cache.message or ("" if cache.state == "Ready" else _warm_nodes(cache)))[:LONGEST_MESSAGE],
    }


def _warm_nodes(cache: CacheFacts) -> str:
    said = f"{cache.ready} of {cache.target} {'node is' if cache.target == 1 else 'nodes are'} warm."
    return " ".join((said, *([f"Not yet: {cache.cold}."] if cache.cold else ()), *([cache.gate] if cache.gate else ())))


def _state(facts: StatusFacts) -> str:
    if facts.deleting:
        return "DeletionInProgress"
    if facts.refusals or facts.problem or facts.state is RolloutState.FAILED or facts.reason == "VersionRefused":
        return "DeploymentFailed"
    if facts.work is None:
        return "DeploymentPending"
    if facts.work.complete and facts.state not in BEFORE_SWITCH:
        return "DeploymentComplete"
    return "DeploymentInProgress"


def _conditions(facts: StatusFacts, before: Mapping[str, Any]) -> list[Json]:
    made = [_accepted(facts)]
    if facts.ignored:
        text = "; ".join(f"{item.path}: {item.why}" for item in facts.ignored)
        made.append(("FieldsIgnored", "True", "Unsupported", f"Accepted without effect. {text}"))
    if facts.weights is not None:
        made.append(_cached("WeightsCacheReady", facts.weights))
    if facts.image is not None:
        made.append(_cached("ImageCacheReady", facts.image))
    if facts.token is not None:
        said = facts.token or "The Secret that the document names is read."
        made.append(("TokenReadable", "False" if facts.token else "True", "NoToken" if facts.token else "Read", said))
    if facts.connection is not None:
        said = facts.connection or "What is served is read through the connection that the document names."
        reason = "NotFollowed" if facts.connection else "Followed"
        made.append(("ConnectionFollowed", "False" if facts.connection else "True", reason, said))
    if facts.moved:
        said = f"{facts.moved} Pods go on with the digest that they have; name the other one in the document to run it."
        made.append(("ImageTagMoved", "True", "TagMoved", said))
    if facts.state is not None:
        settled = facts.state in (RolloutState.DONE, RolloutState.HOLDING)
        made.append(("RolledOut", "True" if settled else "False", facts.reason or str(facts.state), facts.message))
    if facts.work is not None:
        made.append(_available(facts.work))
    if facts.warm_up is not None:
        made.append(_warmed_up(facts.warm_up))
    if facts.unwritten:
        made.append(("StatusWritten", "False", "NotWritten", facts.unwritten))
    known = {one.get("type"): one for one in before.get("conditions") or () if isinstance(one, Mapping)}
    return [_condition(facts, known.get(type_), type_, *rest) for type_, *rest in made]


def _accepted(facts: StatusFacts) -> tuple[str, str, str, str]:
    if facts.refusals:
        return "Accepted", "False", "Refused", " ".join(_refusal(error) for error in facts.refusals)
    if facts.problem:
        return "Accepted", "False", "DeletionWaits" if facts.deleting else "CannotServe", facts.problem
    return "Accepted", "True", "Understood", "The document is understood."


def _available(work: WorkFacts) -> tuple[str, str, str, str]:
    serves = work.available > 0 or work.wanted == 0
    said = f"{work.available} of {work.wanted} replicas serve."
    if work.waits and work.available < work.wanted:
        said = f"{said} {work.waits}"
    return "Available", "True" if serves else "False", "Serving" if serves else work.wait_reason or "NoReplica", said


def _refusal(error: FieldError) -> str:
    """The sentence with its field, once."""
    named = not error.field or error.detail.startswith(f"{error.field} ")
    return error.detail if named else f"{error.field}: {error.detail}"


def _cached(type_: str, cache: CacheFacts) -> tuple[str, str, str, str]:
    said = cache.message or _warm_nodes(cache)
    return type_, "True" if cache.state == "Ready" else "False", cache.state, said


def _warmed_up(found: WarmUpFacts) -> tuple[str, str, str, str]:
    if found.failed:
        pod, why = min(found.failed.items())
        said = (
            f"{len(found.failed)} of {found.pods} pods serve without having answered the warm-up request. "
            f"{pod}: {why}. Correct hearth.dev/warm-up, or give it more time with hearth.dev/warm-up-seconds."
        )
        return "WarmedUp", "False", "WarmUpFailed", said
    done = found.pods > 0 and found.warm == found.pods
    said = f"{found.warm} of {found.pods} pods have answered the warm-up request."
    return "WarmedUp", "True" if done else "False", "Answered" if done else "Waiting", said


def _condition(
    facts: StatusFacts, known: Mapping[str, Any] | None, type_: str, status: str, reason: str, message: str
) -> Json:
    turned = known is None or known.get("status") != status
    since = facts.now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": type_,
        "status": status,
        "reason": re.sub("[^A-Za-z]", "", reason) or "Unknown",
        "message": message[:LONGEST_MESSAGE],
        "observedGeneration": facts.generation,
        "lastTransitionTime": since if known is None or turned else known.get("lastTransitionTime") or since,
    }


def mirror_status(cache: CacheFacts, *, digest: str = "") -> Json:
    """The status of a mirror; ``phase`` is what the launch article's columns print."""
    made = {**_counts(cache), "phase": cache.phase}
    return {**made, "resolvedDigest": digest} if digest else made


def weights_mirror_name(endpoint: str) -> str:
    """As the documents name them: ``example-model-cache`` for the endpoint ``example``."""
    return f"{endpoint}-model-cache"


def image_mirror_name(repository: str, instance_type: str, suffix: str) -> str:
    """As the documents name them: ``iic-``, the image's last part, the instance type, and a mark of both."""
    words = [repository.rpartition("/")[2], instance_type.split("|")[0] or "any"]
    plain = [re.sub("[^a-z0-9]+", "-", word.lower()).strip("-")[:60].strip("-") for word in words]
    return "-".join(("iic", *(word for word in plain if word), suffix))
