"""What a cluster answered when it would not do something for an endpoint, and what a person does about it."""

from __future__ import annotations

from caches.domain.endpoints.specs import GROUP
from controlplane.clusters.gateway import Conflict, Forbidden, GatewayError

BINDINGS = "Create the role bindings of Hearth in the endpoint's namespace (docs/tutorial.md, step 4)."
NO_ENSURE_IMAGE = "HEARTH_AGENT_IMAGE is not set, so that no pod can make its weights present."
KINDS = "Apply deploy/endpoints again: its role hearth-endpoint-kinds allows it."


def with_next_step(error: GatewayError) -> str:
    """What the cluster answered and, where its roles say no, which one is missing."""
    said = str(error)[:1000]
    if not isinstance(error, Forbidden):
        return said
    return f"{said.rstrip('.')}. {KINDS if f'/apis/{GROUP}/' in said else BINDINGS}"


def held_by_others(error: Conflict) -> str:
    """Who holds what a document would change; the cluster says it where it knows the fields."""
    said = str(error)[:1000]
    if error.managers and " holds " in said:
        return said
    return f"{', '.join(error.managers) or 'somebody else'} holds fields that this would change: {said}"
