"""How containerd, its bridge and the kubelet of one node are configured.

Every node sees its own file systems at the paths below, in a mount namespace of its own, so that several nodes on
one machine share no socket, no log and no cache, and a path on the host means a different place on each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.embedded.kube.network import Network

SOCKET = "/run/containerd.sock"
KUBELET_ROOT = "/var/lib/kubelet"
KUBELET_PORT = 10250
MOST_PODS = 60
PLUGINS = "/usr/lib/cni"
# Features that need devices, file systems or services which are not here.
_WITHOUT = ("snapshotter.v1.aufs", "snapshotter.v1.btrfs", "snapshotter.v1.zfs", "snapshotter.v1.devmapper")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the files of one node name: its folder, its place in the network, its bridge and control group."""

    name: str
    folder: Path
    index: int
    network: Network
    bridge: str
    cgroup: str
    registry: str
    pause_image: str

    @property
    def address(self) -> str:
        """The node's own address."""
        return self.network.gateway(self.index)

    def containerd(self) -> str:
        """Containerd's configuration."""
        disabled = json.dumps([f"io.containerd.{name}" for name in _WITHOUT])
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""version = 2
root = {json.dumps(str(self.folder / "containerd"))}
state = "/run/containerd"
disabled_plugins = {disabled}
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "/run/containerd-opt"
[{cri}]
sandbox_image = "{self.pause_image}"
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
netns_mounts_under_state_dir = true
[{cri}.registry]
config_path = {json.dumps(str(self.folder / "registries"))}
[{cri}.cni]
bin_dir = "{PLUGINS}"
conf_dir = {json.dumps(str(self.folder / "cni"))}
[{cri}.containerd]
default_runtime_name = "runc"
discard_unpacked_layers = true
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""

    def registries(self) -> str:
        """How containerd reaches the cluster's registry: plain HTTP on loopback."""
        server = f"http://{self.registry}"
        return f'server = "{server}"\n[host."{server}"]\ncapabilities = ["pull", "resolve"]\n'

    def cni(self) -> str:
        """The pods' network: the node's bridge, and no way out of the cluster."""
        addresses = {
            "type": "host-local",
            "dataDir": str(self.folder / "addresses"),
            "ranges": [[{"subnet": self.network.node(self.index), "gateway": self.address}]],
            "routes": [{"dst": self.network.whole}],
        }
        bridge = {"type": "bridge", "bridge": self.bridge, "isGateway": True, "hairpinMode": True, "ipam": addresses}
        return json.dumps({"cniVersion": "1.0.0", "name": self.bridge, "plugins": [bridge]}, indent=1)

    def kubelet(self, authority: str) -> str:
        """The kubelet's configuration; ``authority`` signs whom it obeys."""
        document: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": KUBELET_PORT,
            "readOnlyPort": 0,
            "healthzBindAddress": self.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": authority},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            "resolvConf": "",
            "maxPods": MOST_PODS,
            # The machine's disk is everybody's: only a truly full one may evict pods.
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "makeIPTablesUtilChains": False,
            "serializeImagePulls": False,
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 16,
            "syncFrequency": "10s",
            "shutdownGracePeriod": "0s",
        }
        return json.dumps(document, indent=1)

    def write(self, authority: str) -> None:
        """Write every file into the node's folder."""
        files = {
            "containerd.toml": self.containerd(),
            "cni/10-bridge.conflist": self.cni(),
            f"registries/{self.registry}/hosts.toml": self.registries(),
            "kubelet.json": self.kubelet(authority),
        }
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
