"""Rollouts as rows: begun when a document asks for another version, taken step by step, opened and ended by people."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from caches.domain.endpoints.specs import EndpointSpec
from caches.domain.rollouts import BEFORE_SWITCH, FINAL, SERVED, RolloutFacts, RolloutState, Step, advance
from caches.models import ModelVersion, Rollout
from caches.models.rollouts import LIVE_STATES
from caches.services.endpoints.rollout_holds import hold_end, no_hold_words
from controlplane.audit.services import SYSTEM, Actor, audit_write
from controlplane.errors import Clash, Missing
from controlplane.serving.models import Endpoint

NEWER = "The endpoint's document asks for another version now."


def rollout_begin(*, endpoint: Endpoint, spec: EndpointSpec, version: ModelVersion | None = None) -> Rollout:
    """The rollout to what the document asks for: the one there is, or a new one that supersedes what is under way.

    ``version``: what the document means by the same words now, where that is not what its newest rollout is about.
    """
    newest = Rollout.objects.filter(endpoint=endpoint).order_by("-number").first()
    same = newest is not None and (newest.source, newest.image) == spec.served and version is None
    if newest is not None and same and newest.state not in _NOT_ITS_WAY:
        return newest
    with transaction.atomic():
        # One at a time for an endpoint; a second process finds what the first one made.
        Endpoint.objects.select_for_update(no_key=True).get(pk=endpoint.pk)
        again = Rollout.objects.filter(endpoint=endpoint).order_by("-number").first()
        if again is not None and again != newest:
            return again
        now = timezone.now()
        before = serving(endpoint)
        back = _within_reach(before, spec, version)
        for row in Rollout.objects.filter(endpoint=endpoint, state__in=LIVE_STATES):
            _end(row, RolloutState.SUPERSEDED, "NewerSpec", NEWER, now)
        if before is not None and before.state == RolloutState.HOLDING and back not in (None, before):
            message = "The endpoint went back to the version before."
            _end(before, RolloutState.ROLLED_BACK, "RolledBack", message, now)
        last = Rollout.objects.filter(endpoint=endpoint).aggregate(last=Max("number"))["last"]
        made = Rollout.objects.create(
            endpoint=endpoint,
            number=(last or 0) + 1,
            generation=endpoint.generation,
            source=spec.source.text,
            image=spec.image,
            connection=spec.options.connection,
            parts=served_parts(endpoint),
            state_since=now,
            **{"version": version, **_return(before, back, now)},
        )
        _audit(SYSTEM, "rollout.begin", made, None, {"source": made.source, "image": made.image})
    return made


_NOT_ITS_WAY = (RolloutState.SUPERSEDED, RolloutState.ROLLED_BACK)


def _within_reach(before: Rollout | None, spec: EndpointSpec, version: ModelVersion | None) -> Rollout | None:
    """The rollout that served what is asked for, where its pods may still be there: what serves, or what that one is
    about to replace, failed to replace, or replaced and holds. The same words read through another connection are
    another thing unless ``version`` says that the bytes are the same."""
    if before is None:
        return None
    near = [before] if before.state == RolloutState.DONE else [before, before.previous]
    for row in near:
        if row is None or row.state == RolloutState.FAILED or (row.source, row.image) != spec.served:
            continue
        if row.connection == spec.options.connection if version is None else _same_bytes(row.version, version):
            return row
    return None


def _same_bytes(one: ModelVersion | None, other: ModelVersion) -> bool:
    return one is not None and one.artifact_id is not None and one.artifact_id == other.artifact_id


def _return(before: Rollout | None, back: Rollout | None, now: datetime) -> dict[str, Any]:
    """What a new rollout takes over. Going back, it runs the very image of then, whatever its tag names by now, and
    its pods carry the number of then, so that none that is still there is replaced."""
    if before is None or back is None:
        return {"previous": what_served(before)}
    number = back.pods_number or back.number
    same = {"resolved_image": back.resolved_image, "pods_number": number, "pods_source": back.pods_source}
    if back != before:
        return {**same, "previous": before}
    # It serves: nothing has to be waited for.
    opened = {"state": RolloutState.SWITCHING, "opened_at": now, "version": before.version}
    return {**same, **opened, "previous": before.previous}


def served_parts(endpoint: Endpoint) -> dict[str, Any]:
    """The fields of the stored document that say what is served, and nothing that may hold a secret."""
    document = endpoint.document
    parts = {name: document[name] for name in ("modelSourceConfig", "model", "modelVersion") if name in document}
    image = document.get("worker", {}).get("image")
    return {**parts, "worker": {"image": image}} if image else parts


def serving(endpoint: Endpoint) -> Rollout | None:
    """What the Deployment is about: the last one whose gate opened."""
    opened = Rollout.objects.filter(endpoint=endpoint, opened_at__isnull=False)
    rows = opened.select_related("version__artifact", "previous__resolved_image", "previous__version").defer(
        "version__artifact__manifest"
    )
    return rows.order_by("-number").first()


def what_served(opened: Rollout | None) -> Rollout | None:
    """``opened`` or the nearest one before it that took over, or has a pod that serves now. One that never served is
    nothing that anybody would go back to: it holds no room on nodes, and those before it still serve."""
    while opened is not None and not _has_served(opened):
        opened = opened.previous
    return opened


def _has_served(row: Rollout) -> bool:
    if row.state in SERVED or row.held_until is not None:
        return True
    digest = row.version.artifact.digest if row.version is not None and row.version.artifact is not None else ""
    return row.endpoint.instances.filter(ready=True, leaving=False, digest__in=("", digest)).exists()


def rollout_step(*, rollout: Rollout, facts: RolloutFacts) -> Rollout:
    """Take one step, if the rollout still is where the facts saw it; then it is read again."""
    step = advance(facts)
    if facts.state in FINAL and not step.message:
        return rollout
    changes = _changes(rollout, step, facts.now)
    if changes:
        with transaction.atomic():
            # Somebody may have said meanwhile that what it replaced is held for longer.
            rows = Rollout.objects.filter(pk=rollout.pk, state=facts.state, held_until=facts.held_until)
            won = rows.update(**changes, updated_at=facts.now)
            if won and step.state is not facts.state:
                before, after = {"state": str(facts.state)}, {"state": str(step.state), "message": step.message}
                _audit(SYSTEM, f"rollout.{step.state.lower()}", rollout, before, after)
        rollout.refresh_from_db()
    return rollout


def _changes(rollout: Rollout, step: Step, now: datetime) -> dict[str, Any]:
    message = step.message[:1000]
    changes: dict[str, Any] = {}
    if (rollout.reason, rollout.message) != (step.reason, message):
        changes = {"reason": step.reason, "message": message}
    if rollout.state == step.state:
        return changes
    changes |= {"state": step.state, "state_since": now, "reason": step.reason, "message": message}
    if step.state is RolloutState.WARMING and rollout.warming_at is None:
        changes["warming_at"] = now
    if rollout.state in BEFORE_SWITCH and step.state is RolloutState.SWITCHING:
        changes["opened_at"] = now
        if rollout.pods_number is None:
            # What waited for its pods when this one began may have served since.
            changes["previous"] = what_served(serving(rollout.endpoint))
    if step.state is RolloutState.HOLDING:
        # What opened the gate ends no hold.
        changes |= {"held_until": step.held_until, "released_at": None}
    if step.state in FINAL:
        changes["ended_at"] = now
    return changes


def rollout_release(*, actor: Actor, rollout_id: UUID, holding: bool | None = None) -> Rollout:
    """Open the gate of one that waits, or end the hold of the version before. Twice is once; Clash when it ended, and
    where ``holding`` says which of the two was meant and it is not that one any more."""
    with transaction.atomic():
        row = _locked(rollout_id)
        if row.state in FINAL or row.state == RolloutState.SWITCHING:
            why = no_hold_words(row) if row.hold_was_ended else "it waits for nobody"
            raise Clash(
                "rollout:user:nothing-to-release",
                f"Rollout {row.number} of {row.endpoint.full_name} is {row.state}: {why}.",
                next_step="Read it again.",
            )
        if holding is not None and holding != (row.state == RolloutState.HOLDING):
            raise Clash(
                "rollout:user:moved-on",
                f"Rollout {row.number} of {row.endpoint.full_name} is {row.state} by now.",
                next_step="Look at it again, and decide then.",
            )
        if row.state == RolloutState.HOLDING:
            released = hold_end(row, actor)
        elif released := row.released_at is None:
            row.released_at, row.released_by = timezone.now(), actor.name[:150]
            row.save(update_fields=["released_at", "released_by", "updated_at"])
        if released:
            _audit(actor, "rollout.release", row, {"state": row.state}, {"released": True})
    return row


def endpoint_rollouts_end(*, endpoint: Endpoint, message: str) -> None:
    """Nothing goes on for an endpoint that goes away."""
    now = timezone.now()
    for row in Rollout.objects.filter(endpoint=endpoint).exclude(state__in=FINAL):
        _end(row, RolloutState.SUPERSEDED, "Deleted", message, now)


def _end(row: Rollout, state: RolloutState, reason: str, message: str, now: datetime) -> None:
    Rollout.objects.filter(pk=row.pk, state=row.state).update(
        state=state, state_since=now, ended_at=now, reason=reason, message=message, updated_at=now
    )


def _locked(rollout_id: UUID) -> Rollout:
    rows = Rollout.objects.select_for_update(no_key=True, of=("self",)).select_related("endpoint__cluster")
    row = rows.filter(pk=rollout_id).first()
    if row is None:
        raise Missing("rollout:user:not-found", f"There is no rollout {rollout_id}.")
    return row


def _audit(actor: Actor, action: str, row: Rollout, before: dict[str, Any] | None, after: dict[str, Any]) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="rollout",
        object_id=str(row.pk),
        object_name=f"{row.endpoint.full_name} {row.number}",
        before=before,
        after=after,
    )
