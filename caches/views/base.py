"""What every page does: who may read, the fleet's health in title and icon, exports of its tables."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from django.contrib.auth.views import redirect_to_login
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from caches.filters import Filters
from caches.models import ModelVersion
from caches.selectors.coverage import PoolCoverage
from caches.selectors.nodes import Targets
from caches.selectors.overview import Severity, Trouble, stale_reason, troubles
from controlplane.accounts import access
from controlplane.accounts.models import Role, User
from controlplane.clusters.models import Node
from controlplane.errors import FieldError, Invalid
from controlplane.web import live
from controlplane.web.live import Crumb, Health
from controlplane.web.tables import Table, export, wanted_format
from controlplane.web.tones import Tone

View = Callable[..., HttpResponseBase]
Row = TypeVar("Row")


def signed_in(view: View) -> View:
    """Only people with some role: others sign in first, or are told which role grants it."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not isinstance(request.user, User):
            return redirect_to_login(_way_back(request))
        access.require_anywhere(request.user, Role.VIEWER)
        return view(request, *args, **kwargs)

    return checked


def _way_back(request: HttpRequest) -> str:
    """Where to go after signing in: here, or for a form that was sent too late the page that it stood on."""
    if request.method in ("GET", "HEAD"):
        return request.get_full_path()
    page = urlsplit(request.headers.get("Referer", ""))
    if page.netloc != request.get_host():
        return reverse("overview")
    return page.path + (f"?{page.query}" if page.query else "")


def user_of(request: HttpRequest) -> User:
    """The signed-in person (signed_in has run)."""
    assert isinstance(request.user, User)
    return request.user


def readable(request: HttpRequest) -> Targets:
    """What of the fleet this person may see."""
    return access.readable_targets(user_of(request))


def may(request: HttpRequest, role: Role, target: str = "") -> bool:
    return access.can(user_of(request), role, target)


def health_of(
    request: HttpRequest, covered: Sequence[PoolCoverage] | None = None
) -> tuple[Health, tuple[Trouble, ...]]:
    """The worst of what this person may see, and all of it. ``covered`` is their pools_coverage, where it is known."""
    now, targets = timezone.now(), readable(request)
    found = troubles(now=now, targets=targets, covered=covered)
    stale = stale_reason(now=now, targets=targets)
    if not found:
        return Health(tone=Tone.UNKNOWN if stale else Tone.OK, stale=stale), found
    worst = {Severity.BAD: Tone.BAD, Severity.WARN: Tone.WARN, Severity.UNKNOWN: Tone.UNKNOWN}[found[0].severity]
    count = sum(trouble.count for trouble in found)
    return Health(tone=worst, count=count, sentence="; ".join(t.sentence for t in found) + ".", stale=stale), found


def show(
    request: HttpRequest,
    template: str,
    context: dict[str, Any] | None = None,
    *,
    title: str,
    section: str,
    crumbs: Sequence[tuple[str, str]] = (),
    tables: Sequence[Table] = (),
    suffix: str = "",
    live_page: bool = True,
    status: int = 200,
) -> HttpResponse:
    """A page, or the export of one of its tables when the address asks for that."""
    if tables and (exported := export(request, tables, suffix)) is not None:
        return exported
    context = dict(context or {})
    if "health" not in context:
        context["health"], _ = health_of(request)
    health = context.pop("health")
    return live.page(
        request,
        template,
        {**context, **{f"{table.name}_table": table for table in tables}},
        title=title,
        section=section,
        crumbs=tuple(Crumb(label, url) for label, url in crumbs),
        health=health,
        live=live_page,
        status=status,
    )


def filtered(request: HttpRequest, found: Filters, suffix: str = "") -> QuerySet[Any]:
    """The rows that the address asks for. A page can say beside them what it did not understand; an export cannot,
    so it is refused instead of holding rows that nobody asked for.
    """
    if found.errors and wanted_format(request, suffix):
        errors = [
            FieldError(name, "page:user:filter", " ".join(str(one) for one in problems))
            for name, problems in found.errors.items()
        ]
        raise Invalid(
            "page:user:filter",
            "The filter is not understood.",
            next_step="Correct the address, or export from the page.",
            errors=errors,
        )
    rows: QuerySet[Any] = found.qs
    return rows


def version_url(version: ModelVersion, name: str = "version") -> str:
    return reverse(name, args=[version.model.name, version.version])


def node_url(node: Node) -> str:
    return reverse("node", args=[node.id])


def pool_of(node: Node) -> str:
    """The target that access to this node is granted on."""
    return node.pool.full_name if node.pool is not None else node.cluster.name


def trouble_url(trouble: Trouble) -> str:
    """Where to look at it."""
    if trouble.page == "pool":
        return reverse("pool", args=[trouble.query])
    if trouble.page == "version":
        model, _, version = trouble.query.partition("/")
        return reverse("version", args=[model, version])
    return reverse(trouble.page) + (f"?{trouble.query}" if trouble.query else "")


def curl(request: HttpRequest, path: str, *, method: str = "GET", body: str = "") -> str:
    """The same over REST, ready to paste; the token comes from the environment and is never shown."""
    words = ["curl", "-sS", '-H "Authorization: Bearer $HEARTH_TOKEN"']
    if method != "GET":
        words.insert(2, f"-X {method}")
        words.append('-H "Idempotency-Key: $(uuidgen)"')
    if body:
        words.append(f"-H 'Content-Type: application/json' -d {shlex.quote(body)}")
    return " ".join([*words, f"'{request.build_absolute_uri('/api/v1/' + path)}'"])


def version_path(version: ModelVersion) -> str:
    """The REST path of a version."""
    return f"models/{version.model.name}/versions/{quote(version.version, safe='')}"


def fragment(request: HttpRequest, template: str, **context: Any) -> SafeString:
    """A small piece of HTML with a form, for a table's last cell."""
    return render_to_string(template, context, request)
