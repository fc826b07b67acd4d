"""Images: which references are known, what they were resolved to, whether the tag has moved, and what was revoked."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from caches.filters import ImageFilter
from caches.forms import HearthForm, ImageForm
from caches.models import Image, ImageState
from caches.selectors.catalogue import versions_list
from caches.selectors.endpoints import endpoints_keeping
from caches.selectors.entries import entries_list
from caches.selectors.images import image_get, images_list
from caches.selectors.operations import operations_list
from caches.services.images import catalogue as services
from caches.views.base import curl, filtered, readable, show, user_of, version_url
from caches.views.columns import entry_columns, entry_export_columns, version_columns
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.errors import Invalid
from controlplane.web import cells
from controlplane.web.form_keys import fresh_key, sent
from controlplane.web.tables import Column, Table, wanted_format


def images(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Every image."""
    found = ImageFilter(request.GET, queryset=images_list())
    table = Table(
        request,
        filtered(request, found, suffix),
        _columns(),
        name="images",
        caption="Images",
        url=_url,
        default_sort="reference",
    )
    return show(
        request,
        "pages/images.html",
        {"states": ImageState.values, "problems": found.errors},
        title="Images",
        section="images",
        tables=(table,),
        suffix=suffix,
    )


def image(request: HttpRequest, image_id: UUID, suffix: str = "") -> HttpResponse:
    """One image: its digest and sizes, its tag, its revocation, and the model versions that it serves."""
    found = image_get(image_id=image_id)
    served = Table(
        request,
        versions_list().filter(image=found),
        version_columns(),
        name="served",
        caption="Model versions that it serves",
        url=version_url,
    )
    warm_columns = entry_columns(version=False)
    if wanted_format(request, suffix):
        warm_columns += entry_export_columns()
    warm = Table(
        request,
        entries_list(targets=readable(request)).filter(artifact=found.artifact_id, node__lost_at__isnull=True),
        warm_columns,
        name="held",
        caption="Where it is",
        url=lambda row: reverse("entry", args=[row.id]),
        default_sort="node",
        prefix="h",
    )
    context = {
        "image": found,
        "operation": operations_list().filter(subject_type="image", subject_id=str(found.pk)).first(),
        "curl": curl(request, f"images/{found.pk}"),
        "endpoints": endpoints_keeping(found, targets=readable(request)),
        "others": images_list().filter(reference=found.reference).exclude(pk=found.pk),
    }
    return show(
        request,
        "pages/image.html",
        context,
        title=found.reference,
        section="images",
        crumbs=[("Images", reverse("images"))],
        tables=(served, warm),
        suffix=suffix,
    )


def register(request: HttpRequest) -> HttpResponse:
    """The form; what is registered shows as its operation."""
    access.require_anywhere(user_of(request), Role.OPERATOR)
    form = ImageForm(request.POST or None, initial={"reference": request.GET.get("reference", "")})
    done = sent(request, form, lambda: _register(request, form))
    if done.answer is not None:
        return done.answer
    return show(
        request,
        "pages/image_register.html",
        {"form": form, "form_key": request.POST.get("form_key") or fresh_key(), "refused": done.refused},
        title="Register an image",
        section="images",
        crumbs=[("Images", reverse("images"))],
        live_page=False,
        status=done.status,
    )


def _register(request: HttpRequest, form: HearthForm) -> str:
    _, operation = services.image_register(
        actor=actor_of(request),
        reference=form.cleaned_data["reference"],
        pull_secret=form.cleaned_data["pull_secret"].strip(),
    )
    return reverse("operation", args=[operation.id])


def revoke(request: HttpRequest, image_id: UUID) -> HttpResponse:
    """GET asks for the reason, POST revokes the digest."""
    access.require_anywhere(user_of(request), Role.OPERATOR)
    found = image_get(image_id=image_id)
    if request.method == "POST":
        services.image_revoke(actor=actor_of(request), image_id=found.pk, reason=request.POST.get("reason", ""))
        messages.success(request, f"The digest of {found.reference} takes no new pins any more.")
        return redirect("image", found.pk)
    same = images_list().filter(artifact=found.artifact_id).exclude(pk=found.pk) if found.artifact_id else ()
    return show(
        request,
        "pages/image_revoke.html",
        {"image": found, "same": same},
        title=f"Revoke {found.reference}",
        section="images",
        crumbs=[("Images", reverse("images")), (found.reference, _url(found))],
        live_page=False,
    )


@require_POST
def restore(request: HttpRequest, image_id: UUID) -> HttpResponse:
    access.require_anywhere(user_of(request), Role.OPERATOR)
    found = services.image_restore(actor=actor_of(request), image_id=image_id)
    messages.success(request, f"The digest of {found.reference} may be pinned again.")
    return redirect("image", found.pk)


def delete(request: HttpRequest, image_id: UUID) -> HttpResponse:
    """GET asks, POST with the typed reference deletes."""
    access.require_anywhere(user_of(request), Role.OPERATOR)
    found = image_get(image_id=image_id)
    if request.method == "POST":
        if request.POST.get("confirm", "").strip() != found.reference:
            raise Invalid(
                "image:user:not-confirmed",
                "The typed reference is not the image that would be deleted.",
                next_step=f"Go back and type {found.reference} exactly.",
            )
        services.image_delete(actor=actor_of(request), image_id=found.pk)
        return redirect("images")
    return show(
        request,
        "pages/image_delete.html",
        {"image": found},
        title=f"Delete {found.reference}",
        section="images",
        crumbs=[("Images", reverse("images")), (found.reference, _url(found))],
        live_page=False,
    )


def _url(row: Image) -> str:
    return reverse("image", args=[row.pk])


def _columns() -> list[Column]:
    return [
        Column(
            "reference",
            "Reference",
            lambda i: i.reference,
            lambda i: cells.link(cells.reference(i.reference), _url(i)),
            "reference",
            heading=True,
        ),
        Column("state", "State", lambda i: "Revoked" if i.revoked_at else i.state, _state, "state"),
        Column("tag", "Tag", _tag_word, _tag),
        Column(
            "size_bytes",
            "Unpacked",
            lambda i: i.artifact.size_bytes if i.artifact else None,
            lambda i: cells.size(i.artifact.size_bytes) if i.artifact else None,
            "artifact__size_bytes",
            numeric=True,
        ),
        Column(
            "compressed_bytes",
            "To pull",
            lambda i: i.compressed_bytes,
            lambda i: cells.size(i.compressed_bytes) if i.compressed_bytes is not None else None,
            "compressed_bytes",
            numeric=True,
        ),
        Column(
            "digest",
            "Digest",
            lambda i: i.artifact.digest if i.artifact else None,
            lambda i: cells.digest(i.artifact.digest) if i.artifact else None,
        ),
        Column("versions", "Versions", lambda i: i.versions_count, None, "versions_count", numeric=True),
        Column("created_at", "Registered", lambda i: i.created_at, lambda i: cells.when(i.created_at), "created_at"),
    ]


def _state(row: Image) -> object:
    if row.revoked_at is not None:
        return format_html("{}{}", cells.pill("Revoked"), cells.reason(row.revoked_reason))
    return format_html("{}{}", cells.pill(row.state), cells.reason(row.message if row.state == "Refused" else ""))


def _tag_word(row: Image) -> str | None:
    if row.state != ImageState.AVAILABLE:
        return None
    if not row.tag or "@" in row.reference:
        return "Fixed"
    return "Moved" if row.moved_to else "Matches"


def _tag(row: Image) -> object:
    word = _tag_word(row)
    if word is None:
        return None
    return format_html("{} {}", cells.pill(word), cells.when(row.checked_at) if word != "Fixed" else "")
