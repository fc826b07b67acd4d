"""What the API classes of routing share: the caller's reach, objects with their links."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request

from controlplane.accounts.permissions import readable_targets
from controlplane.errors import FieldError, Invalid
from controlplane.rest.views import HearthView, RowsView
from controlplane.serving.models import Endpoint, Instance
from routing.models import RouterProcess, RoutingPolicy

ROOT = "/api/v1/"
_VARIANT = re.compile(r"[A-Za-z0-9._-]{1,63}")

# Row → (path below ROOT, page).
_PATHS: Mapping[type[Any], Callable[[Any], tuple[str, str]]] = {
    RoutingPolicy: lambda row: (f"routing-policies/{row.pk}", f"/endpoints/{row.variant.endpoint_id}/routing"),
    Instance: lambda row: (f"instances/{row.pk}", f"/endpoints/{row.endpoint_id}/routing"),
    RouterProcess: lambda row: (f"routers/{row.pk}", "/endpoints"),
    Endpoint: lambda row: (f"static-endpoints/{row.pk}", f"/endpoints/{row.pk}/routing"),
}


class RoutingView(HearthView):
    """A HearthView that knows what of the fleet its caller may see."""

    @property
    def targets(self) -> frozenset[str] | None:
        """None: everything."""
        return readable_targets(self.request)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        name = kwargs.get("variant")
        if isinstance(name, str) and not _VARIANT.fullmatch(name):
            detail = "A variant's name has letters A-Z, digits and . _ -, at most 63 of them."
            raise Invalid(
                "request:user:name",
                detail,
                next_step="Correct the name in the address.",
                errors=[FieldError("variant", "invalid", detail)],
            )


class RoutingRowsView(RoutingView, RowsView):
    """A RoutingView whose GET is a list."""


class LinkPair(serializers.Serializer[Any]):
    self = serializers.URLField()
    ui = serializers.URLField(help_text="the page that a person would open")


@extend_schema_field(LinkPair)
class LinkPairField(serializers.Field[Any, Any, Any, Any]):
    columns = ("self", "ui")  # of its CSV form

    def __init__(self) -> None:
        super().__init__(source="*", read_only=True)

    def to_representation(self, value: Any) -> dict[str, str]:
        path, page = _PATHS[type(value)](value)
        request: Request = self.context["request"]
        return {"self": request.build_absolute_uri(ROOT + path), "ui": request.build_absolute_uri(page)}


class RoutedObject(serializers.Serializer[Any]):
    """``id``, the two times and the links."""

    id = serializers.UUIDField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    links = LinkPairField()
