"""What going back to a rollout would do: asked of the cluster before, and the way there where others hold fields."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from django.conf import settings

from caches.models import Rollout
from caches.services.endpoints import asking
from caches.services.endpoints.asking import Answer, Finding
from caches.services.endpoints.documents import rollback_document
from controlplane.clusters.models import ClusterType
from controlplane.clusters.registry import gateway_for
from controlplane.errors import Clash


@dataclass(frozen=True, slots=True)
class RollbackPreview:
    """``refused``: why it would not be applied, "" where it would or is not known; ``unknown`` says why it is not.
    ``fields`` (YAML) and ``command`` do it where others hold what would change, "" otherwise."""

    refused: str = ""
    unknown: str = ""
    fields: str = ""
    command: str = ""


def rollback_preview(*, rollout: Rollout) -> RollbackPreview:
    """Ask for DRY_RUN_SECONDS at most, and write nothing."""
    try:
        document = rollback_document(rollout)
    except Clash as error:
        return RollbackPreview(refused=f"{error.detail} {error.next_step}".strip())
    found = _asked(rollout, document)
    if found is None or found.answer is Answer.FINE:
        return RollbackPreview()
    if found.answer is Answer.UNKNOWN:
        return RollbackPreview(unknown=found.said)
    if not found.held_by:
        return RollbackPreview(refused=found.said)
    change = {"spec": merge_patch(rollout.endpoint.document, document["spec"])}
    metadata = document["metadata"]
    command = f"kubectl patch {rollout.endpoint.kind.lower()} {metadata['name']} --namespace {metadata['namespace']}"
    command += f" --type merge --patch {shlex.quote(json.dumps(change, ensure_ascii=False))}"
    return RollbackPreview(found.said, "", yaml.safe_dump(change, sort_keys=False, allow_unicode=True), command)


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What ``kubectl patch --type merge`` needs to make one of the other, and nothing that stays: null takes away."""
    found: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        had = before.get(name)
        if isinstance(had, Mapping) and isinstance(value, Mapping):
            if inner := merge_patch(had, value):
                found[name] = inner
        elif name not in before or had != value:
            found[name] = value
    return found


def _asked(rollout: Rollout, document: Mapping[str, Any]) -> Finding | None:
    cluster, seconds = rollout.endpoint.cluster, settings.DRY_RUN_SECONDS
    if seconds <= 0 or cluster.type == ClusterType.LOCAL:
        return None
    return asking.ask({"object": asking.object_question(gateway_for(cluster), document)}, seconds=seconds)["object"]
