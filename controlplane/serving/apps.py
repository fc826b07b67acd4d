"""Endpoints, their variants and instances: facts, and no rule."""

from django.apps import AppConfig


class ServingConfig(AppConfig):
    name = "controlplane.serving"
    label = "serving"

    def ready(self) -> None:
        """Hear what the watcher sees."""
        from controlplane.clusters.sinks import register_sink
        from controlplane.serving.sinks import ServingSink

        register_sink(ServingSink())
