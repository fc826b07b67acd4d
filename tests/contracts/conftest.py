"""One cluster of each kind for every contract test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.clusters import FACTORIES, ContractCluster


@pytest.fixture(params=sorted(FACTORIES))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ContractCluster]:
    """An empty cluster."""
    with FACTORIES[request.param](tmp_path) as made:
        yield made
