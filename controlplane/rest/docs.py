"""The API's own description: the document and its browsable pages, without any address outside Hearth."""

from __future__ import annotations

from typing import Any

from csp.decorators import csp_update
from django.contrib.auth.decorators import login_required
from django.utils.decorators import method_decorator
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.exceptions import NotAuthenticated

from controlplane.accounts.authentication import BearerTokenAuthentication, BrowserSessionAuthentication
from controlplane.accounts.permissions import ScopePermission

# The page's widgets carry inline styles; its scripts come from files like everybody else's.
RELAXED = {"style-src": "'unsafe-inline'"}


class SchemaView(SpectacularAPIView):
    """GET /api/v1/openapi: this API as an OpenAPI 3 document."""

    authentication_classes = [BearerTokenAuthentication, BrowserSessionAuthentication]
    permission_classes = [ScopePermission]

    @extend_schema(exclude=True)
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]

    def permission_denied(self, request: Any, message: str | None = None, code: str | None = None) -> Any:
        raise NotAuthenticated


@method_decorator(login_required, name="dispatch")
@method_decorator(csp_update(RELAXED), name="dispatch")
class DocsView(SpectacularSwaggerSplitView):
    """GET /api/v1/docs: the same as pages that can be tried out, for people who signed in."""

    authentication_classes = [BrowserSessionAuthentication]
    permission_classes = [ScopePermission]

    @extend_schema(exclude=True)
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]
