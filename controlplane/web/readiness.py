"""What must work for Hearth to do its job; apps add what only they can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
import redis
from django.conf import settings
from django.db import connection
from django.db.models import Count, Min, Q
from django.utils import timezone
from prometheus_client import CollectorRegistry

from controlplane.clusters.models import Cluster, Node
from controlplane.web.formats import iso_text

# Hearth's own: the default registry also holds figures of one web process, which say nothing about the program.
METRICS = CollectorRegistry(auto_describe=False)
WATCHER_SILENT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Finding:
    """``detail`` says what is wrong, or what was seen when nothing is."""

    ok: bool
    detail: str


Check = Callable[[], Finding]
_checks: dict[str, Check] = {}


def register_check(name: str, check: Check) -> None:
    """Called from AppConfig.ready(); the last registration of a name wins."""
    _checks[name] = check


def findings() -> dict[str, Finding]:
    """Every check by name. Without a database nothing else can be told, so nothing else is asked."""
    found = {"database": _database()}
    if not found["database"].ok:
        return found | {"broker": _broker()}
    found["broker"] = _broker()
    found["watcher"] = _watcher()
    for name, check in _checks.items():
        found[name] = check()
    return found


def news() -> dict[str, Any]:
    """How fresh what pages show is: the oldest contact with a cluster, and how many of the live nodes of pools report;
    of ``unheard`` ones nobody has ever heard."""
    clusters = Cluster.objects.aggregate(count=Count("pk"), seen=Count("observed_at"), oldest=Min("observed_at"))
    live = Q(lost_at__isnull=True, pool__isnull=False)
    reporting = live & Q(reported_at__gte=timezone.now() - WATCHER_SILENT)
    nodes = Node.objects.aggregate(
        live=Count("pk", filter=live),
        reporting=Count("pk", filter=reporting),
        unheard=Count("pk", filter=live & Q(reported_at=None)),
    )
    everyone = clusters["seen"] == clusters["count"]
    return {
        "clusters": clusters["count"],
        "contacted_at": iso_text(clusters["oldest"]) or None if everyone else None,
        "nodes": nodes["live"],
        "reporting": nodes["reporting"],
        "unheard": nodes["unheard"],
    }


def _database() -> Finding:
    # Not through the pool, which would wait for a connection longer than any probe does.
    parameters = {**connection.get_connection_params(), "connect_timeout": 2}
    try:
        psycopg.connect(**parameters).close()
    except psycopg.Error as error:
        return Finding(False, f"PostgreSQL does not answer: {type(error).__name__}.")
    return Finding(True, "PostgreSQL answers.")


def _broker() -> Finding:
    client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1)
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        return Finding(False, f"Valkey does not answer: {type(error).__name__}.")
    finally:
        client.close()
    return Finding(True, "Valkey answers.")


def _watcher() -> Finding:
    now = timezone.now()
    clusters = Cluster.objects.values_list("name", "observed_at", "error")
    silent = [
        f"{name} was {_seen(now, at)}" + (f" ({error})" if error else "")
        for name, at, error in clusters
        if at is None or now - at > WATCHER_SILENT
    ]
    if silent:
        return Finding(False, "; ".join(silent) + ". Is the watcher running?")
    watched = "1 cluster is" if len(clusters) == 1 else f"{len(clusters)} clusters are"
    return Finding(True, f"{watched} watched.")


def _seen(now: datetime, at: datetime | None) -> str:
    return "never seen" if at is None else f"last seen {int((now - at).total_seconds())} seconds ago"
