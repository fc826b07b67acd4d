"""How long what a rollout replaced is kept: the document says it at first, a person may say otherwise."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.domain.endpoints.options import LONGEST_HOLD_SECONDS
from caches.domain.rollouts import RolloutState, held_message, hold_ended_message
from caches.domain.text import second_text
from caches.models import Rollout
from caches.selectors.rollout_sides import kept_before
from controlplane.audit.services import Actor, audit_write
from controlplane.errors import Clash, FieldError, Invalid, Missing


def rollout_hold(*, actor: Actor, rollout_id: UUID, seconds: int) -> Rollout:
    """Keep the version before for so many seconds from now, whether that is longer or shorter than it was to be, and
    also where somebody ended that a moment ago, as long as nothing was let go.

    Clash while nothing is held or nothing of it is pinned; Invalid for a number that no document may say either.
    """
    if not 1 <= seconds <= LONGEST_HOLD_SECONDS:
        wrong = FieldError("seconds", "rollout:user:seconds", f"It is held for 1 to {LONGEST_HOLD_SECONDS} seconds.")
        raise Invalid(wrong.code, wrong.detail, next_step="Send another number.", errors=[wrong])
    with transaction.atomic():
        rows = Rollout.objects.select_for_update(no_key=True, of=("self",)).select_related("endpoint")
        row = rows.filter(pk=rollout_id).first()
        if row is None:
            raise Missing("rollout:user:not-found", f"There is no rollout {rollout_id}.")
        kept = kept_before(row)
        if row.state != RolloutState.HOLDING or not kept:
            raise Clash(
                "rollout:user:nothing-held",
                f"Rollout {row.number} of {row.endpoint.full_name} is {row.state}: {no_hold_words(row)}.",
                next_step="Read it again.",
            )
        now, before = timezone.now(), {"held_until": row.held_until.isoformat() if row.held_until else None}
        if row.hold_was_ended:
            before["ended_by"] = row.held_by
        row.held_until, row.held_at, row.held_by = now + timedelta(seconds=seconds), now, actor.name[:150]
        row.released_at, row.message = None, held_message(row.held_until, kept)
        row.save(update_fields=["held_until", "held_at", "held_by", "released_at", "message", "updated_at"])
        audit_write(
            actor=actor,
            action="rollout.hold",
            object_type="rollout",
            object_id=str(row.pk),
            object_name=f"{row.endpoint.full_name} {row.number}",
            before=before,
            after={"held_until": row.held_until.isoformat()},
        )
    return row


def hold_end(row: Rollout, actor: Actor) -> bool:
    """End the hold of a locked row now; False where a person did so before, whose word stays."""
    if row.hold_was_ended:
        return False
    now = timezone.now()
    row.held_until = row.held_at = row.released_at = now
    row.held_by, row.message = actor.name[:150], hold_ended_message(actor.name[:150], now)
    row.save(update_fields=["held_until", "held_at", "held_by", "released_at", "message", "updated_at"])
    return True


def no_hold_words(row: Rollout) -> str:
    """Why nothing is held for the way back, as a part of a sentence."""
    if row.held_until is None:
        return "it holds no version before"
    if row.state == RolloutState.HOLDING and not row.hold_was_ended:
        return "nothing of the version before is pinned"
    at = second_text(row.held_until)
    return f"{row.held_by} ended its hold at {at}" if row.hold_was_ended else f"its hold ended at {at}"
