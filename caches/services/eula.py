"""Terms of models: who accepted which text, and when. Without that, nothing of a model is read."""

from __future__ import annotations

from django.db import transaction

from caches.models.catalogue import EulaAcceptance, SourceConnection
from caches.sources.base import Terms
from caches.sources.problems import terms_required
from controlplane.audit.services import Actor, audit_write


def terms_settle(*, actor: Actor, connection: SourceConnection, terms: Terms, accept: bool) -> str:
    """The address by which the model may be read now. Permanent(AccessDenied) where this very text was not accepted.

    ``accept`` records the acceptance with the text itself, unless somebody had accepted it already.
    """
    known = EulaAcceptance.objects.filter(
        connection_name=connection.name, subject=terms.subject, digest=terms.digest
    ).exists()
    if not known and not accept:
        raise terms_required(terms.subject, terms.place)
    if not known:
        _record(actor, connection, terms)
    return terms.accepted_uri


def _record(actor: Actor, connection: SourceConnection, terms: Terms) -> None:
    with transaction.atomic():
        row, created = EulaAcceptance.objects.get_or_create(
            connection_name=connection.name,
            subject=terms.subject,
            digest=terms.digest,
            defaults={
                "version": terms.version,
                "place": terms.place,
                "text": terms.text,
                "accepted_by": actor.name,
                "accepted_via": actor.via,
            },
        )
        if created:
            audit_write(
                actor=actor,
                action="eula.accept",
                object_type="eula",
                object_id=str(row.pk),
                object_name=f"{terms.subject} {terms.version}",
                before=None,
                after={"connection": connection.name, "place": terms.place, "digest": terms.digest},
            )
