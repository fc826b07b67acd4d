"""Which variant a page of routing is about."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest
from django.urls import reverse

from controlplane.errors import Missing
from controlplane.serving.models import Variant
from controlplane.web.people import readable
from routing.selectors.policies import variants_list


def variant_of(request: HttpRequest, endpoint_id: UUID) -> Variant:
    """The one that is asked for by ``?variant=``, otherwise ``default`` or the first."""
    rows = variants_list(targets=readable(request)).filter(endpoint_id=endpoint_id)
    by_name = {row.name: row for row in rows}
    wanted = request.GET.get("variant") or ("default" if "default" in by_name else min(by_name, default=""))
    if wanted not in by_name:
        raise Missing(
            "endpoint:user:not-found", f"There is no endpoint {endpoint_id}.", next_step="List the endpoints."
        )
    return by_name[wanted]


def crumbs_of(variant: Variant) -> list[tuple[str, str]]:
    """To the endpoint's routing."""
    pk = variant.endpoint_id
    return [
        ("Endpoints", reverse("endpoints")),
        (variant.endpoint.full_name, reverse("endpoint", args=[pk])),
        ("Routing", reverse("routing", args=[pk])),
    ]
