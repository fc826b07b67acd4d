"""What was measured under each version of a variant's policy: whether a change did any good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.serving.models import Variant
from routing.domain.figures import Figures
from routing.domain.policies import policy_document
from routing.domain.publishing import named_policy
from routing.models import RoutingPolicy
from routing.selectors.policies import policy_of
from routing.selectors.spreads import Spread, spread

IN_FORCE_WITHIN = timedelta(seconds=2)  # of being set, in every router
Windows = Sequence[tuple[datetime, Figures]]


@dataclass(frozen=True, slots=True)
class UnderPolicy:
    """``version`` 0 before the first that somebody set here; None for windows in which it changed, which say nothing of
    either: they have no ``policy`` (strategy and numbers). ``set_at`` None of both."""

    version: int | None
    policy: str
    set_at: datetime | None
    requests: int
    hit_rate: float | None
    ttft: Spread
    outcomes: Mapping[str, int]


def under_policies(variant: Variant, windows: Windows, seconds: int) -> tuple[UnderPolicy, ...]:
    """Of ``windows`` (their beginnings) of ``seconds`` each, the newest version first; those aside that had no
    requests."""
    if not windows:
        return ()
    versions = list(
        RoutingPolicy.objects.filter(variant=variant)
        .order_by("version")
        .values_list("version", "created_at", "document")
    )
    sums: dict[int | None, Figures] = {}
    for begun, figures in windows:
        ended = begun + timedelta(seconds=seconds)
        sums.setdefault(_version_in(versions, begun, ended), Figures()).merge(figures)
    known: dict[int | None, tuple[str, datetime | None]] = {
        None: ("", None),
        0: (named_policy(policy_document(policy_of(variant.endpoint, None))), None),
        **{version: (named_policy(document), at) for version, at, document in versions},
    }
    return tuple(
        UnderPolicy(version, *known[version], found.requests, found.hit_rate, spread(found.all_ttft), found.outcomes)
        for version, found in sorted(sums.items(), key=lambda one: -1 if one[0] is None else one[0], reverse=True)
        if found.requests
    )


def _version_in(versions: Sequence[tuple[int, datetime, object]], begun: datetime, ended: datetime) -> int | None:
    """The one that was in force all the time."""
    if any(at < ended and begun < at + IN_FORCE_WITHIN for _, at, _ in versions):
        return None
    return max((version for version, at, _ in versions if at < begun), default=0)
