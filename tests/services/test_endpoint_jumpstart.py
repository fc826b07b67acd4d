"""The JumpStartModel of the launch documents: registered by its id, its terms accepted by the document, its image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from caches.domain.endpoints.workload import Served, deployment
from caches.models import ModelVersion, SourceConnection
from caches.models.catalogue import EulaAcceptance
from caches.services.connections import connection_create
from caches.services.endpoints.jumpstart import jumpstart_address, served_spec
from caches.services.endpoints.versions import Registered, version_of
from caches.sources.secrets import write_secret
from controlplane.audit.models import Via
from controlplane.audit.services import Actor
from controlplane.clusters.models import Cluster
from controlplane.operations.models import Operation
from controlplane.operations.steps import operation_step
from tests import factories
from tests.domain import endpoints
from tests.sources.conftest import moto_endpoint
from tests.standins.jumpstart import IMAGE, KEYS, REGION, JumpStart, jumpstart

__all__ = ["moto_endpoint"]  # a fixture
ADA = Actor("ada", Via.API, "request-1")
MODEL = "meta-textgeneration-llama-3-1-8b-instruct"
pytestmark = pytest.mark.django_db


@pytest.fixture
def standing(moto_endpoint: str, tmp_path: Path, settings: LazySettings) -> Iterator[JumpStart]:
    settings.SECRETS_DIR = tmp_path / "secrets"
    write_secret("aws", KEYS)
    with jumpstart(moto_endpoint) as made:
        yield made


@pytest.fixture
def connection(standing: JumpStart) -> SourceConnection:
    return connection_create(
        actor=ADA, name="js", type="JumpStart", endpoint=standing.endpoint, region=REGION, secret_name="aws",
        allowed=[MODEL], manifest=standing.manifest_uri, hub_endpoint=standing.hub.url,
    )  # fmt: skip


def document(**changes: Any) -> Any:
    changes = {"spec__server__instanceType": "ml.g6.xlarge", **changes}
    return endpoints.spec_of(endpoints.jumpstart(**changes))


def registered(spec: Any) -> Registered:
    """As rounds of the loop find it, the worker working in between."""
    cluster = Cluster.objects.first() or factories.cluster()
    found = version_of(cluster=cluster, spec=spec)
    for operation in Operation.objects.filter(state="Pending"):
        operation_step(operation_id=operation.pk)
    return version_of(cluster=cluster, spec=spec) if not found.refused else found


def test_the_document_is_served_with_its_model_s_weights_image_and_environment(
    standing: JumpStart, connection: SourceConnection
) -> None:
    standing.gate(MODEL, "1.2.0", "llama/pack/", {"config.json": b"{}", "model.safetensors": b"w" * 1000})
    spec = document(spec__environmentVariables=[{"name": "MINE", "value": "1"}])
    version = registered(spec).version
    assert version is not None and version.revision == "1.2.0" and version.artifact is not None
    accepted = EulaAcceptance.objects.get()
    assert (accepted.accepted_by, accepted.accepted_via) == ("JumpStartModel default/hub-llama", "Kubectl")
    served = served_spec(spec, version)
    made = deployment(
        served, Served(image=served.image, ensure_image="e", host_path="/x", digest=version.artifact.digest)
    )
    server = made["spec"]["template"]["spec"]["containers"][0]
    assert server["image"] == IMAGE
    assert server["env"] == [{"name": "SERVER", "value": "1"}, {"name": "MINE", "value": "1"}]
    assert registered(spec).version == version and ModelVersion.objects.count() == 1


def test_what_the_document_says_itself_counts(standing: JumpStart, connection: SourceConnection) -> None:
    standing.gate(MODEL, "1.2.0", "llama/pack/", {"config.json": b"{}"})
    spec = document(spec__environmentVariables=[{"name": "SERVER", "value": "mine"}])
    assert list(served_spec(spec, registered(spec).version).pod.environment) == [{"name": "SERVER", "value": "mine"}]


def test_terms_that_the_document_does_not_accept_are_not_accepted(
    standing: JumpStart, connection: SourceConnection
) -> None:
    standing.gate(MODEL, "1.2.0", "llama/pack/", {"config.json": b"{}"})
    found = registered(document(spec__model__acceptEula=False))
    assert found.version is None and "terms" in found.refused and not EulaAcceptance.objects.exists()


@pytest.mark.parametrize(
    ("key", "changes", "words"),
    [
        ("llama/pack.tar.gz", {}, "packed file"),
        ("llama/pack/", {"spec__server__instanceType": "ml.p5.48xlarge"}, "names no image for ml.p5.48xlarge"),
        ("llama/pack/", {"spec__model__modelVersion": "9.9.9"}, "no such model or version"),
    ],
)
def test_it_says_why_a_model_cannot_be_served(
    standing: JumpStart, connection: SourceConnection, key: str, changes: dict[str, Any], words: str
) -> None:
    standing.put(key if key.endswith("z") else f"{key}config.json", b"{}")
    standing.offer(MODEL, "1.2.0", key)
    found = registered(document(**changes))
    assert found.version is None and words in found.refused


def test_it_says_when_no_connection_may_read_it(standing: JumpStart) -> None:
    found = version_of(cluster=factories.cluster(), spec=document())
    assert found.version is None and "of type JumpStart allows" in found.refused


def test_other_documents_stay_as_they_are(connection: SourceConnection) -> None:
    spec = endpoints.spec_of(endpoints.config())
    version = factories.version(metadata={"jumpstart": {"image": "other"}})
    assert served_spec(spec, version) is spec and served_spec(spec, None) is spec
    assert jumpstart_address(document(), factories.connection(type="JumpStart", allowed=["other"])) is None
