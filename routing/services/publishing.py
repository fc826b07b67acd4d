"""What routers are told: compared with what they were told, stored as a new version, and put where they look.

It is made from rows each time, so a crash anywhere is repaired by the next time; beat takes care that there is one.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import redis
import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from controlplane.locks import transaction_lock
from controlplane.serving.models import STATIC_KIND, Endpoint, Instance, Variant
from routing.domain.publishing import (
    Copy,
    PublishedEndpoint,
    PublishedVariant,
    changes,
    contents,
    digest_of,
    place_of,
    sealed,
)
from routing.models import Configuration, RoutedEndpoint, RoutedVariant, RouterProcess
from routing.selectors.policies import newest_policies, policy_of
from routing.services import broker
from routing.services.shifting import shift

log = structlog.get_logger(__name__)

ROUTERS_SEEN = timedelta(seconds=30)
DEFAULT_PORT = 8080
KEPT_VERSIONS = 200


def publish_soon() -> None:
    """Publish as soon as the transaction commits; never fails the caller. Beat makes up for what is lost."""
    transaction.on_commit(configuration_publish, robust=True)


def configuration_publish() -> int:
    """Make the newest version what the rows say, and put it where routers look. The version; repeating it is cheap."""
    there = _version_in_broker()
    with transaction.atomic():
        transaction_lock("routing:publish")
        newest, names = _store(there or 0)
    document = sealed(newest.document, newest.version, names)
    if there is not None and there < newest.version:
        _put(newest.version, document)
    if settings.ROUTER_CONFIG_FILE:
        _write(Path(settings.ROUTER_CONFIG_FILE), newest.version, document)
    return newest.version


def _store(there: int) -> tuple[Configuration, Mapping[str, str]]:
    """The newest version after a look at all rows, and the secrets by endpoint name."""
    endpoints = list(
        Endpoint.objects.filter(gone_at__isnull=True, deleting_at__isnull=True)
        .select_related("cluster", "routed")
        .order_by("pk")
    )
    routed = _named(endpoints)
    document = contents(_routers(), _published(endpoints, routed))
    digest = digest_of(document)
    newest = Configuration.objects.first()
    # After a restore from a backup routers may be ahead of the rows: they take nothing that is older than they are.
    ahead = max(there, RouterProcess.objects.aggregate(most=Max("config_version"))["most"] or 0)
    if newest is None or newest.digest != digest or newest.version < ahead:
        version = max(newest.version if newest else 0, ahead) + 1
        found = changes(newest.document if newest else {}, document)
        newest = Configuration.objects.create(version=version, digest=digest, document=document, changes=found)
        Configuration.objects.filter(version__lte=version - KEPT_VERSIONS).delete()
        log.info("routing.published", version=version, changes=len(found))
    return newest, {row.name: row.secret for row in routed.values()}


def _named(endpoints: Sequence[Endpoint]) -> dict[UUID, RoutedEndpoint]:
    """Name and secret of each, made once. The first to have a name keeps it; others say where they are."""
    routed = {one.pk: one.routed for one in endpoints if hasattr(one, "routed")}
    for endpoint in endpoints:
        if endpoint.pk in routed:
            continue
        # Another object of the same name is gone when this one is here: clients mean this one.
        RoutedEndpoint.objects.filter(
            endpoint__cluster=endpoint.cluster_id, endpoint__namespace=endpoint.namespace, endpoint__name=endpoint.name,
            endpoint__gone_at__isnull=False,
        ).delete()  # fmt: skip
        names = (
            endpoint.name,
            f"{endpoint.name}.{endpoint.namespace}",
            f"{endpoint.name}.{endpoint.namespace}.{endpoint.cluster.name}",
            str(endpoint.pk),
        )
        taken = set(RoutedEndpoint.objects.filter(name__in=names).values_list("name", flat=True))
        name = next(one for one in names if one not in taken)
        routed[endpoint.pk] = RoutedEndpoint.objects.create(endpoint=endpoint, name=name, secret=secrets.token_hex(32))
    return routed


def _published(endpoints: Sequence[Endpoint], routed: Mapping[UUID, RoutedEndpoint]) -> list[PublishedEndpoint]:
    variants = list(Variant.objects.filter(endpoint__in=endpoints).select_related("endpoint"))
    policies = newest_policies([one.pk for one in variants])
    known = {row.variant_id: row for row in RoutedVariant.objects.filter(variant__in=variants)}
    copies = _copies(endpoints)
    given = {one.pk for one in endpoints if one.kind == STATIC_KIND}  # nobody scales them from none
    by_endpoint: dict[UUID, list[PublishedVariant]] = defaultdict(list)
    for variant in variants:
        if variant.pk not in known:
            known[variant.pk] = RoutedVariant.objects.create(variant=variant)
    shift([known[variant.pk] for variant in variants], {variant.pk: variant for variant in variants}, copies)
    for variant in variants:
        row = policies.get(variant.pk)
        state = known[variant.pk]
        mine = copies[state.source or variant.endpoint_id]
        _move(state, mine)
        by_endpoint[variant.endpoint_id].append(
            PublishedVariant(
                name=variant.name,
                policy=policy_of(variant.endpoint, row),
                policy_version=row.version if row is not None else 0,
                copies=mine,
                membership_version=state.membership_version,
                hot=state.hot,
                hot_version=state.hot_version,
                weight=state.weight,
                waits=bool(mine) or (state.source or variant.endpoint_id) not in given,
                replaced=(state.source or variant.endpoint_id) not in given,
            )
        )
    models = _models_of(endpoints)
    return [PublishedEndpoint(routed[one.pk].name, models[one.pk], by_endpoint[one.pk]) for one in endpoints]


def _copies(endpoints: Sequence[Endpoint]) -> Mapping[UUID, list[Copy]]:
    """Instances that are ready and can be reached, by endpoint."""
    ports = {one.pk: _port(one) for one in endpoints}
    checks = {one.pk: one.document.get("healthPath", "") for one in endpoints if one.kind == STATIC_KIND}
    found: dict[UUID, list[Copy]] = defaultdict(list)
    rows = Instance.objects.filter(endpoint__in=endpoints, ready=True).exclude(address="").select_related("node")
    for row in rows.order_by("uid"):
        home = row.node_uid or (row.node.uid if row.node is not None else "")  # the version before keeps no uid
        if place := place_of(row.address, ports[row.endpoint_id]):
            check = checks.get(row.endpoint_id, "")
            found[row.endpoint_id].append(Copy(row.uid, place, home, tls=row.tls, check=check))
    return found


def _move(state: RoutedVariant, copies: Iterable[Copy]) -> None:
    """Count a change of membership: who is in it and with which weight, not at which address."""
    membership = [[one.id, one.weight, one.home] for one in copies]
    if state.membership != membership:
        state.membership, state.membership_version = membership, state.membership_version + 1
        state.save(update_fields=["membership", "membership_version", "updated_at"])


def _port(endpoint: Endpoint) -> int:
    worker = endpoint.document.get("worker")
    port = worker.get("modelInvocationPort") if isinstance(worker, Mapping) else None
    number = port.get("containerPort") if isinstance(port, Mapping) else None
    return number if isinstance(number, int) and 0 < number < 65536 else DEFAULT_PORT


def _models_of(endpoints: Sequence[Endpoint]) -> dict[UUID, list[str]]:
    """The models by whose name each is asked for. Of two that serve one, it is the older's: a new endpoint takes no
    requests away, and is asked for by its own name."""
    taken: set[str] = set()
    found = {}
    for one in sorted(endpoints, key=lambda endpoint: endpoint.pk):
        found[one.pk] = [name for name in _models(one) if name not in taken]
        taken.update(found[one.pk])
    return found


def _models(endpoint: Endpoint) -> list[str]:
    name = endpoint.document.get("modelName")
    return [name] if isinstance(name, str) and name else []


def _routers() -> int:
    """How many router processes share the traffic: those that were heard of lately, or as many as somebody said."""
    if settings.ROUTER_PROCESSES:
        return int(settings.ROUTER_PROCESSES)
    return max(1, RouterProcess.objects.filter(seen_at__gte=timezone.now() - ROUTERS_SEEN).count())


def _version_in_broker() -> int | None:
    """None when it does not answer."""
    try:
        with broker.client() as connection:
            return broker.version_there(connection)
    except (redis.RedisError, OSError) as error:
        log.warning("routing.broker_unreachable", error=str(error)[:200])
        return None


def _put(version: int, document: Mapping[str, object]) -> None:
    try:
        with broker.client() as connection:
            broker.put(connection, version, document)
    except (redis.RedisError, OSError) as error:
        log.warning("routing.not_published", version=version, error=str(error)[:200])


def _write(path: Path, version: int, document: Mapping[str, object]) -> None:
    """Also as a file, for routers on this machine: whole or not at all, and for nobody else's eyes."""
    mark = f'"version": {version},'.encode()
    try:
        if path.exists():
            with path.open("rb") as there:
                if there.read(64).startswith(b"{" + mark):
                    return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = path.with_name(f"{path.name}.{os.getpid()}")
        handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps({"version": version, **{k: v for k, v in document.items() if k != "version"}}))
        made.replace(path)
    except OSError as error:
        log.warning("routing.file_not_written", path=str(path), error=str(error)[:200])
