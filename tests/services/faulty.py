"""The real gateway with trouble on the way: calls are written down, and chosen ones fail or are interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from controlplane.clusters.gateway import (
    ClusterGateway,
    Conflict,
    GatewayError,
    Gone,
    NotApplicable,
    NotFound,
    Throttled,
    Unreachable,
)
from controlplane.clusters.registry import override_gateway
from tests.services.world import World

ERRORS: tuple[GatewayError, ...] = (
    Throttled("slow down", 5.0),
    Unreachable("no answer"),
    Conflict("another writer was first"),
    NotFound("no such object"),
    Gone("too old"),
    NotApplicable("there is no such thing here"),
)


class FaultyGateway:
    """See the module. ``fail`` raises instead of calling; ``before`` runs something and then calls."""

    def __init__(self, real: ClusterGateway) -> None:
        self.real = real
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._rules: list[dict[str, Any]] = []

    def fail(self, call: str, error: Exception, *, times: int = 1_000, after: int = 0) -> None:
        """Let the next ``times`` calls of this name fail, after ``after`` of them have passed."""

        def refuse() -> None:
            raise error

        self._rules.append({"call": call, "do": refuse, "times": times, "after": after})

    def before(self, call: str, do: Callable[[], object], *, after: int = 0) -> None:
        """Once, just before a call of this name reaches the cluster."""
        self._rules.append({"call": call, "do": do, "times": 1, "after": after})

    def heal(self) -> None:
        self._rules.clear()

    def made(self, call: str) -> list[tuple[Any, ...]]:
        """The arguments of every call of this name, failed ones too."""
        return [args for name, args in self.calls if name == call]

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args))
            for rule in [rule for rule in self._rules if rule["call"] == name]:
                if rule["after"]:
                    rule["after"] -= 1
                elif rule["times"]:
                    rule["times"] -= 1
                    rule["do"]()
            return getattr(self.real, name)(*args, **options)

        return call


@contextmanager
def faulty(world: World) -> Iterator[FaultyGateway]:
    """The world's cluster answers through a FaultyGateway while the block runs."""
    gateway = FaultyGateway(world.gateway)
    override_gateway(world.cluster.pk, gateway)
    try:
        yield gateway
    finally:
        override_gateway(world.cluster.pk, None)
