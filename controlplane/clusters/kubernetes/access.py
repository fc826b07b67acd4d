"""Where an API server is and how to be let in: a kubeconfig, the pod that this runs in, or files that are named.

The official client is imported only to read a kubeconfig, because it costs seconds and 60 MB: a node's agent does
without. Nothing is read before the first request.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import urllib3

from controlplane.clusters.gateway import Unreachable
from controlplane.clusters.kubernetes.sockets import closing

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 30.0  # how long a token that was read from a file is believed
CONNECTIONS = 16
# A connection that is cut without a word is noticed after half a minute, also while a watch is silent. While something
# sent is not acknowledged nobody is asked whether the connection is alive: that has a limit of its own.
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (
            ("TCP_KEEPIDLE", 10),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 4),
            ("TCP_USER_TIMEOUT", 30_000),
        )
        if hasattr(socket, name)
    ),
]


@dataclass(frozen=True, slots=True)
class Access:
    """``authorization`` is asked before every request and again, with True, after a 401; "" sends no header."""

    server: str  # https://host:port
    authorization: Callable[[bool], str]
    ca_file: str = ""  # "" trusts what the system trusts
    verify: bool = True
    certificate_file: str = ""
    key_file: str = ""
    server_name: str = ""  # what the certificate is issued for, when that is not the host
    proxy: str = ""

    def pool(self) -> urllib3.PoolManager:
        """Connections to this server; never follows a redirect, which could carry credentials elsewhere."""
        options: dict[str, object] = {
            "maxsize": CONNECTIONS,
            "cert_reqs": "CERT_REQUIRED" if self.verify else "CERT_NONE",
            "ca_certs": (self.ca_file or None) if self.verify else None,
            "cert_file": self.certificate_file or None,
            "key_file": self.key_file or None,
            "socket_options": [*urllib3.connection.HTTPConnection.default_socket_options, *KEEPALIVE],
        }
        if self.server_name:
            options |= {"server_hostname": self.server_name, "assert_hostname": self.server_name}
        if not self.server.startswith("https:"):
            options = {"maxsize": CONNECTIONS, "socket_options": options["socket_options"]}
        if self.proxy:
            return closing(urllib3.ProxyManager(self.proxy, **options))  # type: ignore[arg-type]
        return closing(urllib3.PoolManager(**options))  # type: ignore[arg-type]


class TokenFile:
    """A bearer token in a file that somebody rotates."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._header = ""
        self._read_at = -TOKEN_SECONDS

    def __call__(self, again: bool = False) -> str:
        with self._lock:
            if again or time.monotonic() - self._read_at >= TOKEN_SECONDS:
                try:
                    token = self._path.read_text().strip()
                except (OSError, UnicodeDecodeError) as error:
                    raise Unreachable(f"The token file {self._path} cannot be read: {type(error).__name__}.") from None
                self._header, self._read_at = f"Bearer {token}", time.monotonic()
            return self._header


def claimed_node(token_file: Path) -> tuple[str, str]:
    """Name and uid of the machine that a pod's token was made for, ("", "") where it does not say.

    Read, not verified: the API server does that. A pod knows its machine by it without asking anybody.
    """
    try:
        payload = token_file.read_text().strip().split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        node = claims["kubernetes.io"]["node"]
        return str(node["name"]), str(node["uid"])
    except (OSError, ValueError, LookupError, TypeError):
        return "", ""


def in_pod(server: str = "", *, token_file: Path | None = None, ca_file: Path | None = None) -> Access:
    """The account of the pod. ``server`` where pods cannot use the cluster's own address."""
    if not server:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise Unreachable("This is no pod: KUBERNETES_SERVICE_HOST is not set. Name the API server's address.")
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    ca_file = ca_file or ACCOUNT / "ca.crt"
    if server.startswith("https:") and not ca_file.is_file():
        raise Unreachable(f"There is no certificate authority in {ca_file}.")
    return Access(
        server=server.rstrip("/"), authorization=TokenFile(token_file or ACCOUNT / "token"), ca_file=str(ca_file)
    )


def from_kubeconfig(path: Path, context: str = "") -> Access:
    """One context of a kubeconfig (the current one by default), credential plugins included."""
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_kube_config(
            config_file=str(path), context=context or None, client_configuration=configuration, persist_config=False
        )
    except Exception as error:  # the loader raises whatever the file makes it raise
        raise Unreachable(f"The kubeconfig {path} cannot be used: {str(error) or type(error).__name__}") from None

    def authorization(again: bool) -> str:
        try:
            return str(configuration.get_api_key_with_prefix("authorization") or "")
        except Exception as error:
            raise Unreachable(f"The kubeconfig {path} gives no credentials: {type(error).__name__}.") from None

    return Access(
        server=str(configuration.host).rstrip("/"),
        authorization=authorization,
        ca_file=configuration.ssl_ca_cert or "",
        verify=bool(configuration.verify_ssl),
        certificate_file=configuration.cert_file or "",
        key_file=configuration.key_file or "",
        server_name=configuration.tls_server_name or "",
        proxy=configuration.proxy or "",
    )


def access_for(address: str) -> Access:
    """``in-cluster``, ``<kubeconfig>`` or ``<kubeconfig>#<context>``."""
    if address == "in-cluster":
        return in_pod()
    path, _, context = address.partition("#")
    return from_kubeconfig(Path(path).expanduser(), context)
