"""Bridges and routes, made and removed through iproute2."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from typing import Any, cast

from controlplane.embedded.problems import EmbeddedError


def create_bridge(name: str, address: str) -> None:
    """A bridge with an address such as ``10.200.1.1/24``, up."""
    # Without one of its own it takes the lowest of its ports' hardware addresses: with every pod that comes or goes it
    # could be another one, and all others would talk to the old one for half a minute.
    own = hashlib.sha256(name.encode()).digest()
    hardware = ":".join(f"{byte:02x}" for byte in (0x02, *own[:5]))
    _ip("link", "add", "name", name, "address", hardware, "type", "bridge")
    _ip("addr", "add", address, "dev", name)
    _ip("link", "set", name, "up")


def remove_link(name: str) -> None:
    """Remove a bridge and the pods' ends that hang on it; nothing happens when it is gone."""
    if name not in _names():
        return
    for port in _names("master", name):
        _try("link", "del", port)
    _try("link", "del", name)
    if name in _names():
        raise EmbeddedError(f"the network link {name} cannot be removed")


def create_blackhole(network: str, metric: int) -> None:
    """Packets for ``network`` that no bridge takes end here instead of leaving the machine."""
    _ip("route", "add", "blackhole", network, "metric", str(metric))


def remove_blackhole(route: str) -> None:
    """Remove the route written as ``network metric``; the metric tells it from somebody else's."""
    network, metric = route.split()
    _try("route", "del", "blackhole", network, "metric", metric)


def routes() -> list[dict[str, Any]]:
    """Every IPv4 route, with ``dst``; none where there is no iproute2."""
    if shutil.which("ip", path=_PATH) is None:
        return []
    return cast("list[dict[str, Any]]", json.loads(_try("-4", "-json", "route").stdout or "[]"))


# A user's PATH may lack the folders of the administrator.
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


def _names(*which: str) -> list[str]:
    rows = json.loads(_try("-json", "link", "show", *which).stdout or "[]")
    return [row["ifname"] for row in rows if row]


def _ip(*arguments: str) -> None:
    done = _try(*arguments)
    if done.returncode:
        raise EmbeddedError(f"'ip {' '.join(arguments)}' failed: {done.stderr.strip()}")


def _try(*arguments: str) -> subprocess.CompletedProcess[str]:
    ip = shutil.which("ip", path=_PATH) or "ip"
    return subprocess.run([ip, *arguments], capture_output=True, text=True, check=False, timeout=30)
