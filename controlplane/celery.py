"""The Celery application. Tasks are short, idempotent steps that take ids only (ARCHITECTURE.md, rule 8)."""

from __future__ import annotations

import os

import structlog
from celery import Celery
from celery.signals import after_task_publish, setup_logging
from kombu.exceptions import OperationalError

from controlplane.worker_end import EndSoon

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("hearth")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["controlplane.operations", "caches", "routing"])
app.steps["worker"].add(EndSoon)

# Beat repairs whatever a lost message, a killed worker or an empty broker left behind. Each entry expires before the
# next one is due several times over, so that a worker that comes back finds no backlog.
app.conf.beat_schedule = {
    name: {"task": name, "schedule": seconds, "options": {"expires": max(2.0, seconds)}}
    for name, seconds in {
        "operations.resume": 1.5,
        "caches.pools_sweep": 1.5,
        "caches.webhooks_sweep": 10.0,
        "caches.lost_sweep": 30.0,
        "caches.endpoints_sweep": 2.0,
        "caches.rechecks_sweep": 60.0,
        "caches.connections_sweep": 60.0,
        "caches.images_sweep": 60.0,
        "caches.pool_images_sweep": 5.0,
        "caches.launches_round": 2.0,
        "caches.launch_logs_round": 2.0,
        "caches.launches_purge": 600.0,
        "caches.trials_sweep": 60.0,
        "caches.purge": 3600.0,
        "routing.publish": 1.5,
        "routing.intake": 2.0,
        "routing.purge": 600.0,
    }.items()
}

log = structlog.get_logger(__name__)


@setup_logging.connect
def _leave_logging_alone(**_: object) -> None:
    """Workers and beat log as Django's LOGGING says; with a receiver Celery does not set up its own."""


@after_task_publish.connect
def _show_life(**_: object) -> None:
    """For beat: the broker took what was due."""
    from controlplane.heartbeat import beat  # late: this module is imported before Django is set up

    beat()


def publish(task: str, *ids: str, countdown: float = 0.0) -> bool:
    """Send one task by name, to be run after ``countdown`` seconds.

    False when the broker does not answer: the work is in the rows, and beat repairs.
    """
    retries = {"max_retries": 1, "interval_start": 0.1}
    try:
        # A message that waited longer than this is a repeat of one that beat has sent since.
        app.send_task(task, args=list(ids), countdown=countdown, expires=countdown + 60, retry_policy=retries)
    except (OperationalError, OSError) as error:
        log.warning("broker.unreachable", task=task, ids=ids, error=str(error))
        return False
    return True


def publish_on_commit(task: str, *ids: str) -> None:
    """Send when the current transaction commits (at once outside one); never fails the caller."""
    from django.db import transaction  # late: this module is imported before Django is set up

    transaction.on_commit(lambda: publish(task, *ids), robust=True)
