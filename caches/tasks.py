"""Thin tasks: take ids, call one service. Beat sends the sweeps; everything else is sent when a transaction commits."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task
from django.utils import timezone

from caches.services import connections, housekeeping
from caches.services.endpoints import rounds as endpoint_rounds
from caches.services.images import catalogue as images
from caches.services.images import observing as image_observing
from caches.services.launches import assembly as launch_assembly
from caches.services.launches import counts as launch_counts
from caches.services.launches import logs as launch_logs
from caches.services.launches import trials as launch_trials
from caches.services.launches.retiming import launches_retime
from caches.services.loop import rounds as loop
from caches.services.webhooks import announcing as webhooks
from controlplane.celery import publish


@shared_task(name="caches.pool_reconcile")
def pool_reconcile(pool_id: str) -> None:
    loop.pool_reconcile(pool_id=UUID(pool_id))


@shared_task(name="caches.pools_sweep")
def pools_sweep() -> None:
    """Every pool that is dirty or was not looked at lately; also what a lost message left behind."""
    for pool_id in loop.pools_due(now=timezone.now()):
        if not publish("caches.pool_reconcile", str(pool_id)):
            return


@shared_task(name="caches.webhook_deliver")
def webhook_deliver(delivery_id: str) -> None:
    webhooks.webhook_deliver(delivery_id=UUID(delivery_id))


@shared_task(name="caches.webhooks_sweep")
def webhooks_sweep() -> None:
    webhooks.drift_announce()
    for delivery_id in webhooks.webhooks_due(now=timezone.now()):
        if not publish("caches.webhook_deliver", str(delivery_id)):
            return


@shared_task(name="caches.connection_check")
def connection_check(connection_id: str) -> None:
    connections.connection_check(connection_id=UUID(connection_id))


@shared_task(name="caches.connections_sweep")
def connections_sweep() -> None:
    for connection_id in connections.connections_due(now=timezone.now()):
        if not publish("caches.connection_check", str(connection_id)):
            return


@shared_task(name="caches.rechecks_sweep")
def rechecks_sweep() -> None:
    housekeeping.rechecks_start(now=timezone.now())


@shared_task(name="caches.image_check")
def image_check(image_id: str) -> None:
    images.image_check(image_id=UUID(image_id))


@shared_task(name="caches.images_sweep")
def images_sweep() -> None:
    """Whether the tags still name what was registered."""
    for image_id in images.images_due(now=timezone.now()):
        if not publish("caches.image_check", str(image_id)):
            return


@shared_task(name="caches.pool_images")
def pool_images(pool_id: str) -> None:
    image_observing.pool_images_observe(pool_id=UUID(pool_id))


@shared_task(name="caches.pool_images_sweep")
def pool_images_sweep() -> None:
    """What the holders of images say, in every pool that has some."""
    for pool_id in image_observing.pools_to_observe():
        if not publish("caches.pool_images", str(pool_id)):
            return


@shared_task(name="caches.purge")
def purge() -> None:
    housekeeping.rows_purge(now=timezone.now())


@shared_task(name="caches.lost_sweep")
def lost_sweep() -> None:
    housekeeping.lost_close(now=timezone.now())


@shared_task(name="caches.endpoints_round")
def endpoints_round(cluster_id: str) -> None:
    endpoint_rounds.endpoints_round(cluster_id=UUID(cluster_id))


@shared_task(name="caches.endpoints_sweep")
def endpoints_sweep() -> None:
    """Every cluster that has endpoints: a round costs little where nothing is to be done."""
    for cluster_id in endpoint_rounds.clusters_with_endpoints():
        if not publish("caches.endpoints_round", str(cluster_id)):
            return


LAUNCHES_A_ROUND = 5000


@shared_task(name="caches.launches_round")
def launches_round() -> None:
    """What observers reported since the last one; a backlog is worked off in several rounds, side by side."""
    launch_assembly.launches_recheck(now=timezone.now())
    launch_assembly.launches_assemble(limit=LAUNCHES_A_ROUND)
    launches_retime()
    launch_counts.hours_count()


@shared_task(name="caches.launch_logs_round")
def launch_logs_round() -> None:
    """Logs of launches that are ready or have ended."""
    launch_logs.launch_logs_read()


@shared_task(name="caches.trials_sweep")
def trials_sweep() -> None:
    """What trials left behind that nobody drives any more."""
    launch_trials.trials_sweep()


@shared_task(name="caches.launches_purge")
def launches_purge() -> None:
    launch_assembly.launches_purge(now=timezone.now())
    launch_counts.counts_purge(now=timezone.now())
