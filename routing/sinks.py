"""What routing does with what the watcher sees: publish when those that can serve are others than before."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime

from controlplane.celery import publish
from controlplane.clusters.documents import Consumer
from controlplane.clusters.endpoints import ObservedEndpoint
from controlplane.clusters.gateway import EventType, Kind, Observed, WatchEvent
from controlplane.serving.sinks import ENDPOINT_KINDS

MOST = 50_000  # uids that are remembered


class RoutingSink:
    """One in the watcher's process, after the one that writes the rows. Lost or wrong memory costs a look, no more."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], Hashable] = {}

    def relisted(self, cluster_id: str, kind: Kind, items: tuple[Observed, ...], at: datetime) -> None:
        """The complete set of one kind."""
        if kind in ENDPOINT_KINDS or kind is Kind.CONSUMER:
            self._tell({(cluster_id, kind.value): frozenset(facts for one in items if (facts := _facts(one)))})

    def changed(self, cluster_id: str, events: tuple[WatchEvent, ...], at: datetime) -> None:
        """Increments: those that say the same as before are passed over."""
        news: dict[tuple[str, str], Hashable] = {}
        for event in events:
            if facts := _facts(event.object):
                news[cluster_id, facts[0]] = (event.type is EventType.DELETED, facts)
        self._tell(news)

    def _tell(self, seen: dict[tuple[str, str], Hashable]) -> None:
        news = {key: facts for key, facts in seen.items() if self._facts.get(key) != facts}
        if news and publish("routing.publish"):
            self._facts = news if len(self._facts) > MOST else self._facts | news


def _facts(item: Observed | None) -> tuple[str, Hashable] | None:
    """The uid, and all that decides whether and where it gets requests; None for what gets none."""
    if isinstance(item, Consumer):
        return item.uid, (item.ready, item.address, item.node_uid)
    return (item.uid, item.generation) if isinstance(item, ObservedEndpoint) else None
