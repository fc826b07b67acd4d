"""Shared REST behaviour: problems, paging, idempotency, waiting."""

from django.apps import AppConfig


class RestConfig(AppConfig):
    name = "controlplane.rest"
    label = "rest"
