"""The bridges that pods hang on."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.embedded.kube import links
from controlplane.embedded.kube.cluster import missing_for_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("kube")]


@pytest.fixture
def bridge() -> Iterator[str]:
    missing = missing_for_nodes()
    if missing and not os.environ.get("CI"):
        pytest.skip(missing)
    name = f"hk{secrets.token_hex(3)}t"
    links.create_bridge(name, "10.233.77.1/32")
    yield name
    links.remove_link(name)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=120)


def test_a_bridge_keeps_its_hardware_address_when_pods_come_and_go(bridge: str) -> None:
    # Otherwise every pod that came before talks to an address which nobody has any more, for half a minute.
    def address() -> str:
        return Path(f"/sys/class/net/{bridge}/address").read_text()

    before = address()
    pod = f"{bridge}p"
    ip("link", "add", "name", pod, "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", f"{pod}0")
    try:
        ip("link", "set", pod, "master", bridge)
        ip("link", "set", pod, "up")
        assert address() == before
    finally:
        ip("link", "del", pod)
    assert address() == before
