"""What a pool may be, and which pool a node belongs to. Pure: no rows are read or written here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from controlplane.errors import FieldError

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
MOST_SOURCE_PATHS = 20
STORE = "hearth"  # the folder of a cache path that an agent keeps
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")

# A value's rule answers with what is wrong about it, or None.
Rule = Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """What decides about membership."""

    id: UUID
    name: str
    selector: Mapping[str, str]
    priority: int


def pools_of(
    labels: Mapping[str, str], pools: Iterable[PoolChoice], *, has: UUID | None = None
) -> tuple[PoolChoice, ...]:
    """Every pool that selects a node with these labels; the first one gets it: the highest priority, among equals the
    one that ``has`` it, since a new pool must not take nodes away by its name, then the first name."""
    matching = (p for p in pools if p.selector and all(labels.get(label) == want for label, want in p.selector.items()))
    return tuple(sorted(matching, key=lambda pool: (-pool.priority, pool.id != has, pool.name)))


def valid_name(name: object) -> bool:
    """Whether this can be a cluster's or pool's name: it appears in addresses as ``cluster.pool``."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _whole(least: int, most: int) -> Rule:
    def rule(value: Any) -> str | None:
        fine = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return None if fine else f"must be a whole number from {least} to {most}"

    return rule


def _number(least: float, most: float) -> Rule:
    def rule(value: Any) -> str | None:
        fine = isinstance(value, int | float) and not isinstance(value, bool)
        return None if fine and least <= value <= most else f"must be a number from {least:g} to {most:g}"

    return rule


def _optional(inner: Rule) -> Rule:
    return lambda value: None if value is None else inner(value)


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _selector(value: Any) -> str | None:
    if not isinstance(value, Mapping) or not value:
        return "must name at least one label and its value"
    for label, want in value.items():
        if not isinstance(label, str) or _LABEL.fullmatch(label) is None:
            return f"{label!r:.80} is no label"
        if not isinstance(want, str) or _VALUE.fullmatch(want) is None:
            return f"{want!r:.80} is no value of a label"
    return None


def _path(value: Any) -> str | None:
    parts = value.split("/") if isinstance(value, str) else []
    fine = len(parts) > 1 and parts[0] == "" and parts[1] and not {".", ".."} & {*parts} and len(value) <= 500
    fine = fine and value.isprintable()
    return None if fine else "must be an absolute folder other than /, without . and .."


def _cache_path(value: Any) -> str | None:
    if (problem := _path(value)) is not None:
        return problem
    # One folder has one spelling, by which pools, admission and consumers know it.
    return "must not end with /, nor hold //" if value.endswith("/") or "//" in value else None


def _paths(value: Any) -> str | None:
    if not isinstance(value, list | tuple) or len(value) > MOST_SOURCE_PATHS:
        return f"must be a list of at most {MOST_SOURCE_PATHS} folders"
    for path in value:
        if (problem := _path(path)) is not None:
            return f"{path!r:.80} {problem}"
        if path.endswith("/"):
            return f"{path!r:.80} must not end with /"
    return None if len({*value}) == len(value) else "must not name a folder twice"


FIELDS: Mapping[str, Rule] = {
    "selector": _selector,
    "priority": _whole(-1000, 1000),
    "cache_path": _cache_path,
    "source_paths": _paths,
    "high_watermark": _number(0.01, 1),
    "low_watermark": _number(0.01, 1),
    "max_downloads_per_node": _whole(1, 64),
    "max_downloads": _whole(1, 10_000),
    "max_requests_per_node": _whole(1, 1024),
    "node_bytes_per_second": _optional(_whole(1024, 2**50)),
    "evict_grace_seconds": _whole(0, 7 * 86400),
    "settle_seconds": _whole(0, 86400),
    "startup_taint": _flag,
    "paused": _flag,
    "status_interval_seconds": _number(0.2, 3600),
    "freshness_seconds": _number(1, 86400),
    "scrub_interval_seconds": _number(1, 366 * 86400),
}


def store_problem(cache_path: str, others: Mapping[str, str]) -> str | None:
    """What is wrong with this folder beside the cache paths of other pools, by name. Equal ones are in order, and so is
    one that lies in another outside of its store."""
    mine = cache_path.rstrip("/")
    for name, path in sorted(others.items()):
        theirs = path.rstrip("/")
        for inner, outer in ((mine, theirs), (theirs, mine)):
            if f"{inner}/".startswith(f"{outer}/{STORE}/"):
                return f"would have the cache path {inner} in {outer}/{STORE}, a store ({name} is the other pool)"
    return None


def pool_problems(given: Mapping[str, Any], merged: Mapping[str, Any]) -> Sequence[FieldError]:
    """What is wrong with the ``given`` fields by themselves, and with the pool as it would become (``merged``)."""
    problems = [FieldError(name, "unknown", "is no setting of a pool") for name in given if name not in FIELDS]
    for name, rule in FIELDS.items():
        if name in given and (problem := rule(given[name])) is not None:
            problems.append(FieldError(name, "invalid", problem))
    if problems:
        return problems
    if merged["low_watermark"] > merged["high_watermark"]:
        problems.append(FieldError("low_watermark", "invalid", "must not be above high_watermark"))
    store = merged["cache_path"].rstrip("/") + "/"
    for path in merged["source_paths"]:
        if store.startswith(f"{path}/") or f"{path}/".startswith(store):
            detail = f"{path} must neither hold the cache path nor lie in it: a store is no source of itself"
            problems.append(FieldError("source_paths", "invalid", detail))
    if merged["freshness_seconds"] < 2 * merged["status_interval_seconds"]:
        detail = "must be at least twice status_interval_seconds, or healthy nodes would look unknown"
        problems.append(FieldError("freshness_seconds", "invalid", detail))
    return problems
