"""Thin tasks: each calls one service. Beat sends them; the watcher and the services send the first as well."""

from __future__ import annotations

from celery import shared_task

from routing.services import publishing


@shared_task(name="routing.publish")
def publish_configuration() -> None:
    publishing.configuration_publish()
