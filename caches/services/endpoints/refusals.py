"""What a cluster answered when it would not do something for an endpoint, and what a person does about it."""

from __future__ import annotations

import re

from caches.domain.endpoints.specs import GROUP
from controlplane.clusters.gateway import Conflict, Forbidden, GatewayError

BINDINGS = "Create the role bindings of Hearth in the endpoint's namespace (docs/tutorial.md, step 4)."
NO_ENSURE_IMAGE = "HEARTH_AGENT_IMAGE is not set, so that no pod can make its weights present."
WEB_ACCOUNT = "hearth-system:hearth-web"  # of an installation's pages
_ACCOUNT = re.compile(r'User "(?:system:serviceaccount:)?([^"]{1,200})" cannot')
KINDS = "Apply deploy/endpoints again: its role hearth-endpoint-kinds allows it."


def with_next_step(error: GatewayError) -> str:
    """What the cluster answered and, where its roles say no, which one is missing."""
    said = str(error)[:1000]
    if not isinstance(error, Forbidden):
        return said
    return f"{said.rstrip('.')}. {KINDS if f'/apis/{GROUP}/' in said else BINDINGS}"


def held_by_others(error: Conflict) -> str:
    """Who holds what a document would change; the cluster says it where it knows the fields."""
    said = str(error)[:1000]
    if error.managers and " holds " in said:
        return said
    return f"{', '.join(error.managers) or 'somebody else'} holds fields that this would change: {said}"


def create_namespace(namespace: str) -> str:
    """What to do where a namespace is not there."""
    return f"Create it (kubectl create namespace {namespace}), or name another one in the document."


def may_not_ask(error: Forbidden, namespace: str) -> str:
    """Whose account may not look at Deployments and Services of the namespace, and which role lets it. Pages may have
    an account of their own or share the worker's: the cluster says which one asked."""
    found = _ACCOUNT.search(str(error))
    account = found[1] if found is not None else WEB_ACCOUNT
    where = f"bound in {namespace} to {account}"
    if account == WEB_ACCOUNT:
        said = "Hearth's pages may not ask this; its worker does when the document is applied."
        return f"{said} The role hearth-web-deployments, {where}, lets them (docs/tutorial.md, step 4)."
    said = f"The account {account}, as which Hearth's pages ask, may not."
    return f"{said} The roles hearth-endpoints and hearth-services, {where}, let it (docs/tutorial.md, step 4)."
