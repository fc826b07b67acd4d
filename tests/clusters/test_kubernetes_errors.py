"""Refusals of an API server, word for word as it writes them, become the errors that callers decide by."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.clusters.gateway import (
    Conflict,
    Forbidden,
    GatewayError,
    Gone,
    NoNamespace,
    NotFound,
    Refused,
    Throttled,
    Unreachable,
)
from controlplane.clusters.kubernetes.errors import LONGEST_RETRY_SECONDS, Invalid, refusal, retry_after, status_error

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
NODES = "/api/v1/nodes/n-1"


def refused(status: int, document: object = None, *, path: str = NODES, **headers: str) -> GatewayError:
    body = document if isinstance(document, bytes) else json.dumps(document or {}).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return refusal(status, names, body, method="GET", path=path, now=NOW)


def conflict_between(*causes: tuple[str, str]) -> dict[str, Any]:
    rows = [{"reason": "FieldManagerConflict", "field": field, "message": message} for field, message in causes]
    return {"kind": "Status", "reason": "Conflict", "message": "Apply failed", "details": {"causes": rows}}


def test_a_namespace_that_is_not_there_is_named_and_nothing_else() -> None:
    said = {"message": 'namespaces "nosuch" not found', "details": {"name": "nosuch", "kind": "namespaces"}}
    error = refused(404, said, path="/apis/apps/v1/namespaces/nosuch/deployments/a")
    assert type(error) is NoNamespace and str(error) == "The namespace nosuch is not there."
    assert type(refused(404, said, path="/api/v1/namespaces/nosuch")) is NotFound, "the object itself was asked for"
    assert type(refused(404, {"details": "odd"}, path="/apis/apps/v1/namespaces/nosuch/x")) is NotFound


@pytest.mark.parametrize(
    ("status", "document", "kind", "says"),
    [
        (400, {"message": "bad"}, Invalid, "bad"),
        (401, {"message": "Unauthorized"}, Refused, "credentials"),
        (403, {"message": 'nodes is forbidden: User x cannot list resource "nodes"'}, Forbidden, "account"),
        (403, {"message": 'pods "x" is forbidden: exceeded quota: few', "reason": "Forbidden"}, Refused, "quota"),
        (404, {"message": 'nodes "n-1" not found', "details": {"name": "n-1"}}, NotFound, "n-1"),
        (409, {"message": "the object has been modified"}, Conflict, "modified"),
        (409, {"message": 'nodes "n-1" already exists', "reason": "AlreadyExists"}, Conflict, "already exists"),
        (410, {"message": "too old resource version: 1 (2)", "reason": "Expired"}, Gone, "too old"),
        (422, {"message": "spec.x: Invalid value"}, Invalid, "Invalid value"),
        (429, {"message": "too many requests"}, Throttled, "too many"),
        (
            500,
            {"message": "failed to create typed patch object (default/a): .spec.replicas: expected"},
            Invalid,
            "replicas",
        ),
        (500, {"message": "etcdserver: leader changed"}, Unreachable, "leader changed"),
        (502, b"<html>bad gateway</html>", Unreachable, "bad gateway"),
        (503, b"", Unreachable, "503"),
        (504, {"message": "Timeout: Too large resource version: 9, current: 3"}, Gone, "Too large"),
        (504, {"details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}, Gone, "504"),
        (504, {"message": "request did not complete within the timeout"}, Unreachable, "timeout"),
        (302, b"", Refused, "302"),
        (500, [1, 2], Unreachable, "500"),
        (500, {"message": 7, "details": "odd"}, Unreachable, "500"),
        (409, {"details": {"causes": ["odd", None]}}, Conflict, "409"),
    ],
)
def test_it_reads_every_refusal(status: int, document: object, kind: type[GatewayError], says: str) -> None:
    error = refused(status, document)
    assert type(error) is kind
    assert says in str(error)
    assert NODES in str(error)


def test_it_names_who_else_holds_a_field() -> None:
    error = refused(
        409,
        conflict_between(
            (".spec.limits", 'conflict with "kubectl-edit" using cache.hearth.dev/v1alpha1'),
            (".spec.pool", 'conflict with "other \'s" with subresource "x" using v1'),
            (".spec.desired", 'conflict with "kubectl-edit"'),
        ),
    )
    assert isinstance(error, Conflict)
    assert error.managers == ("kubectl-edit", "other 's")
    for word in ("kubectl-edit", "spec.limits", "spec.pool", "spec.desired"):
        assert word in str(error)


def test_it_stays_short_when_everything_is_contested() -> None:
    error = refused(409, conflict_between(*((f".spec.f{n}", 'conflict with "x"') for n in range(1000))))
    assert "995 more" in str(error)
    assert len(str(error)) < 300
    assert len(str(refused(500, {"message": "x" * 10_000}))) < 1000


def test_it_says_when_the_definitions_are_missing() -> None:
    path = "/apis/cache.hearth.dev/v1alpha1/nodecaches"
    assert "deploy/base/crds" in str(refused(404, b"404 page not found\n", path=path))
    named = refused(404, {"message": "not found", "details": {"name": "n-1"}}, path=f"{path}/n-1")
    assert "deploy/base/crds" not in str(named)


def test_it_quotes_nothing_about_a_secret() -> None:
    said = {"reason": "Invalid", "message": 'data.key: Invalid value: "hunter2"'}
    error = refused(422, said, path="/api/v1/namespaces/hearth-nodes/secrets/s")
    assert "hunter2" not in str(error)
    assert "Invalid" in str(error)
    raw = refused(500, b"hunter2", path="/api/v1/namespaces/hearth-nodes/secrets/s")
    assert "hunter2" not in str(raw)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("0.5", 0.5),
        ("", 1.0),
        ("soon", 1.0),
        ("-3", 1.0),
        ("nan", 1.0),
        ("inf", LONGEST_RETRY_SECONDS),
        ("999999", LONGEST_RETRY_SECONDS),
        ("Sun, 29 Nov 2026 12:00:20 GMT", 20.0),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 1.0),
        ("Sun, 29 Nov 2026 12:00:20", 20.0),
    ],
)
def test_it_waits_as_long_as_it_is_asked_to_and_no_longer_than_sense(value: str, seconds: float) -> None:
    assert retry_after(value, NOW) == seconds
    for status in (429, 503) if value else (429,):
        error = refused(status, Retry_After=value)
        assert isinstance(error, Throttled)
        assert error.retry_after_seconds == seconds


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"code": 410, "reason": "Expired", "message": "too old resource version"}, Gone),
        ({"reason": "Expired", "message": "x"}, Gone),
        ({"reason": "Gone"}, Gone),
        ({"code": 429, "message": "slow"}, Throttled),
        ({"code": 500, "message": "internal"}, Unreachable),
        ({"message": "nobody knows"}, Unreachable),
        ({"code": "410"}, Unreachable),
        ({}, Unreachable),
    ],
)
def test_it_reads_an_error_that_a_watch_tells(document: dict[str, Any], kind: type[GatewayError]) -> None:
    assert type(status_error(document, path=NODES, now=NOW)) is kind


def test_it_needs_no_year_to_pass_for_a_date() -> None:
    assert retry_after((NOW + timedelta(days=400)).strftime("%a, %d %b %Y %H:%M:%S GMT"), NOW) == LONGEST_RETRY_SECONDS


def test_the_fields_of_a_persons_document_are_not_hearths() -> None:
    cause = (".spec.worker.image", 'conflict with "kubectl-client-side-apply" using x/v1')
    path = "/apis/inference.sagemaker.aws.amazon.com/v1/namespaces/default/inferenceendpointconfigs/chat"
    error = refused(409, conflict_between(cause), path=path)
    assert str(error) == ("kubectl-client-side-apply holds spec.worker.image, which this would change; apply it there.")
    assert "writes what is Hearth's: spec.worker.image" in str(refused(409, conflict_between(cause)))
