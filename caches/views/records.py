"""The audit trail, tokens and connections."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from caches.filters import AuditFilter, ConnectionFilter
from caches.forms import TokenForm
from caches.selectors.audit import audit_list
from caches.selectors.catalogue import connections_list, versions_list
from caches.selectors.token_targets import token_targets_check
from caches.views.base import curl, filtered, fragment, readable, show, user_of, version_url
from caches.views.columns import version_columns
from caches.views.trail import audit_table, event_url
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role, Scope, Token
from controlplane.accounts.services import token_create, token_revoke
from controlplane.audit.models import AuditEvent, Via
from controlplane.errors import HearthError, Missing
from controlplane.web import cells
from controlplane.web.form_keys import FIELD, fresh_key, once
from controlplane.web.tables import Column, Table


def audit(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Who changed what, newest first. ``?id=`` shows one event with before and after."""
    found = AuditFilter(request.GET, queryset=audit_list(targets=readable(request)))
    table = audit_table(
        request,
        filtered(request, found, suffix),
        suffix=suffix,
        wide=True,
        name="audit",
        caption="Audit events",
        url=lambda row: f"{reverse('audit')}?id={row.id}",
        default_sort="-at",
    )
    one = _one_event(request)
    context = {"vias": Via.values, "one": one, "one_url": event_url(one) if one else "", "problems": found.errors}
    return show(request, "pages/audit.html", context, title="Audit", section="audit", tables=(table,), suffix=suffix)


def _one_event(request: HttpRequest) -> AuditEvent | None:
    wanted = request.GET.get("id", "")
    try:
        return audit_list(targets=readable(request)).filter(pk=UUID(wanted)).first() if wanted else None
    except ValueError:
        return None


@never_cache
def tokens(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """One's own tokens, all of them for an administrator of everything; POST makes one and shows it once."""
    user = user_of(request)
    scopes = [scope for scope in Scope if access.can_anywhere(user, access.SCOPE_ROLE[scope])]
    form, secret, status = TokenForm(request.POST or None, scopes=scopes), "", 200
    if request.method == "POST":
        status = 400
        if form.is_valid():
            secret, status = _make(request, form)
            if status == 303:
                return _sent_twice(request)
            if secret:
                form = TokenForm(scopes=scopes)
    table = Table(
        request,
        visible_tokens(request),
        _token_columns(),
        name="tokens",
        caption="Tokens",
        key=lambda row: str(row.id),
        actions=lambda row: fragment(request, "partials/token_actions.html", token=row) if not row.revoked_at else "",
    )
    return show(
        request,
        "pages/tokens.html",
        {
            "form": form,
            "secret": secret,
            "form_open": bool(form.errors),
            "form_key": _form_key(request, form),
            "curl": curl(request, "me"),
        },
        title="Tokens",
        section="tokens",
        tables=(table,),
        suffix=suffix,
        live_page=not secret and not form.errors,
        status=status,
    )


def _make(request: HttpRequest, form: TokenForm) -> tuple[str, int]:
    """The secret with 201; 303 for a form that made its token before; otherwise the form says what is wrong."""
    data, secrets = form.cleaned_data, list[str]()

    def work() -> str:
        token_targets_check(person=user_of(request), targets=data["targets"].split())
        _, secret = token_create(
            actor=actor_of(request),
            user=user_of(request),
            name=data["name"],
            scopes=data["scopes"],
            expires_at=timezone.now() + timedelta(days=int(data["days"])),
            targets=data["targets"].split(),
            addresses=data["addresses"].split(),
        )
        secrets.append(secret)  # on its way to the page and nowhere else
        return reverse("tokens")

    try:
        once(request, work)
    except HearthError as error:
        form.take(error.errors, error.detail)
        return "", error.status
    return (secrets[0], 201) if secrets else ("", 303)


def _sent_twice(request: HttpRequest) -> HttpResponse:
    messages.warning(
        request,
        "The form was sent twice and made one token. Its secret was shown once: if you did not see it, revoke the "
        "token and create another.",
    )
    return redirect("tokens")


def _form_key(request: HttpRequest, form: TokenForm) -> str:
    """A form that is corrected keeps its key: whatever made it fail made no token."""
    return (request.POST.get(FIELD, "") if form.errors else "") or fresh_key()


@require_POST
def revoke(request: HttpRequest, token_id: UUID) -> HttpResponse:
    """One's own, or any for an administrator of everything."""
    token = visible_tokens(request).filter(id=token_id).first()
    if token is None:
        raise Missing("token:user:missing", "There is no such token.", next_step="List the tokens.")
    token_revoke(actor=actor_of(request), token_id=token.id)
    messages.success(request, f"The token {token.name} works no more.")
    return redirect("tokens")


def visible_tokens(request: HttpRequest) -> QuerySet[Token]:
    rows: QuerySet[Token] = Token.objects.select_related("user").order_by("-created")
    user = user_of(request)
    return rows if access.can(user, Role.ADMIN) else rows.filter(user=user)


def token_state(token: Token) -> str:
    if token.revoked_at is not None:
        return "Revoked"
    return "Expired" if token.expiry is not None and token.expiry <= timezone.now() else "Active"


def _token_columns() -> list[Column]:
    return [
        Column("name", "Name", lambda t: t.name, None, "name", heading=True),
        Column("state", "State", token_state, lambda t: cells.pill(token_state(t))),
        Column("owner", "Owner", lambda t: t.user.get_username(), None, "user__username"),
        Column("prefix", "Starts with", lambda t: t.token_key, lambda t: cells.code(t.token_key)),
        Column("scopes", "Scopes", lambda t: t.scopes, lambda t: cells.tags(t.scopes)),
        Column("targets", "Only for", lambda t: t.targets, lambda t: cells.tags(t.targets)),
        Column("expires_at", "Expires", lambda t: t.expiry, lambda t: cells.when(t.expiry), "expiry"),
        Column(
            "last_used_at", "Last used", lambda t: t.last_used_at, lambda t: cells.when(t.last_used_at), "last_used_at"
        ),
        Column("created_at", "Created", lambda t: t.created, lambda t: cells.when(t.created), "created"),
    ]


def connections(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Where stores are, and whether they answer."""
    found = ConnectionFilter(request.GET, queryset=connections_list())
    table = Table(
        request,
        filtered(request, found, suffix),
        _connection_columns(),
        name="connections",
        caption="Source connections",
        url=lambda row: reverse("connection", args=[row.name]),
        default_sort="name",
    )
    return show(
        request,
        "pages/connections.html",
        {"problems": found.errors},
        title="Connections",
        section="connections",
        tables=(table,),
        suffix=suffix,
    )


def connection(request: HttpRequest, name: str, suffix: str = "") -> HttpResponse:
    """One connection with what is registered through it."""
    found = connections_list().filter(name=name).first()
    if found is None:
        raise Missing("connection:user:not-found", f"There is no connection {name}.", next_step="List the connections.")
    versions = Table(
        request,
        versions_list().filter(connection=found),
        [
            *version_columns(),
            Column("uri", "Source", lambda v: v.uri, lambda v: cells.code(v.uri), "uri"),
            Column(
                "created_at", "Registered", lambda v: v.created_at, lambda v: cells.when(v.created_at), "created_at"
            ),
        ],
        name="versions",
        caption="Registered through it",
        url=version_url,
    )
    context = {"connection": found, "curl": curl(request, f"source-connections/{found.name}")}
    crumbs = [("Connections", reverse("connections"))]
    return show(
        request,
        "pages/connection.html",
        context,
        title=name,
        section="connections",
        crumbs=crumbs,
        tables=(versions,),
        suffix=suffix,
    )


def _connection_columns() -> list[Column]:
    return [
        Column(
            "name",
            "Name",
            lambda c: c.name,
            lambda c: cells.link(c.name, reverse("connection", args=[c.name])),
            "name",
            heading=True,
        ),
        Column(
            "state",
            "State",
            lambda c: c.state,
            lambda c: format_html("{}{}", cells.pill(c.state), cells.reason(c.message)),
            "state",
        ),
        Column("type", "Type", lambda c: c.type, None, "type"),
        Column("endpoint", "Endpoint", lambda c: c.endpoint, lambda c: cells.code(c.endpoint)),
        Column("allowed", "May read", lambda c: c.allowed, lambda c: cells.tags(c.allowed)),
        Column("secret_name", "Secret", lambda c: c.secret_name, lambda c: cells.code(c.secret_name)),
        Column("versions", "Versions", lambda c: c.versions_count, None, "versions_count", numeric=True),
        Column("observed_at", "Checked", lambda c: c.observed_at, lambda c: cells.when(c.observed_at), "observed_at"),
    ]
