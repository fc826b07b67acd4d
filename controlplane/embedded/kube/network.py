"""Which addresses a cluster uses: one private /16 that nothing else on the machine uses.

The upper half belongs to services (its first address is the API server as pods see it), the lower half to pods, a
/24 for each node.
"""

from __future__ import annotations

import fcntl
import ipaddress
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from controlplane.embedded.kube import links
from controlplane.embedded.problems import EmbeddedError

_CHOICES = range(200, 232)
MOST_NODES = 120


@dataclass(frozen=True, slots=True)
class Network:
    """Addresses of one cluster: 10.``slot``.0.0/16."""

    slot: int

    @property
    def whole(self) -> str:
        """Everything of this cluster."""
        return f"10.{self.slot}.0.0/16"

    @property
    def services(self) -> str:
        """The range of cluster IPs."""
        return f"10.{self.slot}.128.0/17"

    @property
    def service_address(self) -> str:
        """The API server as pods see it: the first address of the services, by Kubernetes' rule."""
        return f"10.{self.slot}.128.1"

    def node(self, index: int) -> str:
        """The pods of a node."""
        return f"10.{self.slot}.{index}.0/24"

    def gateway(self, index: int) -> str:
        """The node's own address, on its bridge."""
        return f"10.{self.slot}.{index}.1"


@dataclass(slots=True)
class Claim:
    """A network that is ours while this object is held; ends with the process at the latest."""

    network: Network
    _lock: IO[str]

    def release(self) -> None:
        """Let others have it."""
        self._lock.close()


def claim() -> Claim:
    """The first free network. Raises EmbeddedError when every one is taken."""
    taken = [ipaddress.ip_network(row["dst"]) for row in links.routes() if row["dst"] != "default"]
    for slot in _CHOICES:
        network = Network(slot)
        # What a killed owner left behind is still routed, until its folder is started or cleaned again.
        if any(ipaddress.ip_network(network.whole).overlaps(route) for route in taken):
            continue
        lock = (Path(tempfile.gettempdir()) / f"hearth-kube-network-{slot}.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return Claim(network, lock)
    raise EmbeddedError(
        f"Every network from 10.{_CHOICES[0]}.0.0/16 to 10.{_CHOICES[-1]}.0.0/16 is taken. "
        "List them with 'ip route'; what an earlier cluster left goes with "
        "'python -m controlplane.embedded.kube clean FOLDER'."
    )
