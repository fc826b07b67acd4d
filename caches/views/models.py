"""Models → versions: what can be warmed, from where, and where it is warm."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from caches.filters import ModelFilter, VersionFilter
from caches.forms import RegisterForm
from caches.models import DriftState, Model, ModelVersion, Pin, VersionState
from caches.selectors.catalogue import manifest_files, models_list, version_get, versions_list
from caches.selectors.entries import entries_list
from caches.selectors.operations import operations_list
from caches.selectors.previews import why_not_warm
from caches.services import catalogue
from caches.views.base import curl, filtered, readable, show, user_of, version_path, version_url
from caches.views.columns import entry_columns, entry_export_columns
from caches.views.entries import entry_actions
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.errors import Invalid, Missing
from controlplane.web import cells
from controlplane.web.form_keys import fresh_key, sent
from controlplane.web.tables import Column, Table, wanted_format


def models(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Every model; the versions of all of them stand below, because that is what one looks for."""
    found = VersionFilter(request.GET, queryset=versions_list())
    rows = filtered(request, found, suffix)
    names = ModelFilter(request.GET, queryset=models_list())
    text = request.GET.get("q", "").strip()
    if text:
        rows = rows.filter(model__name__icontains=text)
    table = _versions_table(request, rows, model=True)
    context = {
        "states": VersionState.values,
        "drifts": DriftState.values,
        "models_count": names.qs.count(),
        "text": text,
        "problems": found.errors,
    }
    return show(
        request,
        "pages/models.html",
        context,
        title="Models",
        section="models",
        tables=(table,),
        suffix=suffix,
    )


def model(request: HttpRequest, name: str, suffix: str = "") -> HttpResponse:
    """One model's versions, newest first."""
    found = Model.objects.filter(name=name).first()
    if found is None:
        raise Missing("model:user:not-found", f"There is no model {name}.", next_step="Register a version of it.")
    table = _versions_table(request, versions_list(model=name), model=False)
    context = {"model": found, "curl": curl(request, f"models/{name}/versions")}
    crumbs = [("Models", reverse("models"))]
    return show(
        request,
        "pages/model.html",
        context,
        title=name,
        section="models",
        crumbs=crumbs,
        tables=(table,),
        suffix=suffix,
    )


def version(request: HttpRequest, name: str, label: str, suffix: str = "") -> HttpResponse:
    """One version: what it is, whether its source still matches, where it is warm, and why not elsewhere."""
    if suffix and ModelVersion.objects.filter(model__name=name, version=label + suffix).exists():
        label, suffix = label + suffix, ""  # a version may be called v1.json
    found = version_get(model=name, version=label)
    targets = readable(request)
    warm_columns = entry_columns(version=False)
    if wanted_format(request, suffix):
        warm_columns += entry_export_columns()
    warm = Table(
        request,
        entries_list(targets=targets).filter(artifact=found.artifact_id, node__lost_at__isnull=True),
        warm_columns,
        name="warm",
        caption="Where it is",
        url=lambda row: reverse("entry", args=[row.id]),
        actions=lambda row: entry_actions(request, row),
        default_sort="node",
    )
    files = Table(
        request,
        manifest_files(found) if found.artifact_id else (),
        _file_columns(),
        name="manifest",
        caption="Manifest",
        key=lambda row: row.path,
        prefix="m",
        default_sort="path",
    )
    why = why_not_warm(found, targets=targets)
    return show(
        request,
        "pages/version.html",
        {
            "version": found,
            "pin": Pin.objects.filter(version=found, removed_at__isnull=True)
            .prefetch_related("pools__cluster")
            .first(),
            "why": [chain for chain in why if chain.warm is not True],
            "why_open": request.GET.get("why", ""),
            "operation": operations_list().filter(subject_id=str(found.id)).first(),
            "curl": curl(request, version_path(found)),
        },
        title=found.full_name,
        section="models",
        crumbs=[("Models", reverse("models")), (name, reverse("model", args=[name]))],
        tables=(warm, files),
        suffix=suffix,
    )


def register(request: HttpRequest) -> HttpResponse:
    """The form; a refusal says at the field what is wrong. What is registered shows as its operation."""
    access.require_anywhere(user_of(request), Role.OPERATOR)
    form = RegisterForm(request.POST or None, initial={"model": request.GET.get("model", "")})
    done = sent(request, form, lambda: _register(request, form))
    if done.answer is not None:
        return done.answer
    return show(
        request,
        "pages/register.html",
        {"form": form, "form_key": request.POST.get("form_key") or fresh_key(), "refused": done.refused},
        title="Register a version",
        section="models",
        crumbs=[("Models", reverse("models"))],
        live_page=False,
        status=done.status,
    )


def _register(request: HttpRequest, form: RegisterForm) -> str:
    _, operation = catalogue.version_register(
        actor=actor_of(request),
        model=form.cleaned_data["model"].strip(),
        version=form.cleaned_data["version"].strip(),
        connection=form.cleaned_data["connection"],
        uri=form.cleaned_data["uri"].strip(),
        allow_patterns=form.patterns("allow_patterns"),
        ignore_patterns=form.patterns("ignore_patterns"),
        accept_eula=form.cleaned_data["accept_eula"],
    )
    return reverse("operation", args=[operation.id])


@require_POST
def recheck(request: HttpRequest, name: str, label: str) -> HttpResponse:
    access.require_anywhere(user_of(request), Role.OPERATOR)
    found = version_get(model=name, version=label)
    operation = catalogue.version_recheck(actor=actor_of(request), version_id=found.id)
    return redirect("operation", operation.id)


def delete(request: HttpRequest, name: str, label: str) -> HttpResponse:
    """GET asks, POST with the typed name deletes; refused while a pin names it."""
    access.require_anywhere(user_of(request), Role.OPERATOR)
    found = version_get(model=name, version=label)
    if request.method == "POST":
        if request.POST.get("confirm", "").strip() != found.full_name:
            raise Invalid(
                "version:user:not-confirmed",
                "The typed name is not the version that would be deleted.",
                next_step=f"Go back and type {found.full_name} exactly.",
            )
        catalogue.version_delete(actor=actor_of(request), version_id=found.id)
        return redirect("models")
    return show(
        request,
        "pages/version_delete.html",
        {"version": found, "held": entries_list().filter(artifact=found.artifact_id, state="Ready").count()},
        title=f"Delete {found.full_name}",
        section="models",
        crumbs=[("Models", reverse("models")), (found.full_name, version_url(found))],
        live_page=False,
    )


def _versions_table(request: HttpRequest, rows: QuerySet[ModelVersion], *, model: bool) -> Table:
    columns = [
        Column(
            "version",
            "Version",
            lambda v: v.full_name if model else v.version,
            lambda v: cells.link(v.full_name if model else v.version, version_url(v)),
            "model__name" if model else "version",
            heading=True,
        ),
        Column("state", "State", lambda v: v.state, _state, "state"),
        Column("drift", "Source", lambda v: v.drift, _drift, "drift"),
        Column(
            "size_bytes",
            "Size",
            lambda v: v.artifact.size_bytes if v.artifact else None,
            lambda v: cells.size(v.artifact.size_bytes) if v.artifact else None,
            "artifact__size_bytes",
            numeric=True,
        ),
        Column(
            "files",
            "Files",
            lambda v: v.artifact.files_count if v.artifact else None,
            None,
            "artifact__files_count",
            numeric=True,
        ),
        Column(
            "digest",
            "Digest",
            lambda v: v.artifact.digest if v.artifact else None,
            lambda v: cells.digest(v.artifact.digest) if v.artifact else None,
        ),
        Column(
            "connection",
            "Connection",
            lambda v: v.connection.name,
            lambda v: cells.link(v.connection.name, reverse("connection", args=[v.connection.name])),
            "connection__name",
        ),
        Column("created_at", "Registered", lambda v: v.created_at, lambda v: cells.when(v.created_at), "created_at"),
    ]
    return Table(
        request,
        rows,
        columns,
        name="versions",
        caption="Model versions",
        url=version_url,
        default_sort="-created_at",
    )


def _state(row: ModelVersion) -> object:
    return format_html("{}{}", cells.pill(row.state), cells.reason(row.message if row.state == "Refused" else ""))


def _drift(row: ModelVersion) -> object:
    if row.state != VersionState.AVAILABLE:
        return None
    return format_html("{} {}", cells.pill(row.drift), cells.when(row.drift_checked_at) if row.drift_checked_at else "")


def _file_columns() -> list[Column]:
    return [
        Column("path", "Path", lambda f: f.path, lambda f: cells.code(f.path), "x", heading=True),
        Column("size_bytes", "Size", lambda f: f.size_bytes, lambda f: cells.size(f.size_bytes), "x", numeric=True),
        Column("algorithm", "Anchor", lambda f: f.algorithm.value, _anchor, "x"),
        Column(
            "checksum",
            "Value",
            lambda f: f.checksum,
            lambda f: format_html('<code title="{}">{}</code>', f.checksum, f.checksum[:24]),
        ),
    ]


def _anchor(row: object) -> object:
    algorithm = row.algorithm  # type: ignore[attr-defined]
    return (
        cells.pill("Matches", algorithm.value)
        if algorithm.is_content
        else cells.pill("Unchecked", f"{algorithm.value} only")
    )
