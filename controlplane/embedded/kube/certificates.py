"""Certificates of one cluster: one authority, everything signed by it, all files of mode 0600."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.embedded import spawn

ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Certificates:
    """The folder they are in, and the program that signs."""

    folder: Path
    program: Path

    def issue(self, name: str, common_name: str, organization: str = "", addresses: Sequence[str] = ()) -> None:
        """Write ``<name>.crt`` and ``<name>.key``; the first call makes the authority."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        argv = [str(self.program), "certify", str(self.folder), name, common_name, organization, *addresses]
        spawn.run(argv, cwd=self.folder, what=f"Signing the certificate {name}")

    def issue_control_plane(self, addresses: Sequence[str]) -> None:
        """Everything a control plane needs; ``addresses`` are those the API server is called by."""
        own = ["127.0.0.1", "localhost"]
        self.issue("etcd", "etcd", addresses=own)
        self.issue("apiserver", "kube-apiserver", addresses=[*own, *addresses])
        self.issue("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        self.issue("controllers", "system:kube-controller-manager")
        self.issue("scheduler", "system:kube-scheduler")
        self.issue(ADMIN, "hearth-admin", "system:masters")
        # Only its key is used: it signs the tokens of service accounts.
        self.issue("service-accounts", "service-accounts")

    def issue_node(self, node: str) -> str:
        """The identity of a node's kubelet; returns the certificate's name."""
        name = f"node-{node}"
        self.issue(name, f"system:node:{node}", "system:nodes")
        return name

    def crt(self, name: str) -> str:
        """Path of a certificate."""
        return str(self.folder / f"{name}.crt")

    def key(self, name: str) -> str:
        """Path of a private key."""
        return str(self.folder / f"{name}.key")
