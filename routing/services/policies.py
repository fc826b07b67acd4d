"""Setting a variant's policy: a new version, never a changed one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from controlplane.audit.services import SYSTEM, Actor, audit_write
from controlplane.clusters.local.serving import RECORD_KEYS_ANNOTATION
from controlplane.clusters.models import ClusterType
from controlplane.errors import FieldError, Invalid, Missing, Stale
from controlplane.serving.models import Variant
from controlplane.serving.services import DEFAULT_VARIANT
from routing.domain.policies import (
    PolicyRefused,
    RoutingStrategy,
    policy_differences,
    policy_document,
    read_policy,
)
from routing.domain.policies import RoutingPolicy as Policy
from routing.models import RoutingPolicy
from routing.selectors.policies import policy_of
from routing.services.publishing import publish_soon
from routing.services.recordings import recording_forget

READS = (
    "Routers read the beginning of each request to place it. No text of it is stored, logged or told to anybody else."
)
RECORDS = (
    "Keyed digests of beginnings, sizes and times of requests are kept for an hour, so that other strategies can be "
    "tried on them. Their text is not."
)
ASKED_FOR = "The endpoint was made with the wish that its keys are recorded, so this was set when it was first seen."


@dataclass(frozen=True, slots=True)
class PolicyPreview:
    """What setting it would do: nothing when ``before`` and ``after`` are the same."""

    before: Policy
    after: Policy
    notes: tuple[str, ...]

    @property
    def changes(self) -> bool:
        return policy_document(self.before) != policy_document(self.after)

    @property
    def differences(self) -> list[str]:
        """Each parameter that would be another one, as ``name: old → new``."""
        return policy_differences(policy_document(self.before), policy_document(self.after))


def policy_read(document: Mapping[str, Any]) -> Policy:
    """Raises errors.Invalid with everything that is wrong."""
    try:
        return read_policy(document)
    except PolicyRefused as refused:
        errors = [FieldError(one.field, one.code, one.detail) for one in refused.problems]
        raise Invalid(
            "routing:policy:refused",
            " ".join(f"{one.field}: {one.detail}." for one in errors)[:900],
            next_step="Correct the fields named in errors.",
            errors=errors,
        ) from None


def policy_preview(*, variant: Variant, document: Mapping[str, Any]) -> PolicyPreview:
    """What policy_set() would change. Raises errors.Invalid."""
    after = policy_read(document)
    row = RoutingPolicy.objects.filter(variant=variant).order_by("-version").first()
    return PolicyPreview(policy_of(variant.endpoint, row), after, notes_on(after))


def policy_set(
    *,
    actor: Actor,
    variant_id: UUID,
    document: Mapping[str, Any],
    if_updated_at: datetime | None = None,
    if_first: str = "",
) -> RoutingPolicy:
    """Put a policy in force in every router. The same again makes no new version. ``if_first``: only where nobody has
    set one, for the reason that it says.

    Raises errors.Invalid; Stale when another version is in force than the one of ``if_updated_at``.
    """
    policy = policy_read(document)
    with transaction.atomic():
        variant = _locked(variant_id)
        newest = RoutingPolicy.objects.filter(variant=variant).order_by("-version").first()
        if if_updated_at is not None and (newest is None or newest.updated_at != if_updated_at):
            raise Stale(
                "request:user:stale",
                "Somebody changed the policy since you read it.",
                next_step="Read it again, look at what changed, and send the change with the new ETag.",
            )
        if if_first and newest is not None:
            return newest
        before, after = policy_of(variant.endpoint, newest), policy_document(policy)
        if newest is not None and policy_document(before) == after:
            return newest
        made = RoutingPolicy.objects.create(
            variant=variant,
            version=newest.version + 1 if newest is not None else 1,
            strategy=policy.strategy.value,
            document=after,
            notes=[*([if_first] if if_first else ()), *notes_on(policy)],
            set_by=str(actor.name)[:150],
        )
        audit_write(
            actor=actor,
            action="routing.policy",
            object_type="endpoint",
            object_id=str(variant.endpoint_id),
            object_name=f"{variant.endpoint.full_name} {variant.name}",
            before={"version": newest.version if newest is not None else 0, **policy_document(before)},
            after={"version": made.version, **after},
            message=" ".join([*([if_first] if if_first else ()), *_news(before, policy)]),
        )
        publish_soon()
        if before.extensions.record_keys and not policy.extensions.record_keys:
            transaction.on_commit(lambda: recording_forget(variant=variant), robust=True)
    return made


def recordings_begin() -> int:
    """Turn recording on for endpoints of the local fleet that were made with that wish, where nobody has set a policy:
    once, and as audited as anybody's. How many."""
    rows = Variant.objects.filter(
        name=DEFAULT_VARIANT,
        endpoint__cluster__type=ClusterType.LOCAL,
        endpoint__annotations__contains={RECORD_KEYS_ANNOTATION: "true"},
        endpoint__gone_at__isnull=True,
        routing_policies__isnull=True,
    ).select_related("endpoint")
    found = list(rows)
    for variant in found:
        document = policy_document(policy_of(variant.endpoint, None))
        document["RoutingExtensions"]["record_keys"] = True
        policy_set(actor=SYSTEM, variant_id=variant.pk, document=document, if_first=ASKED_FOR)
    return len(found)


def reads_requests(policy: Policy) -> bool:
    """Whether routers look into bodies to find a key."""
    return policy.strategy is RoutingStrategy.PREFIX_AWARE and policy.extensions.inspect_bodies


def notes_on(policy: Policy) -> tuple[str, ...]:
    """What whoever sets it should know."""
    return (*policy.notes, *_looks(policy))


def _looks(policy: Policy) -> tuple[str, ...]:
    reads, records = reads_requests(policy), policy.extensions.record_keys
    return (*((READS,) if reads else ()), *((RECORDS,) if records else ()))


def _news(before: Policy, after: Policy) -> list[str]:
    said = _looks(before)
    return [one for one in _looks(after) if one not in said]


def _locked(variant_id: UUID) -> Variant:
    rows = Variant.objects.select_for_update(no_key=True, of=("self",)).select_related("endpoint__cluster")
    variant = rows.filter(pk=variant_id).first()
    if variant is None:
        raise Missing("routing:variant:not-found", f"There is no variant {variant_id}.")
    return variant
