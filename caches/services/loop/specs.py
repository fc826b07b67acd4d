"""From a plan to the specs of its nodes, and by which hash a spec is known to have changed.

Nodes of a pool are told much the same: lines and their texts are made once and shared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caches.domain.plans import DesiredItem
from caches.domain.pool_view import PoolView
from caches.selectors.entry_rows import EntryRow
from controlplane.clusters.codec import dumps
from controlplane.clusters.documents import Action, ArtifactKind, ConnectionSpec, DesiredEntry, Limits, NodeCacheSpec
from controlplane.clusters.models import Node, NodePool

_Key = tuple[str, Action, int, int, int]  # what differs between lines: digest, action, order, verify and retry round


@dataclass(slots=True)
class SpecDesk:
    """Writes the specs of one round. ``secrets`` are the credentials by secret name that the connections need."""

    pool: NodePool
    view: PoolView
    connections: Mapping[str, ConnectionSpec]
    secrets: Mapping[str, Mapping[str, str]]
    _lines: dict[_Key, DesiredEntry] = field(default_factory=dict)
    _texts: dict[DesiredEntry, bytes] = field(default_factory=dict)
    _needed: dict[tuple[str, ...], bytes] = field(default_factory=dict)

    def spec(self, node: Node, items: Sequence[DesiredItem], rows: Mapping[str, EntryRow]) -> NodeCacheSpec:
        """What this node is to be told; ``rows`` are its entries by digest."""
        pool = self.pool
        # What brings an image is a holder of its own: no agent is told of it.
        trees = [item for item in items if self.view.artifacts[item.digest].kind is ArtifactKind.WEIGHTS]
        desired = tuple(self._line(item, rows.get(item.digest)) for item in trees)
        used = {line.connection for line in desired if line.action is Action.ENSURE}
        watermark = int(node.capacity_bytes * pool.high_watermark) if node.capacity_bytes is not None else None
        return NodeCacheSpec(
            node_name=node.name,
            node_uid=node.uid,
            pool=pool.name,
            desired=desired,
            connections=tuple(self.connections[name] for name in sorted(used) if name in self.connections),
            limits=Limits(
                max_downloads=pool.max_downloads_per_node,
                max_requests=pool.max_requests_per_node,
                bytes_per_second=pool.node_bytes_per_second,
                high_watermark_bytes=watermark,
                paused=self.view.policy.paused,
            ),
            status_interval_seconds=pool.status_interval_seconds,
            scrub_interval_seconds=pool.scrub_interval_seconds,
        )

    def spec_hash(self, spec: NodeCacheSpec) -> str:
        """Over the spec and the credentials it needs, so that a rotated secret is published like any other change."""
        found = hashlib.sha256(dumps(dataclasses.replace(spec, desired=(), connections=())).encode())
        for line in spec.desired:
            found.update(self._text(line))
        found.update(self._need(spec.connections))
        return found.hexdigest()

    def _line(self, item: DesiredItem, row: EntryRow | None) -> DesiredEntry:
        verify, retry = (row.verify_round, row.retry_round) if row is not None else (0, 0)
        key = (item.digest, item.action, item.order, verify, retry)
        known = self._lines.get(key)
        if known is None:
            facts = self.view.artifacts[item.digest]
            known = self._lines[key] = DesiredEntry(
                digest=item.digest,
                kind=facts.kind,
                action=item.action,
                connection=facts.connection,
                uri=facts.uri,
                size_bytes=facts.size_bytes,
                order=item.order,
                verify_round=verify,
                retry_round=retry,
                witness=facts.witness,
            )
        return known

    def _text(self, line: DesiredEntry) -> bytes:
        text = self._texts.get(line)
        if text is None:
            text = self._texts[line] = dumps(line).encode()
        return text

    def _need(self, connections: Sequence[ConnectionSpec]) -> bytes:
        names = tuple(connection.name for connection in connections)
        text = self._needed.get(names)
        if text is None:
            used = {
                c.secret_name: dict(self.secrets[c.secret_name]) for c in connections if c.secret_name in self.secrets
            }
            text = self._needed[names] = (dumps(tuple(connections)) + json.dumps(used, sort_keys=True)).encode()
        return text
