"""Columns of what is explained and of what is replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane.web import cells
from controlplane.web.tables import Column
from routing.views.columns import TOO_FEW, fair_words, milliseconds

# Both columns come out of one model of an engine; where requests went is a fact, and stands in the second table.
HAPPENED, TRIED = "As it happened, computed", "As it would have been, computed"
COSTS = 4
UNTOLD = "not told: the model does not describe this traffic"


def _percent(part: float | None) -> str:
    return "unknown" if part is None else f"{100 * part:.1f} %"


def _number(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def decision_columns(request: HttpRequest) -> list[Column]:
    def named(row: Any) -> SafeString:
        query = request.GET.copy()
        query["decision"] = row.id
        return cells.link(row.id, f"?{query.urlencode()}")

    return [
        Column("id", "Decision", lambda d: d.id, named, heading=True),
        Column("at", "When", lambda d: d.at, lambda d: cells.when(d.at)),
        Column("outcome", "Outcome", lambda d: d.outcome),
        Column("instance", "Instance", lambda d: d.name),
        Column("key", "Begins with", lambda d: d.key, lambda d: cells.code(d.key) if d.key else None),
        Column("depth", "Hashed", lambda d: d.depth, None, numeric=True),
        Column("prompt_tokens", "Prompt", lambda d: d.prompt_tokens, lambda d: _number(d.prompt_tokens), numeric=True),
        Column("cached_tokens", "Cached", lambda d: d.cached_tokens, lambda d: _number(d.cached_tokens), numeric=True),
        Column("ttft", "TTFT", lambda d: d.ttft, lambda d: milliseconds(d.ttft), numeric=True),
    ]


def candidate_columns() -> list[Column]:
    return [
        Column("name", "Instance", lambda c: c.name, heading=True),
        Column("address", "Address", lambda c: c.address),
        Column("in_flight", "In flight", lambda c: c.in_flight, lambda c: _number(c.in_flight), numeric=True),
    ]


def boundary_columns() -> list[Column]:
    return [
        Column("depth", "Up to", lambda b: b.depth, numeric=True, heading=True),
        Column("digest", "Digest", lambda b: b.digest, lambda b: cells.code(b.digest)),
        Column("hot", "Everybody's", lambda b: b.hot, lambda b: "yes" if b.hot else "no"),
        Column("chosen", "The key", lambda b: b.chosen, lambda b: "yes" if b.chosen else ""),
    ]


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of both runs, as plain data and as words. ``widest``: with the largest cache that fits, else None."""

    name: str
    happened: float | None
    tried: float | None
    words: tuple[str, str]
    change: str
    widest: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, slots=True)
class ComparedShare:
    uid: str
    name: str
    happened: float | None
    tried: float | None
    fair: bool | None


def compared(result: Mapping[str, Any]) -> list[Compared]:
    """What happened beside what was tried: from the smallest cache that fits what was measured to the largest, where
    that makes a difference."""
    rows = _figures(result["happened"], result["tried"])
    if widest := result.get("widest"):
        rows = [_ranged(*both) for both in zip(rows, _figures(widest["happened"], widest["tried"]), strict=True)]
    if result.get("describes") is False:
        rows[:COSTS] = [replace(one, words=(one.words[0], UNTOLD)) for one in rows[:COSTS]]
    return rows


def _figures(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Compared]:
    """Hit rate and times, which are COSTS, spill and balance."""
    rows = [_part("Prefix hit rate", before["hit_rate"], after["hit_rate"])]
    rows += [_time(f"TTFT {name}", before["ttft"][name], after["ttft"][name]) for name in ("p50", "p95", "p99")]
    rows += [_part("Spilled", before["spill"], after["spill"])]
    rows += [_part("Saturated", before["saturated"], after["saturated"])]
    rows += [_part("Greatest share", _greatest(before), _greatest(after))]
    outside = (before["outside"], after["outside"])
    known = outside[0] is not None and outside[1] is not None
    change = f"{outside[1] - outside[0]:+d}" if known else ""
    return [*rows, Compared("Outside the fair band", *outside, (_outside(before), _outside(after)), change)]


def _ranged(one: Compared, other: Compared) -> Compared:
    def words(some: str, more: str) -> str:
        return some if some == more else f"{some} to {more}"

    both = words(one.words[0], other.words[0]), words(one.words[1], other.words[1])
    change = words(one.change, other.change)
    return replace(one, words=both, change=change, widest=(other.happened, other.tried))


def compared_columns() -> list[Column]:
    return [
        Column("figure", "Figure", lambda c: c.name, heading=True),
        Column("happened", HAPPENED, lambda c: c.happened, lambda c: c.words[0], numeric=True),
        Column("tried", TRIED, lambda c: c.tried, lambda c: c.words[1], numeric=True),
        Column("change", "Change", lambda c: c.change, numeric=True),
        Column("happened_widest", "As it happened, largest cache", lambda c: c.widest[0], shown=False),
        Column("tried_widest", "As it would have been, largest cache", lambda c: c.widest[1], shown=False),
    ]


def compared_shares(result: Mapping[str, Any]) -> list[ComparedShare]:
    """Every instance of either run."""
    before = {one["uid"]: one for one in result["happened"]["shares"]}
    after = {one["uid"]: one for one in result["tried"]["shares"]}
    found = [
        ComparedShare(
            uid,
            (after.get(uid) or before[uid])["name"],
            before[uid]["share"] if uid in before else None,
            after[uid]["share"] if uid in after else None,
            after[uid]["fair"] if uid in after else None,
        )
        for uid in before.keys() | after.keys()
    ]
    return sorted(found, key=lambda one: (one.name, one.uid))


def compared_share_columns() -> list[Column]:
    def share(part: float | None) -> str:
        return "not there" if part is None else f"{100 * part:.1f} %"

    return [
        Column("instance", "Instance", lambda s: s.name, heading=True),
        Column("happened", "As it happened", lambda s: s.happened, lambda s: share(s.happened), numeric=True),
        Column("tried", "As it would have been", lambda s: s.tried, lambda s: share(s.tried), numeric=True),
        Column("fair", "Fair then", lambda s: s.fair, lambda s: "" if s.tried is None else fair_words(s.fair)),
    ]


def _part(name: str, before: float | None, after: float | None) -> Compared:
    known = before is not None and after is not None
    change = f"{100 * ((after or 0) - (before or 0)):+.1f} points" if known else ""
    return Compared(name, before, after, (_none(before), _none(after)), change)


def _outside(column: Mapping[str, Any]) -> str:
    return TOO_FEW if column["outside"] is None else f"{column['outside']} of {len(column['shares'])}"


def _none(part: float | None) -> str:
    return "no key" if part is None else _percent(part)


def _time(name: str, before: float | None, after: float | None) -> Compared:
    change = f"{100 * (after / before - 1):+.0f} %" if before and after is not None else ""

    def words(seconds: float | None) -> str:
        return TOO_FEW if seconds is None else milliseconds(seconds)

    return Compared(name, before, after, (words(before), words(after)), change)


def _greatest(column: Mapping[str, Any]) -> float | None:
    return max((float(one["share"]) for one in column["shares"]), default=None)
