"""Columns of the tables on the routing pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString

from controlplane.web import cells
from controlplane.web.tables import Column
from routing.domain.failing import Failed
from routing.domain.figures import QUANTILES
from routing.domain.policies import RoutingPolicy, RoutingStrategy, policy_differences, policy_document

TOO_FEW = "too few requests to tell"


def milliseconds(seconds: float | None) -> str:
    """Short of a second in milliseconds with three digits at most; unknown is said."""
    if seconds is None:
        return "unknown"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} µs"


def share_columns() -> list[Column]:
    return [
        Column("instance", "Instance", lambda s: s.name or s.uid, heading=True),
        Column("requests", "Requests", lambda s: s.requests, numeric=True),
        Column("share", "Share", lambda s: round(s.share, 4), lambda s: f"{100 * s.share:.1f} %", numeric=True),
        Column("low", "Fair from", lambda s: _rounded(s.low), lambda s: percent(s.low), numeric=True),
        Column("high", "to", lambda s: _rounded(s.high), lambda s: percent(s.high), numeric=True),
        Column("fair", "Fair", lambda s: s.fair, lambda s: fair_words(s.fair)),
        Column("there", "There", lambda s: s.there, lambda s: _there(s.there)),
    ]


def failed_columns() -> list[Column]:
    return [
        Column("words", "What became of them", lambda f: f.words, heading=True),
        Column("kind", "Kind", lambda f: f.kind, lambda f: cells.code(f.kind)),
        Column("count", "Count", lambda f: f.count, numeric=True),
        Column("lost", "For a reason of their own", lambda f: f.lost, _own_reason),
    ]


def _own_reason(failed: Failed) -> str:
    """An attempt is neither: what became of its request is counted elsewhere."""
    if failed.is_attempt:
        return "an attempt, not a request"
    return "no" if failed.lost else "yes"


def engine_columns() -> list[Column]:
    """What engines said of themselves: mean, and the most."""

    def both(gauge: Any, word: Any) -> str:
        return "unknown" if gauge.mean is None else f"{word(gauge.mean)}, most {word(gauge.greatest)}"

    def count(value: float) -> str:
        return f"{value:.1f}".removesuffix(".0")

    return [
        Column("instance", "Instance", lambda e: e.name, heading=True),
        Column("engine", "Engine", lambda e: e.words),
        Column("waiting", "Queue", lambda e: _rounded(e.waiting.mean), lambda e: both(e.waiting, count), numeric=True),
        Column(
            "running", "Running", lambda e: _rounded(e.running.mean), lambda e: both(e.running, count), numeric=True
        ),
        Column("usage", "Cache used", lambda e: _rounded(e.usage.mean), lambda e: both(e.usage, percent), numeric=True),
        Column(
            "utilisation", "Busy", lambda e: _rounded(e.utilisation), lambda e: percent(e.utilisation), numeric=True
        ),
        Column("hit_rate", "Own hit rate", lambda e: _rounded(e.hit_rate), lambda e: percent(e.hit_rate), numeric=True),
        Column("caching", "Prefix cache", lambda e: e.caching, lambda e: _on(e.caching)),
        Column("answered", "Answered", lambda e: _rounded(e.answered), lambda e: percent(e.answered), numeric=True),
    ]


def percent(part: float | None) -> str:
    return "unknown" if part is None else f"{100 * part:.1f} %"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _on(caching: bool | None) -> str:
    return "not said" if caching is None else "on" if caching else "off"


def fair_words(fair: bool | None) -> str:
    return TOO_FEW if fair is None else "yes" if fair else "no"


def _there(there: bool | None) -> str:
    return "unknown" if there is None else "yes" if there else "no"


def instance_columns() -> list[Column]:
    return [
        Column("name", "Instance", lambda i: i.name, heading=True),
        Column("state", "State", lambda i: i.standing.state, lambda i: cells.standing(i.standing)),
        Column("why", "Why", lambda i: i.standing.wait_message, shown=False),
        Column("unknown_since", "Unknown since", lambda i: i.standing.since, shown=False),
        Column("in_flight", "In flight", lambda i: i.in_flight,
               lambda i: "unknown" if i.in_flight is None else str(i.in_flight), numeric=True),
        Column("ejected_by", "Left out by", lambda i: i.ejected_by, lambda i: _ejected(i.ejected_by)),
        Column("node", "Node", lambda i: i.runs_on or "",
               lambda i: cells.link(i.runs_on or "", reverse("node", args=[i.node.id]) if i.node else "")),
        Column("address", "Address", lambda i: i.address),
        Column("digest", "Serves", lambda i: i.digest, lambda i: cells.digest(i.digest) if i.digest else None),
    ]  # fmt: skip


def _ejected(routers: int | None) -> str:
    """For its failures; membership is another thing."""
    if routers is None:
        return "unknown"
    return f"{routers} router{'s' if routers > 1 else ''}" if routers else "none"


def policy_columns() -> list[Column]:
    return [
        Column("version", "Version", lambda p: p.version, None, "version", numeric=True, heading=True),
        Column("strategy", "Strategy", lambda p: p.strategy, None, "strategy"),
        Column("parameters", "Parameters", _parameters),
        Column("set_by", "Set by", lambda p: p.set_by),
        Column("created_at", "When", lambda p: p.created_at, lambda p: cells.when(p.created_at), "created_at"),
    ]


def _parameters(row: Any) -> str:
    config = row.document.get("PrefixAwareRoutingConfig") or {}
    other = unusual(row.document)
    return ", ".join([*(f"{name} {value}" for name, value in config.items()), *(f"{one[0]} {one[1]}" for one in other)])


def unusual(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every extension of a ``policy_document`` that is set other than usual: its name, its value, the usual one."""
    usual = policy_document(RoutingPolicy(RoutingStrategy.RANDOM))
    other = policy_differences(usual, {**usual, "RoutingExtensions": document.get("RoutingExtensions")})
    found = []
    for one in other:
        name, _, values = one.partition(": ")
        before, _, after = values.rpartition(" → ")
        found.append((name, after, before))
    return found


def router_columns() -> list[Column]:
    return [
        Column("name", "Router", lambda r: f"{r.host or 'unknown'} {r.name}",
               lambda r: f"{r.host or 'unknown'} {r.name[:8]}", heading=True),
        Column("state", "State", lambda r: "Silent" if r.current is None else "Serves", _router_state),
        Column("address", "Address", lambda r: r.address),
        Column("config_version", "Configuration", lambda r: r.config_version,
               _configuration, numeric=True),
        Column("in_flight", "In flight", lambda r: r.in_flight,
               lambda r: "unknown" if r.in_flight is None else str(r.in_flight), numeric=True),
        Column("seen_at", "Heard of", lambda r: r.seen_at, lambda r: cells.when(r.seen_at)),
    ]  # fmt: skip


def spread_columns() -> list[Column]:
    """Time to first token of rows that have a ``ttft``, with how many answers it is of; a percentile of too few is
    empty in exports."""

    def quantile(name: str) -> Column:
        return Column(f"ttft_{name}", f"TTFT {name}", lambda p: getattr(p.ttft, name),
                      lambda p: _told(p.ttft, name), numeric=True)  # fmt: skip

    return [
        Column("ttft_count", "Answers", lambda p: p.ttft.count, numeric=True),
        *(quantile(name) for name in QUANTILES),
        Column("ttft_most", "TTFT most", lambda p: p.ttft.most, shown=False),
    ]


def _router_state(row: Any) -> SafeString:
    return cells.pill("Unknown", "Silent") if row.current is None else cells.pill("Ready", "Serves")


def _configuration(row: Any) -> str:
    if row.current is None:
        return f"{row.config_version} when it was heard of last"
    if row.current is not False:
        return str(row.config_version)
    behind = f"{row.published_version} is being published" if row.publishing else "not the newest"
    return f"{row.config_version}, {behind}"


def under_policy_columns() -> list[Column]:
    """What was measured under each version of the policy."""

    def version(row: Any) -> str:
        return "while it changed" if row.version is None else str(row.version)

    return [
        Column("version", "Version", lambda u: u.version, version, numeric=True, heading=True),
        Column("policy", "Policy", lambda u: u.policy),
        Column("set_at", "Set", lambda u: u.set_at, lambda u: cells.when(u.set_at)),
        Column("requests", "Requests", lambda u: u.requests, numeric=True),
        Column("hit_rate", "Hit rate", lambda u: u.hit_rate, lambda u: percent(u.hit_rate), numeric=True),
        *spread_columns(),
    ]


def window_columns() -> list[Column]:
    return [
        Column("at", "From", lambda p: p.at, lambda p: cells.when(p.at), heading=True),
        Column("requests", "Requests", lambda p: p.requests, numeric=True),
        Column("hit_rate", "Hit rate", lambda p: p.hit_rate,
               lambda p: "unknown" if p.hit_rate is None else f"{100 * p.hit_rate:.1f} %", numeric=True),
        *spread_columns(),
    ]  # fmt: skip


def _told(spread: Any, name: str) -> str:
    """A high percentile of a few samples is the greatest of them, and is called so."""
    value = getattr(spread, name)
    return f"most {milliseconds(spread.most)}" if spread.count and value is None else milliseconds(value)
