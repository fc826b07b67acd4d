"""etcd, API server, scheduler and controller manager: how each is run."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from controlplane.embedded import ports
from controlplane.embedded.kube import api
from controlplane.embedded.kube.binaries import Binaries
from controlplane.embedded.kube.certificates import ADMIN, Certificates
from controlplane.embedded.kube.network import Network
from controlplane.embedded.processes import Spec

ETCD, API_SERVER, SCHEDULER, CONTROLLERS = "etcd", "apiserver", "scheduler", "controllers"
# The defaults of 20 requests a second make a fleet of 1,000 nodes wait for minutes.
_RATES = {"kube-api-qps": "1000", "kube-api-burst": "2000"}
# Seconds after which a silent node counts as gone; the default of 50 suits wide networks. Kubelets report every 4 s.
SILENCE = 20


class ControlPlane:
    """The four servers of one cluster on free loopback ports. Everything is private to the folder's owner."""

    def __init__(self, folder: Path, binaries: Binaries, network: Network, silence: int = SILENCE) -> None:
        self.folder = folder
        self._silence = silence
        self.network = network
        self.certificates = Certificates(folder / "pki", binaries.control_plane)
        self._program = str(binaries.control_plane)
        self._etcd, self._peer, self._api, self._scheduler, self._controllers = ports.free_ports(5)
        self.server = f"https://{ports.HOST}:{self._api}"
        self.port = self._api

    def prepare(self) -> Path:
        """Sign certificates and write kubeconfigs; returns the administrator's."""
        self.certificates.issue_control_plane(
            [self.network.service_address, "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        )
        for identity in (SCHEDULER, CONTROLLERS):
            self.write_kubeconfig(identity, self.certificates.folder / f"{identity}.kubeconfig")
        return self.write_kubeconfig(ADMIN, self.folder / "admin.kubeconfig")

    def write_kubeconfig(self, identity: str, path: Path) -> Path:
        """A kubeconfig file of mode 0600 for the holder of a certificate."""
        document = api.kubeconfig(self.server, self.certificates.folder, identity, "hearth")
        return api.write_private(path, json.dumps(document, indent=1) + "\n")

    @property
    def client(self) -> api.Client:
        """Calls the API server as the administrator."""
        return api.Client(self.server, self.certificates.folder, ADMIN)

    def etcd_spec(self) -> Spec:
        """The database; only the API server and ``compact`` have its certificate."""
        url, peer = f"https://{ports.HOST}:{self._etcd}", f"https://{ports.HOST}:{self._peer}"
        crt, key, authority = self.certificates.crt(ETCD), self.certificates.key(ETCD), self.certificates.crt("ca")
        options = {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "cert-file": crt,
            "key-file": key,
            "trusted-ca-file": authority,
            "client-cert-auth": "true",
            "peer-cert-file": crt,
            "peer-key-file": key,
            "peer-trusted-ca-file": authority,
            "peer-client-cert-auth": "true",
            # A killed process loses nothing by it; a machine that lost power starts a new cluster anyway.
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
        return self._spec(ETCD, options, api.Client(url, self.certificates.folder, ETCD), "/health")

    def api_spec(self) -> Spec:
        """The API server, with the authorizers and admission of a production cluster."""
        crt, key, authority = self.certificates.crt, self.certificates.key, self.certificates.crt("ca")
        options = {
            "etcd-servers": f"https://{ports.HOST}:{self._etcd}",
            "etcd-cafile": authority,
            "etcd-certfile": crt(ETCD),
            "etcd-keyfile": key(ETCD),
            "bind-address": ports.HOST,
            "advertise-address": self.network.service_address,
            "secure-port": str(self._api),
            "tls-cert-file": crt(API_SERVER),
            "tls-private-key-file": key(API_SERVER),
            "client-ca-file": authority,
            "kubelet-client-certificate": crt("kubelet-client"),
            "kubelet-client-key": key("kubelet-client"),
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key("service-accounts"),
            "service-account-signing-key-file": key("service-accounts"),
            "service-cluster-ip-range": self.network.services,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "endpoint-reconciler-type": "none",
            "profiling": "false",
        }
        return self._spec(API_SERVER, options, self.client, "/readyz")

    def scheduler_spec(self) -> Spec:
        """The scheduler, alone and therefore always leader."""
        return self._controller(SCHEDULER, self._scheduler, {})

    def controllers_spec(self) -> Spec:
        """The controller manager without the loops that need a cloud."""
        options = {
            "use-service-account-credentials": "true",
            "service-account-private-key-file": self.certificates.key("service-accounts"),
            "root-ca-file": self.certificates.crt("ca"),
            "node-monitor-period": "2s",
            "node-monitor-grace-period": f"{self._silence}s",
            "controllers": "*,-node-ipam-controller,-cloud-node-lifecycle-controller,-node-route-controller,"
            "-service-lb-controller",
        }
        return self._controller(CONTROLLERS, self._controllers, options)

    def door_spec(self) -> Spec:
        """How pods reach the API server: its service address leads to loopback, where it listens."""
        options = {
            "listen-addr": f"{self.network.service_address}:443",
            "endpoints": f"{ports.HOST}:{self._api}",
            # It leaves a stopped API server alone for this long; the default is a minute.
            "retry-delay": "500ms",
        }
        argv = [self._program, ETCD, "gateway", "start", *(f"--{key}={value}" for key, value in options.items())]
        probe = api.Client(f"https://{self.network.service_address}", self.certificates.folder, ADMIN)
        return Spec(name="door", argv=argv, cwd=self.folder, ready=lambda: probe.is_ready("/readyz"), stop_within=3.0)

    def way_in_spec(self, name: str, port: int) -> Spec:
        """How pods reach a server of this machine: at the same port of the address where the API server is for them."""
        address = self.network.service_address
        argv = [sys.executable, "-m", "controlplane.embedded.kube.door", f"{address}:{port}", f"{ports.HOST}:{port}"]
        return Spec(
            name=f"{name}-door",
            argv=[*argv, self.network.whole],
            ready=lambda: ports.is_listening(port, address=address),
            stop_within=3.0,
        )

    def compact(self) -> int:
        """Forget every revision but the last; returns it. The API server must be running or stopped, either will do."""
        etcd = api.Client(f"https://{ports.HOST}:{self._etcd}", self.certificates.folder, ETCD)
        key = base64.b64encode(b"\0").decode()
        revision = int(etcd.post("/v3/kv/range", {"key": key})["header"]["revision"])
        etcd.post("/v3/kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def _controller(self, name: str, port: int, options: dict[str, str]) -> Spec:
        common = {
            "kubeconfig": str(self.certificates.folder / f"{name}.kubeconfig"),
            "leader-elect": "false",
            "bind-address": ports.HOST,
            "secure-port": str(port),
            "tls-cert-file": self.certificates.crt(ETCD),
            "tls-private-key-file": self.certificates.key(ETCD),
            "profiling": "false",
        }
        probe = api.Client(f"https://{ports.HOST}:{port}", self.certificates.folder, ADMIN)
        return self._spec(name, {**common, **_RATES, **options}, probe, "/healthz")

    def _spec(self, name: str, options: dict[str, str], probe: api.Client, path: str) -> Spec:
        return Spec(
            name=name,
            argv=[self._program, name, *(f"--{key}={value}" for key, value in options.items())],
            cwd=self.folder,
            ready=lambda: probe.is_ready(path),
            ready_within=150.0,
            # Nothing it holds is worth waiting for: the next start begins anew.
            stop_within=3.0,
        )
