"""openapi.yaml, the browsable pages, links that lead somewhere, and a constant number of queries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from django.contrib.staticfiles.finders import find
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import resolve
from django.utils import timezone

from controlplane.accounts.models import User
from routing.models import RouterProcess
from tests import factories
from tests.api.conftest import Api

ROOT = Path(__file__).parents[2]
QUERIES = {
    "source-connections": 1,
    "clusters": 1,
    "node-pools": 1,
    "nodes": 4,
    "models": 1,
    "pins": 5,
    "cache-entries": 2,
    "operations": 1,
    "audit-events": 1,
    "tokens": 1,
    "webhooks": 1,
    "routing-policies": 1,
    "instances": 3,
    "routers": 2,
}
AUTHENTICATION = 2  # the token with its owner, and the owner's grants


def populate(times: int) -> None:
    for _ in range(times):
        pool = factories.pool()
        version = factories.version()
        for _ in range(2):
            factories.entry(on=factories.node(of=pool), of=version.artifact)
        factories.pin(of=version, pools=(pool, factories.pool()))
        variant = factories.variant(of=factories.endpoint(of=pool.cluster))
        variant.routing_policies.create(version=1, strategy="RANDOM", document={"RoutingStrategy": "RANDOM"})
        instance = factories.instance(of=variant.endpoint)
        RouterProcess.objects.create(name=instance.uid, started_at=timezone.now(), seen_at=timezone.now())


@pytest.mark.parametrize("name", QUERIES)
def test_it_asks_the_database_as_often_for_many_rows_as_for_few(admin_api: Api, name: str) -> None:
    admin_api.get("me")  # the first call of a minute also writes when the token was last used
    counts = []
    for times in (1, 4):
        populate(times)
        with CaptureQueriesContext(connection) as seen:
            assert admin_api.get(name).status_code == 200
        counts.append([query["sql"] for query in seen])

    assert len(counts[0]) == len(counts[1]), counts[1]
    assert len(counts[1]) == QUERIES[name] + AUTHENTICATION, counts[1]


def test_it_describes_every_address(admin_api: Api) -> None:
    document = yaml.safe_load((ROOT / "openapi.yaml").read_text())
    served = yaml.safe_load(admin_api.get("openapi").content)

    assert set(served["paths"]) == set(document["paths"])
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            keys = {parameter["name"] for parameter in operation.get("parameters", ())}
            assert {"400", "401", "403", "503"} <= set(operation["responses"]), (method, path)
            assert ("Idempotency-Key" in keys) == (method in ("post", "put")), (method, path)
            assert method not in ("put", "patch") or "If-Match" in keys, path
            for status, response in operation["responses"].items():
                if status >= "400":
                    assert "application/problem+json" in response["content"]


def test_it_shows_pages_that_need_nothing_from_elsewhere(viewer: User, client: Client, settings: Any) -> None:
    assert client.get("/api/v1/openapi").status_code == 401
    assert client.get("/api/v1/docs")["Location"].startswith("/login")
    client.force_login(viewer)

    page = client.get("/api/v1/docs")
    script = client.get("/api/v1/docs?script=")

    assert page.status_code == script.status_code == 200
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page.content.decode())
    assert addresses and all(urlsplit(address).netloc == "" for address in addresses)
    for address in addresses:
        static = address.startswith(settings.STATIC_URL)
        assert find(address.removeprefix(settings.STATIC_URL)) if static else resolve(urlsplit(address).path), address
    policy = page["Content-Security-Policy"]
    assert re.search(r"style-src [^;]*'unsafe-inline'", policy)
    assert not re.search(r"script-src [^;]*'unsafe-inline'", policy)
    assert "unsafe-inline" not in client.get("/api/v1/pins")["Content-Security-Policy"]


def test_it_links_every_object_to_a_page_that_exists(admin_api: Api) -> None:
    populate(1)
    models = [item["name"] for item in admin_api.get("models").json()["items"]]
    seen: list[Any] = []
    for name in (*QUERIES, f"models/{models[0]}/versions"):
        seen += [item["links"] for item in admin_api.get(name).json()["items"]]

    assert len(seen) > len(QUERIES)
    for links in seen:
        assert admin_api.get(urlsplit(links["self"]).path).status_code == 200
        assert resolve(urlsplit(links["ui"]).path).view_name
