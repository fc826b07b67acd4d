"""Fixtures of the service tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from controlplane.audit.services import Actor
from tests.services.endpoints import EndpointWorld
from tests.services.world import World


@pytest.fixture
def actor() -> Actor:
    return Actor(name="olga", via="Api", request_id="request-1")  # type: ignore[arg-type]


@pytest.fixture
def make_world(db: None, tmp_path: Path) -> Callable[..., World]:
    """A fleet in its own folder; call it once a test."""
    return lambda **kwargs: World(tmp_path / "fleet", **kwargs)


@pytest.fixture
def world(make_world: Callable[..., World]) -> Any:
    return make_world()


@pytest.fixture
def served(make_world: Callable[..., World], settings: LazySettings) -> Iterator[EndpointWorld]:
    """An endpoint over a fleet of two nodes."""
    made = EndpointWorld(make_world(), settings)
    yield made
    made.close()
