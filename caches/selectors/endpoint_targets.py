"""Which nodes an endpoint's caches are for, and how far each of them is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from caches.domain.demand import alternatives, any_of, selects
from caches.domain.endpoints.specs import DEFAULT_HOST_PATH, INSTANCE_TYPE_LABEL, EndpointSource, EndpointSpec
from caches.domain.gating import Target
from caches.models import CacheEntry, Pin, PoolLoop
from caches.selectors.coverage_rows import counted_state
from caches.selectors.gate_counting import counted
from caches.selectors.pin_artifacts import gate_artifact
from controlplane.clusters.documents import EntryState, NodeState
from controlplane.clusters.models import Cluster, Node, NodePool

LABELLED_WITHIN = timedelta(seconds=15)  # after that something is wrong with labels, and nobody waits for them
LONGEST_SELECTOR = 253  # of a pin's, for one label


@dataclass(frozen=True, slots=True)
class CacheTargets:
    """``pools`` empty: nothing can be warmed, and ``why`` says so. ``host_path`` is the root that the pods mount, if
    ``is_root``: a folder of nodes that no pool keeps caches in is nobody's to ask for, and pods do without.

    A node of ``pools`` is a target when it has every label of ``selector``.
    """

    pools: tuple[NodePool, ...]
    selector: Mapping[str, str]
    host_path: str
    why: str = ""
    is_root: bool = True


def cache_targets(cluster: Cluster, spec: EndpointSpec) -> CacheTargets:
    """The pools of the cluster that have a node for this endpoint and the root that it asks for."""
    path = spec.cache.host_path
    selector, problem = _selector(spec)
    nodes = Node.objects.filter(cluster=cluster, lost_at__isnull=True, pool__isnull=False, pool__deleting_at=None)
    matching = [node for node in nodes.select_related("pool__cluster") if selects(selector, node.labels)]
    pools = {node.pool_id: node.pool for node in matching if node.pool is not None}
    roots = sorted({pool.cache_path for pool in pools.values()})
    chosen = path or (roots[0] if roots else DEFAULT_HOST_PATH)
    taken = tuple(pool for _, pool in sorted(pools.items(), key=lambda item: str(item[0])) if pool.cache_path == chosen)
    if any(len(value) > LONGEST_SELECTOR for value in selector.values()):
        problem = f"Caches are only warmed for values of a label that have {LONGEST_SELECTOR} characters together."
    if not problem and not pools:
        problem = f"No node of a pool matches the endpoint{_wanted(selector)}."
    elif not problem and not taken:
        problem = f"Its pools keep caches in {', '.join(roots)}, not in {chosen}."
    is_root = chosen == DEFAULT_HOST_PATH or NodePool.objects.filter(cluster=cluster, cache_path=chosen).exists()
    if not is_root:
        alone = "pods mount no folder of a node and fetch for themselves"
        if spec.source.type is EndpointSource.S3 and not spec.options.source_secret:
            alone += ", and need hearth.dev/source-secret for that where nothing else lets them read the bucket"
        problem = f"{problem} No pool keeps any in {chosen}: {alone}."
    return CacheTargets(() if problem else taken, selector, chosen, problem, is_root)


def _selector(spec: EndpointSpec) -> tuple[Mapping[str, str], str]:
    """The labels that every target has, and why they cannot be said where that is so."""
    if spec.pod.node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution"):
        simple = _equalities(spec.pod.node_affinity["requiredDuringSchedulingIgnoredDuringExecution"])
        if simple is None:
            return {}, (
                "Caches are only warmed for a nodeAffinity of one term whose expressions say In with values of labels. "
                "Pods start where it says, and fetch there."
            )
        return simple, ""
    return ({INSTANCE_TYPE_LABEL: any_of(spec.instance_types)} if spec.instance_types else {}), ""


def _wanted(selector: Mapping[str, str]) -> str:
    """Which labels none has, together: what somebody would have to look for on a node."""
    said = " and ".join(f"{name}={' or '.join(alternatives(values))}" for name, values in sorted(selector.items()))
    return f": none has {said}" if said else ""


def _equalities(required: Any) -> Mapping[str, str] | None:
    """``key In [value, …]`` of a single term as labels; None for anything else."""
    terms = required.get("nodeSelectorTerms") if isinstance(required, Mapping) else None
    if not isinstance(terms, list) or len(terms) != 1 or not isinstance(terms[0], Mapping):
        return None
    if set(terms[0]) - {"matchExpressions"}:
        return None
    found: dict[str, str] = {}
    for one in terms[0].get("matchExpressions") or ():
        values = one.get("values") if isinstance(one, Mapping) else None
        if not isinstance(values, list) or not values or one.get("operator") != "In" or one.get("key") in found:
            return None
        found[str(one.get("key"))] = any_of(str(value) for value in values)
    return found


def gate_targets(pin: Pin, *, now: datetime, labelled: bool = False) -> Sequence[Target]:
    """Every node that the pin is for, as its gate counts it, in the order of names.

    ``labelled``: a node that is warm counts once it has the label by which pods prefer it, or LABELLED_WITHIN later.
    Pods that came before the label could be put on a node that has nothing, and no room for it either.
    """
    artifact = gate_artifact(pin)
    pools = {pool.pk: pool for pool in pin.pools.all()}
    nodes = Node.objects.filter(pool__in=pools, lost_at__isnull=True).order_by("name")
    matching = [node for node in nodes if selects(pin.node_selector, node.labels)]
    if artifact is None or not matching:
        return ()
    entries = {entry.node_id: entry for entry in CacheEntry.objects.filter(node__in=matching, artifact=artifact)}
    refused = _refused(pin, pools, artifact.digest)
    targets = [
        counted(
            node.name,
            entries.get(node.pk),
            refused=node.uid in refused,
            unknown=node.pool_id is None or counted_state(node, pools[node.pool_id], now) is NodeState.UNKNOWN,
        )
        for node in matching
    ]
    if not labelled:
        return targets
    return [
        replace(target, state=EntryState.VERIFYING) if _waits_for_label(entries.get(node.pk), now) else target
        for node, target in zip(matching, targets, strict=True)
    ]


def _waits_for_label(entry: CacheEntry | None, now: datetime) -> bool:
    if entry is None or entry.state != EntryState.READY or entry.labeled_at is not None:
        return False
    return entry.ready_at is not None and now - entry.ready_at < LABELLED_WITHIN


def _refused(pin: Pin, pools: Mapping[Any, NodePool], digest: str) -> set[str]:
    loops = PoolLoop.objects.filter(pool__in=pools, plan__isnull=False, reconciled_at__gt=pin.created_at)
    plans, mine = loops.values_list("plan", flat=True), (str(pin.pk), digest)
    return {
        one["node_uid"]
        for plan in plans
        for one in (plan or {}).get("refusals", ())
        if (one["pin_id"], one["digest"]) == mine
    }
