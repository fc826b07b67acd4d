"""Which pods of an endpoint do not run what they should, as the watcher saw them last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils import timezone

from caches.models import ModelVersion
from controlplane.serving.models import Endpoint, Instance
from controlplane.serving.standing import NODE_NOT_READY, node_trouble


@dataclass(frozen=True, slots=True)
class Waits:
    """``reason`` is a WaitReason, ``sentence`` names one pod and says why it waits; both "" where none does."""

    reason: str = ""
    sentence: str = ""


NOBODY = Waits()


@dataclass(frozen=True, slots=True)
class Waiting:
    """``new``: of the pods that a rollout makes; ``some``: of any."""

    new: Waits = NOBODY
    some: Waits = NOBODY


def pods_waiting(endpoint: Endpoint, version: ModelVersion | None) -> Waiting:
    """One of those that wait, of ``version`` if there is any; those that are on their way out wait for nothing."""
    rows = _that_wait(endpoint)
    digest = version.artifact.digest if version is not None and version.artifact is not None else ""
    found = sorted(rows, key=lambda row: (row.digest != digest, row.name))
    return Waiting(_waits([row for row in found if not digest or row.digest in ("", digest)]), _waits(found))


def _that_wait(endpoint: Endpoint) -> list[Instance]:
    """Also those of which nothing is heard because of their node; the kubelet says nothing of why there."""
    now, found = timezone.now(), []
    for row in endpoint.instances.filter(leaving=False, ready=False).select_related("node"):
        if trouble := node_trouble(row.node, now=now):
            row.wait_reason, row.wait_message = NODE_NOT_READY, trouble
        if row.wait_reason:
            found.append(row)
    return found


def _waits(found: Sequence[Instance]) -> Waits:
    if not found:
        return NOBODY
    one, others = found[0], len(found) - 1
    more = f" ({others} more {'waits' if others == 1 else 'wait'})" if others else ""
    words = one.wait_message.rstrip(".") or one.wait_reason
    return Waits(one.wait_reason, f"Pod {one.name} waits{more}: {words}.")
