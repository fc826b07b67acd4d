"""Routing: policies of endpoint variants, what routers are told, and what they tell."""

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    name = "routing"
    label = "routing"

    def ready(self) -> None:
        """Hear the watcher: who is ready decides who gets requests."""
        from controlplane.clusters.sinks import register_sink
        from routing.sinks import RoutingSink

        register_sink(RoutingSink())
