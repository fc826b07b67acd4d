"""Thin tasks: each calls one service. Beat sends them; the watcher and the services send the first as well."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from routing.services import intake, policies, publishing, recordings


@shared_task(name="routing.publish")
def publish_configuration() -> None:
    publishing.configuration_publish()
    policies.recordings_begin()  # publishes by itself


@shared_task(name="routing.intake")
def take_figures() -> None:
    while intake.figures_take() == intake.BATCH:
        pass


@shared_task(name="routing.purge")
def purge() -> None:
    intake.windows_purge(now=timezone.now())
    recordings.recordings_purge()
