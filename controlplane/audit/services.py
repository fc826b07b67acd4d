"""Writing the audit trail, inside the transaction of the change it describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from controlplane.audit.models import AuditEvent, Via


@dataclass(frozen=True, slots=True)
class Actor:
    """On whose behalf code runs. ``name`` is a user name, a token as ``user/token-name``, or ``system``."""

    name: str
    via: Via
    request_id: str = ""


SYSTEM = Actor(name="system", via=Via.SYSTEM)


def audit_write(
    *,
    actor: Actor,
    action: str,
    object_type: str,
    object_id: str,
    object_name: str,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    message: str = "",
    operation_id: UUID | None = None,
) -> AuditEvent:
    """Append one event. ``before``/``after`` must be JSON-ready and free of secrets; None means did not exist."""
    return AuditEvent.objects.create(
        actor=actor.name,
        via=actor.via,
        action=action,
        object_type=object_type,
        object_id=object_id,
        object_name=object_name,
        before=dict(before) if before is not None else None,
        after=dict(after) if after is not None else None,
        message=message[:1000],
        request_id=actor.request_id,
        operation_id=operation_id,
    )
