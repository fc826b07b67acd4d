"""The shared kernel as a Django app: management commands only."""

from django.apps import AppConfig


class ControlPlaneConfig(AppConfig):
    name = "controlplane"
    label = "controlplane"
