"""Cache entries: read, evict, scrub, try again."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import DRY_RUN, PLAN_OR_WORK, WAIT, ApiRowsView, ApiView, one, plan_or
from caches.api.plans import plan_response
from caches.api.serializers.entries import EntrySerializer
from caches.domain.plans import Plan
from caches.filters import EntryFilter
from caches.models import CacheEntry
from caches.selectors.entries import entries_list
from caches.services.entries import (
    entry_evict,
    entry_evict_preview,
    entry_retry,
    entry_retry_check,
    entry_scrub,
    entry_scrub_check,
)
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.rest.validation import flag


class EntryList(ApiRowsView):
    """Every artifact on every node; nodes that are gone only with ``state=Lost``."""

    serializer_class = EntrySerializer
    filterset_class = EntryFilter
    ordering_fields = {
        "node": "node__name",
        "state": "shown_state",
        "created_at": "created_at",
        "bytes_total": "bytes_total",
        "last_used_at": "last_used_at",
    }
    ordering = "node"

    def rows(self) -> QuerySet[CacheEntry]:
        return entries_list(targets=self.targets)


class EntryDetail(ApiView):
    @extend_schema(responses=EntrySerializer)
    def get(self, request: Request, entry_id: UUID) -> Response:
        return self.answer(EntrySerializer, one(entries_list(targets=self.targets).filter(pk=entry_id)))


class EntryAction(ApiView):
    """Base of what can be done to one entry: the caller must reach its pool."""

    write_scope = Scope.PINS_WRITE
    parameters = {"POST": ("dry_run", "wait")}
    bodies = ()

    def entry(self, request: Request, entry_id: UUID) -> CacheEntry:
        entry = one(entries_list(targets=self.targets).filter(pk=entry_id))
        node = entry.node
        assert self.write_scope is not None
        require_target(request, self.write_scope, node.pool.full_name if node.pool is not None else node.cluster.name)
        return entry


class EntryEvict(EntryAction):
    """Remove the artifact from the node, unless it is in use, pinned or held."""

    write_scope = Scope.EVICT

    @extend_schema(request=None, parameters=[DRY_RUN, WAIT], responses=PLAN_OR_WORK)
    def post(self, request: Request, entry_id: UUID) -> Response:
        entry = self.entry(request, entry_id)
        if flag(request, "dry_run"):
            return plan_response([entry_evict_preview(entry_id=entry.id)])
        return self.follow(entry_evict(actor=actor_of(request), entry_id=entry.id).id)


class EntryScrub(EntryAction):
    """Compare every byte with the manifest now, and fetch only damaged files again."""

    @extend_schema(request=None, parameters=[DRY_RUN, WAIT], responses=PLAN_OR_WORK)
    def post(self, request: Request, entry_id: UUID) -> Response:
        entry = self.entry(request, entry_id)
        if flag(request, "dry_run"):
            entry_scrub_check(entry_id=entry.id)
            return plan_response(_nothing(entry), notes=["Reads the node's disk; bytes move only for damaged files."])
        return self.follow(entry_scrub(actor=actor_of(request), entry_id=entry.id).id)


class EntryRetry(EntryAction):
    """Try a failed entry again before its time."""

    parameters = {"POST": ("dry_run",)}

    @extend_schema(request=None, parameters=[DRY_RUN], responses=plan_or(EntrySerializer))
    def post(self, request: Request, entry_id: UUID) -> Response:
        entry = self.entry(request, entry_id)
        if flag(request, "dry_run"):
            entry_retry_check(entry_id=entry.id)
            return plan_response(_nothing(entry), notes=["Only brings forward a transfer that would start by itself."])
        entry_retry(actor=actor_of(request), entry_id=entry.id)
        return self.answer(EntrySerializer, one(entries_list(targets=self.targets).filter(pk=entry.id)))


def _nothing(entry: CacheEntry) -> list[Plan]:
    return [Plan(pool=entry.node.pool.name if entry.node.pool is not None else "")]
