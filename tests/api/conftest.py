"""Three people with one token each, and a client that speaks JSON the way a pipeline does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client

from caches.sources.secrets import write_secret
from controlplane.accounts.models import Scope, User
from controlplane.accounts.services import token_create
from controlplane.audit.models import Via
from controlplane.audit.services import Actor
from tests.plugins.standing import standing

ROOT = "/api/v1/"
PASSPHRASE = "hunter2-of-nobody"
OPERATOR_SCOPES = (Scope.READ, Scope.MODELS_WRITE, Scope.PINS_WRITE, Scope.EVICT)


class Api:
    """Calls below /api/v1/ with a bearer token; every answer must carry the request id, every error a whole problem."""

    def __init__(self, secret: str | None, client: Client | None = None) -> None:
        self.client = client or Client()
        self.headers = {"Authorization": f"Bearer {secret}"} if secret is not None else {}

    def get(self, path: str, **kwargs: Any) -> Any:
        return self.call("GET", path, **kwargs)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> Any:
        return self.call("POST", path, body, **kwargs)

    def patch(self, path: str, body: Any = None, **kwargs: Any) -> Any:
        return self.call("PATCH", path, body, **kwargs)

    def delete(self, path: str, **kwargs: Any) -> Any:
        return self.call("DELETE", path, **kwargs)

    def call(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **kwargs: Any
    ) -> Any:
        response = self.client.generic(
            method,
            path if path.startswith("/") else ROOT + path,
            data=_encoded(body),
            content_type="application/json",
            headers={**self.headers, **(headers or {})},
            **kwargs,
        )
        check_answer(response)
        return response


def _encoded(body: Any) -> bytes:
    if body is None:
        return b""
    return body if isinstance(body, bytes) else json.dumps(body, default=str).encode()


def check_answer(response: Any) -> None:
    """What holds for every answer of the API."""
    assert response["X-Request-Id"]
    if response.status_code >= 400:
        assert response["Content-Type"] == "application/problem+json", response.content
        problem = response.json()
        assert problem["status"] == response.status_code
        assert problem["code"].count(":") == 2
        assert problem["detail"] and problem["next_step"] and problem["title"]
        assert problem["request_id"] == response["X-Request-Id"]
        assert isinstance(problem["errors"], list)


def api_for(user: User, *scopes: str, **limits: Any) -> Api:
    """A client with a fresh token of these scopes and limits."""
    actor = Actor(name="tests", via=Via.SYSTEM)
    _, secret = token_create(actor=actor, user=user, name="ci", scopes=scopes or (Scope.READ,), **limits)
    return Api(secret)


@pytest.fixture(autouse=True)
def signing_key(settings: Any, tmp_path: Path) -> None:
    """The secret that the webhooks of these tests name."""
    settings.SECRETS_DIR = tmp_path / "secrets"
    write_secret("hooks", {"signing_key": "x"}, settings.SECRETS_DIR)


@pytest.fixture
def viewer_api(viewer: User) -> Api:
    return api_for(viewer, Scope.READ)


@pytest.fixture
def operator_api(operator: User) -> Api:
    return api_for(operator, *OPERATOR_SCOPES)


@pytest.fixture
def admin_api(admin: User) -> Api:
    return api_for(admin, Scope.ADMIN)


@pytest.fixture
def anonymous_api(db: None) -> Api:
    return Api(None)


@standing
def populated() -> dict[str, str]:
    """Three different rows in every collection; what populate() says of them."""
    from tests.api.rows import populate  # which needs what is above

    return populate()


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """Two contexts; nobody listens at the address of either, and nobody can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{held.getsockname()[1]}"}}],
            "users": [{"name": "u", "user": {"token": PASSPHRASE}}],
            "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("blue", "green")],
            "current-context": "blue",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(document))
        yield path
