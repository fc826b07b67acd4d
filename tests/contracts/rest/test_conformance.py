"""The API against its own description: generated calls never break it, and every answer is one that it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies
from pytest_django.live_server_helper import LiveServer
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.accounts.models import Scope, User
from controlplane.accounts.services import token_create
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM
from controlplane.operations.models import OperationKind
from controlplane.operations.services import operation_start
from tests import factories
from tests.services.world import version_of

EXAMPLES = 5
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA = schemathesis.openapi.from_path(str(Path(__file__).parents[3] / "openapi.yaml"))

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.django_db(transaction=True),
    # It sees the server's threads draw random numbers and takes them for a strategy's.
    pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning"),
]


@pytest.fixture
def known(admin: User, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Path parameters that name something, beside the generated ones that never do."""
    # No broker runs here, and each commit would wait for one.
    monkeypatch.setattr("controlplane.celery.publish", lambda task, *ids: True)
    pool = factories.pool()
    version = version_of(1000, model="llama")
    entry = factories.entry(on=factories.node(of=pool), of=version.artifact)
    operation = operation_start(
        actor=SYSTEM, kind=OperationKind.MODEL_REGISTER, subject_type="version", subject_id="1", subject_name="llama v1"
    )
    token, _ = token_create(actor=SYSTEM, user=admin, name="spare", scopes=[Scope.READ])
    event = AuditEvent.objects.latest("id")
    return {
        "pin_id": str(factories.pin(of=version, pools=(pool,)).id),
        "node_id": str(entry.node_id),
        "entry_id": str(entry.id),
        "operation_id": str(operation.id),
        "event_id": str(event.id),
        "token_id": str(token.id),
        "model": version.model.name,
        "version": version.version,
    }


def test_it_keeps_what_it_promises_whatever_it_is_asked(
    live_server: LiveServer, admin: User, known: dict[str, str]
) -> None:
    _, secret = token_create(actor=SYSTEM, user=admin, name="ci", scopes=[Scope.ADMIN])
    statuses: set[int] = set()
    for result in SCHEMA.get_all_operations():
        assert isinstance(result, Ok)
        statuses |= try_out(result.ok(), live_server.url, secret, known)
    assert {200, 400, 404} <= statuses


def try_out(operation: Any, url: str, secret: str, known: dict[str, str]) -> set[int]:
    """A bounded, repeatable number of generated calls of one operation; the statuses it answered with."""
    seen: set[int] = set()

    @hypothesis.settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        case=strategies.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode)),
        real=strategies.booleans(),
    )
    def run(case: Any, real: bool) -> None:
        if real:
            case.path_parameters.update({k: v for k, v in known.items() if k in case.path_parameters})
        if "wait" in (case.query or {}):
            case.query["wait"] = 0
        case.headers.update({"Authorization": f"Bearer {secret}"})
        response = case.call(base_url=url)
        seen.add(response.status_code)
        case.validate_response(response, checks=CHECKS)
        assert response.headers["x-request-id"]

    run()
    return seen
