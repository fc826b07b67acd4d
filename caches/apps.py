"""Catalogue, pins, entries: what is warm where, and why."""

from django.apps import AppConfig


class CachesConfig(AppConfig):
    name = "caches"
    label = "caches"

    def ready(self) -> None:
        """Tell the shared kernel what caches does: hear the watcher, step the operations of its kinds."""
        from caches.launch_sink import LaunchSink
        from caches.metrics import CachesCollector, loop_finding
        from caches.operation_kinds import register_handlers
        from caches.services.launches.traffic import answers_record
        from caches.services.loop.pool_rounds import pools_mark_dirty
        from caches.services.publishing import published_forget
        from caches.sinks import CachesSink
        from controlplane.clusters.sinks import register_cluster_listener, register_pools_listener, register_sink
        from controlplane.serving.answers import register_answers_listener
        from controlplane.web.readiness import METRICS, register_check

        METRICS.register(CachesCollector())
        register_check("loop", loop_finding)
        register_handlers()
        register_sink(CachesSink())
        register_sink(LaunchSink())
        register_cluster_listener(published_forget)
        register_pools_listener(lambda pool_ids: pools_mark_dirty(pool_ids=pool_ids))
        register_answers_listener(answers_record)
