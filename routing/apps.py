"""Routing: policies of endpoint variants, what routers are told, and what they tell."""

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    name = "routing"
    label = "routing"

    def ready(self) -> None:
        """Hear the watcher: who is ready decides who gets requests. Drive replays."""
        from controlplane.clusters.sinks import register_sink
        from controlplane.operations.handlers import OperationHandler, register
        from controlplane.operations.models import OperationKind
        from routing.services.replays import replay_step
        from routing.sinks import RoutingSink

        register_sink(RoutingSink())
        register(OperationKind.ROUTING_REPLAY, OperationHandler(step=replay_step))
