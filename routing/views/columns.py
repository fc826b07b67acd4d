"""Columns of the tables on the routing pages."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from controlplane.serving.models import STATIC_KIND
from controlplane.web import cells
from controlplane.web.tables import Column
from routing.selectors.telemetry import QUANTILES


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
        Column("fair", "Fair", lambda s: s.fair, lambda s: _fair(s.fair)),
        Column("there", "There", lambda s: s.there, lambda s: "yes" if s.there else "no"),
    ]


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


def _fair(fair: bool | None) -> str:
    return "too few requests to tell" if fair is None else "yes" if fair else "no"


def instance_columns() -> list[Column]:
    return [
        Column("name", "Instance", lambda i: i.name, heading=True),
        Column("state", "State", _state, lambda i: cells.pill(_state(i))),
        Column("in_flight", "In flight", lambda i: i.in_flight,
               lambda i: "unknown" if i.in_flight is None else str(i.in_flight), numeric=True),
        Column("ejected_by", "Left out by", lambda i: i.ejected_by, lambda i: _ejected(i.ejected_by)),
        Column("node", "Node", lambda i: i.node.name if i.node else "",
               lambda i: cells.link(i.node.name, reverse("node", args=[i.node.id])) if i.node else None),
        Column("address", "Address", lambda i: i.address),
        Column("digest", "Serves", lambda i: i.digest, lambda i: cells.digest(i.digest) if i.digest else None),
    ]  # fmt: skip


def _ejected(routers: int | None) -> str:
    """For its failures; membership is another thing."""
    if routers is None:
        return "unknown"
    return f"{routers} router{'s' if routers > 1 else ''}" if routers else "none"


def _state(row: Any) -> str:
    if row.endpoint.kind == STATIC_KIND and row.ejected_by is None:
        return "Unknown"  # routers alone ask it, and none was heard of
    return "Ready" if row.ready and row.address else "NotReady"


def policy_columns() -> list[Column]:
    return [
        Column("version", "Version", lambda p: p.version, None, "version", numeric=True, heading=True),
        Column("strategy", "Strategy", lambda p: p.strategy, None, "strategy"),
        Column("parameters", "Parameters", _parameters),
        Column("set_by", "Set by", lambda p: p.set_by),
        Column("created_at", "When", lambda p: p.created_at, lambda p: cells.when(p.created_at), "created_at"),
    ]


def _parameters(row: Any) -> str:
    config = row.document.get("PrefixAwareRoutingConfig")
    return (
        f"PrefixLength {config['PrefixLength']}, ConcurrencyThreshold {config['ConcurrencyThreshold']}"
        if config
        else ""
    )


def router_columns() -> list[Column]:
    return [
        Column("name", "Router", lambda r: f"{r.host or 'unknown'} {r.name}",
               lambda r: f"{r.host or 'unknown'} {r.name[:8]}", heading=True),
        Column("address", "Address", lambda r: r.address),
        Column("config_version", "Configuration", lambda r: r.config_version,
               lambda r: f"{r.config_version}{'' if r.current is not False else ', not the newest'}", numeric=True),
        Column("in_flight", "In flight", lambda r: r.in_flight,
               lambda r: "unknown" if r.in_flight is None else str(r.in_flight), numeric=True),
        Column("seen_at", "Heard of", lambda r: r.seen_at, lambda r: cells.when(r.seen_at)),
    ]  # fmt: skip


def window_columns() -> list[Column]:
    def quantile(name: str) -> Column:
        return Column(f"ttft_{name}", f"TTFT {name}", lambda p: getattr(p.ttft, name),
                      lambda p: _told(p.ttft, name), numeric=True)  # fmt: skip

    return [
        Column("at", "From", lambda p: p.at, lambda p: cells.when(p.at), heading=True),
        Column("requests", "Requests", lambda p: p.requests, numeric=True),
        Column("hit_rate", "Hit rate", lambda p: p.hit_rate,
               lambda p: "unknown" if p.hit_rate is None else f"{100 * p.hit_rate:.1f} %", numeric=True),
        *(quantile(name) for name in QUANTILES),
    ]  # fmt: skip


def _told(spread: Any, name: str) -> str:
    """A high percentile of a few samples is the greatest of them, and is called so."""
    if spread.count and spread.told(name) is None:
        return f"most {milliseconds(spread.most)}"
    return milliseconds(getattr(spread, name))
