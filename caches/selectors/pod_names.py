"""Names of pods that may be gone: a uid tells people nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from caches.models import Launch

MOST = 2000


def pod_names(cluster_id: UUID, uids: Collection[str]) -> Mapping[str, str]:
    """By uid, of those that were seen to start there; without the namespace."""
    rows = Launch.objects.filter(cluster=cluster_id, pod_uid__in=list(uids)[:MOST]).exclude(pod_name="")
    return {uid: name.rpartition("/")[2] for uid, name in rows.values_list("pod_uid", "pod_name")}
