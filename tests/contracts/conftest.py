"""One cluster of each kind for every contract test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.clusters import FACTORIES, ContractCluster
from tests.contracts.kube import kube_contract

# One worker owns the control plane.
KUBERNETES = pytest.param("kubernetes", marks=pytest.mark.xdist_group("kube"))


@pytest.fixture(params=[*sorted(FACTORIES), KUBERNETES])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ContractCluster]:
    """An empty cluster."""
    if request.param == "kubernetes":
        with kube_contract(request.getfixturevalue("kube_api")) as kube:
            yield kube
        return
    with FACTORIES[request.param](tmp_path) as made:
        yield made
