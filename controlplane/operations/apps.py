"""Background actions that people follow, cancel and link to."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    name = "controlplane.operations"
    label = "operations"
