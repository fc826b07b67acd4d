"""Every error has one shape, wherever it comes from, and says no more than it should."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from controlplane.accounts.models import User
from controlplane.audit.models import AuditEvent
from tests.api.conftest import Api


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nothing", 404, "request:user:no-such-address"),
        ("GET", "/api/v2/pins", 404, "request:user:no-such-address"),
        ("GET", "/api/v1/pins/", 404, "request:user:no-such-address"),
        ("GET", "/api/v1/pins/01a228ac-bd6d-7055-847c-9529d6e50fbf", 404, "pin:user:not-found"),
        ("GET", "/api/v1/pins/not-a-uuid", 404, "request:user:no-such-address"),
        ("GET", "/api/v1/nodes/01a228ac-bd6d-7055-847c-9529d6e50fbf", 404, "request:user:not-found"),
        ("DELETE", "/api/v1/pins", 405, "request:user:method"),
        ("PUT", "/api/v1/me", 405, "request:user:method"),
        ("OPTIONS", "/api/v1/pins", 405, "request:user:method"),
    ],
)
def test_it_answers_a_wrong_address_or_method_with_a_problem(
    admin_api: Api, method: str, path: str, status: int, code: str
) -> None:
    answer = admin_api.call(method, path)

    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "request:user:malformed"),
        (b'{"model": NaN}', 400, "request:user:malformed"),
        (b'{"model": "\xff"}', 400, "request:user:malformed"),
        (b"[" * 100_000, 400, "request:user:malformed"),
        (b"[]", 400, "request:user:invalid"),
        (b'"text"', 400, "request:user:invalid"),
        (b"{}", 400, "request:user:invalid"),
        (b'{"model": "\\u0000", "version": "1", "pools": ["a.b"]}', 400, "request:user:invalid"),
        (b" " * 2_700_000, 413, "request:user:too-large"),
    ],
)
def test_it_answers_a_body_it_cannot_use_with_a_problem(operator_api: Api, body: bytes, status: int, code: str) -> None:
    answer = operator_api.post("pins", body)

    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_it_names_every_wrong_field_by_its_path(operator_api: Api) -> None:
    body = {"model": "m", "version": "1", "pools": [], "gate": {"type": "Percent", "value": 101}, "prio": 1}

    errors = operator_api.post("pins", body).json()["errors"]

    assert {error["field"] for error in errors} == {"pools", "gate.value"}
    body |= {"pools": ["a.b"], "gate": {"type": "All"}}
    [typo] = operator_api.post("pins", body).json()["errors"]
    assert (typo["field"], typo["code"]) == ("prio", "unknown")
    assert "priority" in typo["detail"]


@pytest.mark.parametrize(
    "query",
    [
        "stat=Failed",
        "state=failed",
        "page_size=501",
        "page_size=-1",
        "page_size=٣",
        "ordering=artifact__manifest",
        "cursor=AAAA",
        "node_id=1",
        "node=%00",
    ],
)
def test_it_refuses_a_parameter_that_it_would_otherwise_ignore(viewer_api: Api, query: str) -> None:
    answer = viewer_api.get(f"cache-entries?{query}")

    assert answer.status_code == 400
    assert query.split("=")[0] in answer.json()["errors"][0]["field"]


@pytest.mark.parametrize("query", ["dry_run=yes", "wait=301", "wait=x", "wait=-1", "wait=1e2", "dry=true"])
def test_it_refuses_a_switch_that_it_cannot_read(operator_api: Api, query: str) -> None:
    answer = operator_api.delete(f"pins/01a228ac-bd6d-7055-847c-9529d6e50fbf?{query}")

    assert answer.status_code in (400, 404)
    assert answer.status_code == 404 or answer.json()["errors"][0]["field"] == query.split("=")[0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "models/x/versions/%00"),
        ("DELETE", "models/x/versions/%00"),
        ("POST", "models/x/versions/%00/recheck"),
        ("GET", "models/x/versions/%00/manifest"),
        ("GET", "models/x/versions/%00/why-not-warm"),
        ("GET", "node-pools/%00"),
        ("PATCH", "node-pools/a.%00"),
        ("GET", "webhooks/%00"),
        ("GET", "models?%00=1"),
    ],
)
def test_it_refuses_nul_in_an_address(admin_api: Api, method: str, path: str) -> None:
    answer = admin_api.call(method, path, {} if method in ("POST", "PATCH") else None)

    assert (answer.status_code, answer.json()["code"]) == (400, "request:user:nul")


@pytest.mark.parametrize("address", ["/models?q=%00", "/models/%00", "/static/%00", "/%00"])
def test_it_shows_an_error_page_for_nul_in_an_address(admin: User, address: str) -> None:
    client = Client()
    client.force_login(admin)

    answer = client.get(address)

    assert answer.status_code == 400
    assert b"That request cannot be used" in answer.content


def test_it_redacts_what_it_did_not_expect(viewer_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**kwargs: Any) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("caches.api.pins.pins_list", broken)

    answer = viewer_api.get("pins")

    assert answer.status_code == 500
    assert answer.json()["code"] == "request:hearth:internal"
    assert b"hunter2" not in answer.content


def test_it_says_when_to_come_back_while_the_database_is_away(viewer_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**kwargs: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("caches.api.pins.pins_list", away)

    answer = viewer_api.get("pins")

    assert (answer.status_code, answer.json()["code"]) == (503, "database:hearth:unavailable")
    assert int(answer["Retry-After"]) > 0


def test_it_answers_errors_as_problems_even_to_those_who_ask_for_csv(viewer_api: Api) -> None:
    assert viewer_api.get("pins.csv?page_size=0").status_code == 400
    assert viewer_api.get("pins", headers={"Accept": "text/csv"}).status_code == 200
    assert viewer_api.get("pins", headers={"Accept": "image/png"}).status_code == 406


@pytest.mark.parametrize("given", ["build-42.retry:1", "x" * 64])
def test_it_echoes_a_request_id_and_audits_under_it(operator_api: Api, client: Client, given: str) -> None:
    from controlplane.accounts.models import User

    client.force_login(User.objects.get(username="olga"))
    answer = Api(None, client).post("tokens", {"name": "x", "scopes": ["read"]}, headers={"X-Request-Id": given})

    assert answer["X-Request-Id"] == given
    assert AuditEvent.objects.filter(request_id=given).count() == 1


@pytest.mark.parametrize("given", ["x" * 65, "a b", "é", "<script>"])
def test_it_replaces_a_request_id_that_is_not_plain(viewer_api: Api, given: str) -> None:
    answer = viewer_api.get("pins", headers={"X-Request-Id": given})

    assert len(answer["X-Request-Id"]) == 36 and answer["X-Request-Id"] != given
