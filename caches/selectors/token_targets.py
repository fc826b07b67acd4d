"""Whether the clusters and pools that a token is limited to exist. Asked by REST and by the Tokens page alike."""

from __future__ import annotations

from collections.abc import Sequence

from caches.selectors.nodes import clusters_list, pools_list
from controlplane.accounts import access
from controlplane.accounts.models import User
from controlplane.errors import FieldError, Invalid


def token_targets_check(*, person: User, targets: Sequence[str]) -> None:
    """Refuse what names no cluster or pool; those beyond the person's roles are token_create's to refuse."""
    clusters, pools = clusters_list().values_list, pools_list().values_list
    known = {*clusters("name", flat=True), *(".".join(names) for names in pools("cluster__name", "name"))}
    errors = [
        FieldError(f"targets.{index}", "unknown", f"There is no cluster or pool {target}.")
        for index, target in enumerate(targets)
        if target not in known and access.role_of(person, target) is not None
    ]
    if errors:
        detail = "The token was not created: " + " ".join(error.detail for error in errors)
        raise Invalid("token:user:invalid", detail, next_step="Name clusters, or pools as cluster.pool.", errors=errors)
