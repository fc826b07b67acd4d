"""Shared REST behaviour: problems, paging, idempotency, waiting."""

from django.apps import AppConfig


class RestConfig(AppConfig):
    name = "controlplane.rest"
    label = "rest"

    def ready(self) -> None:
        from controlplane.rest import schema  # noqa: F401  # registers how callers identify themselves
