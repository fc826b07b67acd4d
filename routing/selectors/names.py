"""What instances are called, also those that are gone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from caches.selectors.pod_names import pod_names
from controlplane.serving.models import Instance, Variant

SHOWN = 8  # of a uid that nobody can name


def names_of(variant: Variant, uids: Collection[str]) -> Mapping[str, str]:
    """A name for each that serves it, or did: the pod's or the engine's, else the beginning of its uid."""
    asked = set(uids)
    cluster = variant.endpoint.cluster_id
    names = dict(Instance.objects.filter(endpoint__cluster=cluster, uid__in=asked).values_list("uid", "name"))
    if missing := asked - names.keys():
        names |= pod_names(cluster, missing)
    return {uid: names.get(uid) or f"gone ({uid[:SHOWN]})" for uid in asked}
