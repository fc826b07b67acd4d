"""Advice on one variant's routing: what windows and the recording say, put together for the rule that judges them."""

from __future__ import annotations

from datetime import datetime

from controlplane.errors import Transient
from controlplane.serving.models import Variant
from routing.domain.advising import Advice, Seen, advise
from routing.domain.failing import WAITED
from routing.domain.policies import RoutingPolicy
from routing.domain.recordings import RECORDED_MINUTES, Recording, overlap, shares_by_depth
from routing.selectors.by_policy import UnderPolicy
from routing.selectors.policies import policy_in_force
from routing.selectors.telemetry import Telemetry, telemetry
from routing.services.recordings import recording_read

SAMPLE = 500  # recorded requests that are looked at: a page is asked for again every few seconds


def variant_advise(
    *, variant: Variant, minutes: int, now: datetime, shown: Telemetry | None = None
) -> tuple[Advice, ...]:
    """``minutes`` is one of telemetry's SPANS; ``shown`` is its telemetry where somebody has it already."""
    policy, row = policy_in_force(variant)
    shown = shown or telemetry(variant=variant, minutes=minutes, now=now)
    version = row.version if row is not None else 0
    under = next((one for one in shown.policies if one.version == version), None)
    return advise(_seen(variant, policy, minutes, shown, under))


def _seen(variant: Variant, policy: RoutingPolicy, minutes: int, shown: Telemetry, under: UnderPolicy | None) -> Seen:
    some = _recorded(variant, policy, minutes).requests
    figures = shown.figures
    return Seen(
        policy=policy,
        minutes=minutes,
        instances=sum(one.there is not False for one in shown.shares),
        requests=shown.requests,
        under=under.requests if under is not None else 0,
        outcomes=under.outcomes if under is not None else {},
        told=figures.told,
        hit_rate=under.hit_rate if under is not None else None,
        caching_off=[one.name for one in shown.engines if one.caching is False],
        recorded=len(some),
        overlap=overlap(some) if some else None,
        shares=shares_by_depth(some) if some else (),
        waited=figures.queued,
        refused=sum(figures.refusals[one] for one in WAITED),
        lost=shown.lost,
    )


def _recorded(variant: Variant, policy: RoutingPolicy, minutes: int) -> Recording:
    """Nothing where nothing is recorded, or cannot be read: the page is more than this."""
    if not policy.extensions.record_keys:
        return Recording()
    try:
        return recording_read(variant=variant, minutes=min(minutes, RECORDED_MINUTES), most=SAMPLE)
    except Transient:
        return Recording()
