"""Every address with every method, and with names of things that do not exist."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import time_machine
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import User
from tests.api.conftest import Api, api_for
from tests.api.rows import NAMES, NOWHERE, description, filled, operations, parameters
from tests.api.test_scopes import call

pytestmark = pytest.mark.thorough

PATHS = sorted(description())
UNKNOWN = dict.fromkeys(
    (
        "endpoint_id",
        "entry_id",
        "event_id",
        "image_id",
        "instance_id",
        "launch_id",
        "model",
        "node_id",
        "operation_id",
        "pin_id",
        "policy_id",
        "rollout_id",
        "router_id",
        "token_id",
        "variant",
        "version",
    ),
    NOWHERE,
)


@pytest.mark.parametrize("path", PATHS)
def test_it_answers_405_to_every_method_that_it_does_not_describe(admin_api: Api, path: str) -> None:
    place, described = filled(path, UNKNOWN), {method.upper() for method in description()[path]}

    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"} - described:
        answer = admin_api.call(method, place)
        assert (answer.status_code, answer.json()["code"]) == (405, "request:user:method"), method
        allowed = set(answer["Allow"].split(", ")) - {"HEAD"}
        assert allowed == described, method
        assert method in answer.json()["detail"]


@pytest.mark.parametrize(("method", "path"), [one for one in operations() if "{" in one[1]])
def test_it_answers_404_for_what_does_not_exist(admin_api: Api, method: str, path: str) -> None:
    place = path.format_map({**UNKNOWN, "name": "nowhere"})
    if (method, path) in (("POST", "models/{model}/versions"), ("POST", "launches/{launch_id}/phases")):
        return  # a model comes into being with its first version, a launch with what is first said of it

    answer = call(admin_api, method, place)

    assert answer.status_code == 404, answer.content
    assert answer.json()["code"].endswith(("not-found", "missing")), answer.content
    assert answer.json()["errors"] == []


def test_it_answers_head_like_get_without_the_body(admin: User, populated: dict[str, str]) -> None:
    api = api_for(admin, "admin")
    for path in (path for path in PATHS if "get" in description()[path]):
        place = filled(path, populated)
        query = "?wait=0" if "wait" in parameters(path) else "?page_size=1" if "page_size" in parameters(path) else ""

        with time_machine.travel(timezone.now(), tick=False):  # a cursor holds the second in which it was made
            get = api.get(place + query)
            # Not through Api.call, which looks for a body.
            head = api.client.head(f"/api/v1/{place}{query}", headers=api.headers)

        assert (head.status_code, head.content) == (get.status_code, b""), path
        for name in ("Content-Type", "ETag", "Location", "Link", "Allow"):
            assert head.get(name) == get.get(name), (path, name)


@pytest.mark.parametrize("path", PATHS)
def test_it_refuses_a_parameter_nobody_reads_on_every_call(admin_api: Api, path: str) -> None:
    for method in description()[path]:
        answer = call(admin_api, method.upper(), f"{filled(path, UNKNOWN)}?dryrun=true")
        assert (answer.status_code, answer.json()["code"]) == (400, "request:user:unknown-parameter"), method
        assert answer.json()["errors"] == [
            {"field": "dryrun", "code": "unknown", "detail": "There is no such parameter."}
        ]
        offered = set(parameters(path, method)) | {"format"}
        assert (
            set(answer.json()["next_step"].removeprefix("Leave it out; this call takes ").rstrip(".").split(", "))
            == offered
        )


@pytest.mark.parametrize(
    ("path", "format", "offered"),
    [
        ("pins", "xml", "json, csv"),
        ("pins", "CSV", "json, csv"),
        ("me", "csv", "json"),
        (f"pins/{NOWHERE}", "csv", "json"),
    ],
)
def test_it_names_the_formats_there_are(admin_api: Api, path: str, format: str, offered: str) -> None:
    answer = admin_api.get(f"{path}?format={format}")

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "format")
    assert offered in answer.json()["detail"]


@pytest.mark.parametrize(
    ("accept", "type_", "status"),
    [
        ("text/csv", "text/csv; charset=utf-8", 200),
        ("text/csv;q=0.9, application/xml", "text/csv; charset=utf-8", 200),
        ("application/json, text/csv", "application/json", 200),
        ("*/*", "application/json", 200),
        ("text/*", "text/csv; charset=utf-8", 200),
        ("application/xml", "application/problem+json", 406),
        ("nonsense", "application/problem+json", 406),
    ],
)
def test_it_answers_in_the_form_that_is_accepted(admin_api: Api, accept: str, type_: str, status: int) -> None:
    answer = admin_api.get("webhooks", headers={"Accept": accept})

    assert (answer.status_code, answer["Content-Type"]) == (status, type_)


def test_it_names_the_pool_and_cluster_by_more_than_a_part_of_their_names(
    admin_api: Api, populated: dict[str, str]
) -> None:
    cluster, pool = NAMES["node-pools"].split(".")

    for name in (pool, cluster, f"{cluster}.", f".{pool}", f"{cluster}.{pool}.x", f"{cluster}.{pool.upper()}"):
        assert admin_api.get(f"node-pools/{name}").status_code == 404, name
    assert admin_api.get(f"node-pools/{cluster}.{pool}").json()["name"] == f"{cluster}.{pool}"


@pytest.mark.parametrize(("method", "path"), [(m, p) for m, p in operations() if "{" in p and "_id}" not in p])
def test_it_says_which_names_are_allowed_where_the_address_has_none(admin_api: Api, method: str, path: str) -> None:
    for field in ("model", "version", "name"):
        if f"{{{field}}}" not in path:
            continue
        fine = {"model": "m", "version": "1", "name": "n"}
        for wrong in ("modèle", "a b", "x" * 128):
            answer = call(admin_api, method, path.format_map({**fine, field: quote(wrong)}))

            assert (answer.status_code, answer.json()["code"]) == (400, "request:user:name"), (path, wrong)
            (error,) = answer.json()["errors"]
            assert error["field"] == field and "digits" in error["detail"] and "at most" in answer.json()["detail"]


def test_it_says_nothing_about_names_to_a_stranger() -> None:
    assert Client().get("/api/v1/models/a%20b").status_code == 401
