"""A dry run asks cluster, registry and source, waits for none of them long, and says who did not answer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from caches.services.endpoints.asking import (
    Answer,
    Finding,
    Reply,
    ask,
    deployment_question,
    fine,
    object_question,
    service_question,
)
from caches.services.endpoints.preview import EndpointPreview, endpoint_preview
from controlplane.clusters.endpoints import EndpointOwner, WorkloadStatus
from controlplane.clusters.gateway import Conflict, Forbidden, GatewayError, NoNamespace, NotFound, Refused
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.errors import HearthError, Permanent, Transient
from tests.domain.endpoints import GONE, config
from tests.services.endpoints import EndpointWorld, ServingGateway, unreachable
from tests.services.registries import Registry, use

pytestmark = pytest.mark.django_db
FORBIDDEN = Forbidden("The API server does not allow this to Hearth's account. GET /x: 403")
IMAGE = "vllm/vllm-openai:latest"


@pytest.fixture
def asked(served: EndpointWorld, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> EndpointWorld:
    """A cluster that is asked, and a registry that knows the document's image."""
    settings.DRY_RUN_SECONDS = 30.0
    served.gateway.applied = []
    Cluster.objects.update(type=ClusterType.KUBERNETES)
    use(Registry(), monkeypatch).push(IMAGE, "one")
    return served


def previewed(served: EndpointWorld, **changes: Any) -> tuple[EndpointPreview, dict[str, tuple[str, str]]]:
    document = config(**{"spec__instanceType": GONE, "spec__modelCacheConfig__imageCache__enabled": False, **changes})
    found = endpoint_preview(cluster=Cluster.objects.get(), document=document)
    return found, {one.about: (one.answer.value, one.said) for one in found.findings}


def test_it_says_what_each_of_them_said(asked: EndpointWorld) -> None:
    asked.version()
    found, said = previewed(asked)
    assert found.obstacles == () and {answer for answer, _ in said.values()} == {"Fine"}
    assert set(said) == {"kinds", "object", "deployment", "service", "image", "room"}, (
        "a registered version is asked of nobody"
    )
    assert f"{IMAGE} is sha256:" in said["image"][1]
    assert "100 MiB" in said["room"][1] or "200 MiB" in said["room"][1], "with numbers"
    assert "No Deployment is called default/chat-small" in said["deployment"][1]
    assert "No Service is called default/chat-small" in said["service"][1]


def test_what_would_stop_it_is_an_obstacle_too(asked: EndpointWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.version()
    asked.gateway.owner = EndpointOwner.OTHER
    asked.gateway.work = WorkloadStatus("d", True, wanted=2, available=1)
    missing = Permanent("source:registry:missing", "There is no such tag.", next_step="Push it.")
    use(Registry({IMAGE: missing}), monkeypatch)
    found, said = previewed(asked)
    assert said["image"] == ("Problem", "There is no such tag. Push it.")
    assert said["kinds"][0] == "Problem" and "Another operator" in said["kinds"][1]
    assert said["deployment"][0] == "Problem" and "1 of 2 replicas serve" in said["deployment"][1]
    assert {one.what for one in found.obstacles} == {"endpoint", "image"}


def test_what_is_not_known_is_said_to_be_unknown_with_the_reason(asked: EndpointWorld) -> None:
    asked.version()
    asked.gateway.problem = unreachable()
    found, said = previewed(asked)
    for about in ("kinds", "object", "deployment", "service"):
        assert said[about] == ("Unknown", "The API server does not answer.")
    assert found.obstacles == ()


def test_a_source_is_asked_where_nobody_registered_what_it_has(asked: EndpointWorld, tmp_path: Path) -> None:
    _, said = previewed(asked)
    assert said["source"][0] in ("Unknown", "Problem") and said["source"][1], "nobody listens at its port"


def test_it_waits_for_nobody_longer_than_it_may() -> None:
    never, gone = threading.Event(), threading.Event()

    def silent() -> Reply:
        never.wait(60)
        gone.set()
        return fine("late")

    try:
        found = ask({"image": silent, "kinds": lambda: fine("here")}, seconds=0.2)
    finally:
        never.set()
    assert found["image"] == Finding("image", Answer.UNKNOWN, "No answer within 0.2 s.")
    assert gone.wait(60)


@pytest.mark.parametrize(
    ("error", "answer", "words"),
    [
        (Permanent("a:b:c", "It is not there.", next_step="Push it."), Answer.PROBLEM, "It is not there. Push it."),
        (Transient("a:b:c", "It is busy."), Answer.UNKNOWN, "It is busy."),
        (unreachable(), Answer.UNKNOWN, "does not answer"),
    ],
)
def test_each_kind_of_failure_is_an_answer(error: HearthError | GatewayError, answer: Answer, words: str) -> None:
    def fails() -> Reply:
        raise error

    found = ask({"source": fails}, seconds=30)["source"]
    assert found.answer is answer and words in found.said


@pytest.mark.parametrize(
    ("problem", "answer", "words"),
    [
        (FORBIDDEN, Answer.UNKNOWN, "its worker does when the document is applied"),
        (Refused("spec.x is not allowed"), Answer.PROBLEM, "spec.x is not allowed"),
        (Refused("The API server does not allow this: 403 exceeded quota: few"), Answer.PROBLEM, "exceeded quota"),
        (Conflict("spec.image", ("kubectl",)), Answer.PROBLEM, "kubectl holds fields"),
        (NotFound("the kind is not there"), Answer.PROBLEM, "is not there"),
        (
            NoNamespace("default"),
            Answer.PROBLEM,
            "The namespace default is not there. Create it (kubectl create namespace default), or name another one",
        ),
    ],
)
def test_what_the_api_server_says_of_a_document(
    problem: GatewayError, answer: Answer, words: str, tmp_path: Path
) -> None:
    gateway = ServingGateway(tmp_path)
    gateway.applied, gateway.problem = [], problem
    found = object_question(gateway, config())()
    assert found.answer is answer and words in found.said and gateway.applied == []


def test_nothing_is_asked_of_a_namespace_that_is_not_there(asked: EndpointWorld) -> None:
    """Rights are looked at first, and a role that is bound nowhere would be no help."""
    asked.version()
    asked.gateway.document_problem, asked.gateway.problem = NoNamespace("default"), None
    found, said = previewed(asked)
    assert said["object"][0] == "Problem" and "deployment" not in said and "service" not in said
    assert [one.why for one in found.obstacles] == [said["object"][1]]


@pytest.mark.parametrize(
    ("account", "role"),
    [
        ("system:serviceaccount:hearth-system:hearth-web", "role hearth-web-deployments, bound in default to hearth-"),
        (
            "system:serviceaccount:hearth-system:hearth",
            "The account hearth-system:hearth, as which Hearth's pages ask, may not. The roles hearth-endpoints and "
            "hearth-services, bound in default to hearth-system:hearth, let it",
        ),
        ("ops@example.com", "bound in default to ops@example.com, let it"),
    ],
)
def test_the_role_is_named_that_the_asking_account_lacks(account: str, role: str, tmp_path: Path) -> None:
    """Where pages and worker share an account, a role for the pages' own one changes nothing."""
    gateway = ServingGateway(tmp_path)
    gateway.problem = Forbidden(f'GET /x: 403 deployments.apps "a" is forbidden: User "{account}" cannot get resource')
    for question in (
        deployment_question(gateway, "default", "a", known=False),
        service_question(gateway, "default", "a"),
    ):
        found = question()
        assert found.answer is Answer.UNKNOWN and role in found.said


def test_a_deployment_of_an_endpoint_is_no_obstacle(tmp_path: Path) -> None:
    gateway = ServingGateway(tmp_path)
    gateway.work = WorkloadStatus("d", True, rollout="3", wanted=1, available=1)
    assert deployment_question(gateway, "default", "a", known=False)().answer is Answer.FINE
    gateway.work = WorkloadStatus("d", True, wanted=1)
    assert deployment_question(gateway, "default", "a", known=True)().answer is Answer.FINE
    gateway.problem = FORBIDDEN
    assert deployment_question(gateway, "default", "a", known=True)().answer is Answer.UNKNOWN


def test_a_service_of_somebody_else_is_an_obstacle(asked: EndpointWorld) -> None:
    asked.version()
    asked.gateway.service = True
    assert previewed(asked)[1]["service"][0] == "Fine"
    asked.gateway.service = False
    found, said = previewed(asked)
    assert said["service"][0] == "Problem" and "somebody else made" in said["service"][1]
    assert [(one.what, one.why) for one in found.obstacles] == [("endpoint", said["service"][1])]
    asked.gateway.problem = FORBIDDEN
    unknown = service_question(asked.gateway, "default", "a")()
    assert unknown.answer is Answer.UNKNOWN and "hearth-web-deployments, bound in default" in unknown.said
