"""The few calls the harness itself makes to the API server: JSON over TLS with a client certificate."""

from __future__ import annotations

import base64
import functools
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from controlplane.embedded.problems import EmbeddedError

Document = dict[str, Any]
_PATIENCE = 60.0  # seconds for one call


class ApiError(EmbeddedError):
    """The API server refused; ``status`` is its HTTP code, 0 when it did not answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Client:
    """Talks to ``server`` as the holder of ``<certificates>/<identity>.crt`` and ``.key``."""

    server: str
    certificates: Path
    identity: str

    def get(self, path: str) -> Document:
        """The object or list at ``path``."""
        return self._call("GET", path, None, "")

    def post(self, path: str, body: Document) -> Document:
        """Create an object."""
        return self._call("POST", path, body, "application/json")

    def merge(self, path: str, body: Document) -> Document:
        """Apply a merge patch."""
        return self._call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete an object, quietly where there is none."""
        try:
            self._call("DELETE", path, None, "")
        except ApiError as error:
            if error.status != 404:
                raise

    def is_ready(self, path: str = "/readyz") -> bool:
        """Whether the server answers ``path`` with success."""
        try:
            with urllib.request.urlopen(self.server + path, timeout=2, context=self.tls):
                return True
        except (OSError, ValueError):
            return False

    def _call(self, verb: str, path: str, body: Document | None, kind: str) -> Document:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data=data, method=verb)
        if kind:
            request.add_header("Content-Type", kind)
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE, context=self.tls) as answer:
                return cast(Document, json.load(answer))
        except urllib.error.HTTPError as refused:
            with refused:
                said = refused.read(2000).decode(errors="replace")
            raise ApiError(refused.code, f"{verb} {path} was refused ({refused.code}): {said}") from None
        except (OSError, ValueError) as error:
            raise ApiError(0, f"{verb} {path} failed: {error}") from error

    @functools.cached_property
    def tls(self) -> ssl.SSLContext:
        """For callers that need more than these few calls."""
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        context.load_cert_chain(
            str(self.certificates / f"{self.identity}.crt"), str(self.certificates / f"{self.identity}.key")
        )
        return context


def kubeconfig(server: str, certificates: Path, identity: str, name: str) -> Document:
    """A kubeconfig with everything inside, so that the file can be copied. ``name`` is that of its context."""

    def inline(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": inline(certificates / "ca.crt")}
    user = {
        "client-certificate-data": inline(certificates / f"{identity}.crt"),
        "client-key-data": inline(certificates / f"{identity}.key"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def write_private(path: Path, text: str) -> Path:
    """Write a file that only its owner reads, from its first byte on."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
    return path
