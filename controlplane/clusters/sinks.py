"""Where apps register to hear what the watcher sees, so that controlplane imports none of them."""

from __future__ import annotations

from controlplane.clusters.gateway import ObservationSink

_sinks: list[ObservationSink] = []


def register_sink(sink: ObservationSink) -> None:
    """Called once from an AppConfig.ready(); order of registration is order of delivery."""
    _sinks.append(sink)


def registered_sinks() -> tuple[ObservationSink, ...]:
    """Every sink, in order of registration."""
    return tuple(_sinks)
