"""A registry's border where the real one cannot be asked here: authentication, limits, redirects and broken answers.

The real registry answers everything else (tests/sources/test_registry.py). Tokens come from a second server, as they do
where many registries share one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.standins.serving import Asked, Said, Server, ranged, serving

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class RegistryStandIn:
    """``auth`` is "", "basic" or "bearer"; ``user`` and ``password`` count. ``fault(asked)`` answers first."""

    user, password = "reader-7", "p%ss:word-7"

    def __init__(self, auth: str = "") -> None:
        self.auth = auth
        self.documents: dict[str, tuple[str, bytes]] = {}  # by tag and digest: media type and content
        self.blobs: dict[str, bytes] = {}
        self.tokens: dict[str, str] = {}  # what was given, and for which scope
        self.fault: Callable[[Asked], Said | None] = lambda asked: None
        self.token_answer: Callable[[str], dict[str, Any]] = lambda token: {"token": token, "expires_in": 300}
        self.api, self.realm = Server(self._answer), Server(self._token)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.api.port}"

    def blob(self, content: bytes, kind: str) -> dict[str, Any]:
        self.blobs[digest_of(content)] = content
        return {"mediaType": kind, "digest": digest_of(content), "size": len(content)}

    def document(self, content: dict[str, Any], kind: str, *tags: str) -> str:
        body = json.dumps(content).encode()
        for name in (digest_of(body), *tags):
            self.documents[name] = kind, body
        return digest_of(body)

    def image(self, *layers: tuple[bytes, str], architecture: str = "amd64", tag: str = "") -> str:
        """A manifest of these layers (content and what follows the media type), under a tag if one is given."""
        config = self.blob(json.dumps({"os": "linux", "architecture": architecture}).encode(), CONFIG)
        blobs = [self.blob(content, f"{LAYER}{packing}") for content, packing in layers]
        content = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": blobs}
        return self.document(content, MANIFEST, *([tag] if tag else []))

    def index(self, tag: str, **platforms: str) -> str:
        """An index; ``platforms`` are digests by architecture, and "unknown" is an attestation."""
        entries = [
            {
                "mediaType": MANIFEST,
                "digest": digest,
                "size": len(self.documents[digest][1]),
                "platform": {"os": "unknown" if name == "unknown" else "linux", "architecture": name},
            }
            for name, digest in platforms.items()
        ]
        return self.document({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}, INDEX, tag)

    def _answer(self, asked: Asked) -> Said:
        if (said := self.fault(asked)) is not None:
            return said
        if not self._may(asked):
            return Said(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', {"WWW-Authenticate": self._challenge()})
        if asked.path == "/v2/":
            return Said(200, b"{}")
        name = asked.path.rpartition("/")[2]
        if "/blobs/" in asked.path:
            return ranged(asked, self.blobs[name], {}) if name in self.blobs else Said(404)
        if name not in self.documents:
            return Said(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
        kind, body = self.documents[name]
        return Said(200, body, {"Content-Type": kind, "Docker-Content-Digest": digest_of(body)})

    def _challenge(self) -> str:
        if self.auth == "basic":
            return 'Basic realm="registry"'
        return f'Bearer realm="{self.realm.url}/token?x=1",service="the registry, here",scope="registry:catalog:*"'

    def _may(self, asked: Asked) -> bool:
        sent = asked.headers.get("authorization", "")
        if self.auth == "basic":
            return sent == self._basic()
        return not self.auth or sent.removeprefix("Bearer ") in self.tokens

    def _basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    def _token(self, asked: Asked) -> Said:
        if asked.headers.get("authorization", "") not in ("", self._basic()):
            return Said(401, b"{}")
        token = secrets.token_hex(8)
        self.tokens[token] = asked.query.get("scope", "")
        return Said(200, json.dumps(self.token_answer(token)).encode())


@contextmanager
def registry_stand_in(auth: str = "") -> Iterator[RegistryStandIn]:
    standing = RegistryStandIn(auth)
    with serving(standing.api, standing.realm):
        yield standing
