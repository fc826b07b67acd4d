"""Which instances a variant had at which time, as routers were told: a share is fair only for the time it was there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import JSONField
from django.db.models.expressions import RawSQL

from controlplane.serving.models import Variant
from routing.models import Configuration, RoutedEndpoint

MOST = 40  # changes of membership that are looked at; what was before the oldest of them counts as that one
Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Requests:
    """``count`` of them came from ``begun`` until ``ended``, nobody knows when exactly: evenly, it is taken."""

    begun: datetime
    ended: datetime
    count: int


def expected_shares(variant: Variant, since: datetime, requests: Sequence[Requests], *, until: datetime) -> Weights:
    """The part of ``requests`` that each instance would have got, had every one of them been spread evenly (by weight)
    over those that were there when it came; one that came in the middle of a time had half of it. Empty without any."""
    history = _history(variant, since)
    due: dict[str, float] = defaultdict(float)
    for some in requests:
        for part, there in _present(history, some.begun, min(some.ended, until)):
            whole = sum(there.values())
            for uid, weight in there.items():
                due[uid] += some.count * part * weight / whole if whole else 0.0
    total = sum(due.values())
    return {uid: part / total for uid, part in due.items()} if total else {}


def _present(
    history: Sequence[tuple[datetime, Weights]], begun: datetime, ended: datetime
) -> Iterator[tuple[float, Weights]]:
    """Who was there in which part of a time; before anything is known, whoever is known first."""
    length = (ended - begun).total_seconds()
    for number, (at, there) in enumerate(history):
        first = begun if number == 0 else max(begun, at)
        last = min(ended, history[number + 1][0]) if number + 1 < len(history) else ended
        if length <= 0:
            if first <= begun and (number + 1 == len(history) or begun < history[number + 1][0]):
                yield 1.0, there
        elif last > first:
            yield (last - first).total_seconds() / length, there


def _history(variant: Variant, since: datetime) -> list[tuple[datetime, Weights]]:
    """From when on which instances with which weight, oldest first."""
    name = RoutedEndpoint.objects.filter(endpoint=variant.endpoint_id).values_list("name", flat=True).first()
    if name is None:
        return []
    rows = Configuration.objects.order_by("-version")
    before = rows.filter(created_at__lte=since).values_list("pk", flat=True).first()
    moved = [
        pk
        for pk, changes in rows.filter(created_at__gt=since).values_list("pk", "changes")
        if any(_moves(one, name, variant.name) for one in changes)
    ]
    wanted = [*moved[:MOST], *([before] if before is not None else [])]
    if not wanted and (only := rows.values_list("pk", flat=True).last()) is not None:
        wanted = [only]
    found = Configuration.objects.filter(pk__in=wanted).order_by("version").annotate(of=_of_endpoint(name))
    return [(at, _weights(of, variant.name)) for at, of in found.values_list("created_at", "of")]


def _moves(change: Mapping[str, Any], endpoint: str, variant: str) -> bool:
    of = (change.get("endpoint"), change.get("variant"))
    return of == (endpoint, variant) and change.get("kind") in ("Membership", "Endpoint")


def _of_endpoint(name: str) -> RawSQL:
    """Its part of the document alone: a large fleet's is megabytes."""
    path = (
        "jsonb_path_query_first(document, '$.endpoints[*] ? (@.name == $name)', jsonb_build_object('name', %s::text))"
    )
    return RawSQL(path, [name], output_field=JSONField())


def _weights(endpoint: Mapping[str, Any] | None, variant: str) -> Weights:
    for of in (endpoint or {}).get("variants", ()):
        if of["name"] == variant:
            return {each["id"]: float(each.get("weight", 1.0)) for each in of["instances"]}
    return {}
