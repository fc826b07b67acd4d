"""Routing: policies of endpoint variants, what routers are told, and what they tell."""

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    name = "routing"
    label = "routing"

    def ready(self) -> None:
        """Hear the watcher: who is ready decides who gets requests. Drive replays. Say how static
        addresses are to whoever shows them."""
        from controlplane.clusters.sinks import register_sink
        from controlplane.operations.handlers import OperationHandler, register
        from controlplane.operations.models import OperationKind
        from controlplane.serving.standing import register_routers_reader
        from routing.selectors.routers import routers_say
        from routing.services.replays import replay_step
        from routing.sinks import RoutingSink

        register_sink(RoutingSink())
        register_routers_reader(routers_say)
        register(OperationKind.ROUTING_REPLAY, OperationHandler(step=replay_step))
