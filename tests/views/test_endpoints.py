"""Pages of endpoints: what serves beside what comes, the gate and who holds it up, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from caches.api.serializers.endpoints import EndpointSerializer
from caches.models import CacheEntry, Rollout
from caches.selectors.endpoints import endpoint_get
from controlplane.clusters.documents import Reason
from controlplane.clusters.models import Cluster
from controlplane.serving.models import Endpoint
from controlplane.web.context import PLACES
from tests import factories
from tests.domain.endpoints import GONE, config
from tests.services.endpoints import EndpointWorld
from tests.services.world import MIB, World
from tests.views.reading import Page

pytestmark = pytest.mark.django_db


@pytest.fixture
def served(db: None, tmp_path: Path, settings: LazySettings) -> Iterator[EndpointWorld]:
    made = EndpointWorld(World(tmp_path / "fleet"), settings)
    yield made
    made.close()


def shown(served: EndpointWorld, client: Client) -> str:
    return Page(client.get(f"/endpoints/{served.endpoint.pk}").content).text


def test_it_shows_the_gate_and_which_nodes_hold_it_up_and_why(served: EndpointWorld, victor: Client) -> None:
    served.version()
    served.apply(metadata__annotations={"hearth.dev/gate": "Count:2"})
    served.round()
    served.warm("n1")
    CacheEntry.objects.filter(node__name="n2").update(state="Failed", reason=Reason.ACCESS_DENIED)
    served.round()
    text = shown(served, victor)
    assert "Comes next: rollout 1" in text and "on 1 of 2 nodes" in text
    assert "2 nodes" in text and "1 of 2 nodes, 2 required" in text and "Failed: 2 copies are required" in text
    assert "Nodes that are waited for" in text and "n2 Failed AccessDenied" in " ".join(text.split())
    assert "Open the gate" not in text, "a viewer changes nothing"


def test_a_gate_that_opened_stays_open_whatever_its_nodes_do(served: EndpointWorld, victor: Client) -> None:
    served.version()
    served.apply()
    served.round()
    served.warm("n1", "n2")
    served.round()
    assert served.rollout.state == "Switching" and served.rollout.opened_at is not None
    CacheEntry.objects.filter(node__name="n2").update(state="Failed", reason=Reason.ACCESS_DENIED)
    text = " ".join(shown(served, victor).split())
    opened = f"Open since {served.rollout.opened_at:%Y-%m-%d %H:%M:%S} UTC. 2 nodes ready, 2 required."
    assert opened in text and "Ready now 1 of 2 nodes, 2 required" in text
    assert "Closed" not in text and "n2 Failed" in text


def test_it_shows_what_serves_beside_what_comes(served: EndpointWorld, olga: Client) -> None:
    first = served.version()
    served.apply()
    served.until_served()
    second = served.version("llms/next")
    served.apply(spec__modelSourceConfig__modelLocation="llms/next", spec__worker__image="vllm/vllm-openai:v2")
    served.round()
    page = Page(olga.get(f"/endpoints/{served.endpoint.pk}").content)
    text = " ".join(page.text.split())
    for words in (
        "Serves: rollout 1", "Comes next: rollout 2", "s3://models/llms/chat-small", "s3://models/llms/next",
        "vllm/vllm-openai:latest", "vllm/vllm-openai:v2", "on 2 of 2 nodes", "on 0 of 2 nodes", "Open the gate",
        "Go back to rollout 1", "Still serves (rollout 1)", "n1 Absent", "n2 Absent",
    ):  # fmt: skip
        assert words in text, words
    for version in (first, second):
        assert version.artifact is not None
        assert any(version.artifact.digest in str(one.attrs) for one in page.page.walk()), "its digest can be copied"

    rollout = Rollout.objects.get(number=2)
    assert olga.post(f"/rollouts/{rollout.pk}/release").status_code == 302
    served.round()
    assert served.rollout.state == "Switching" and served.rollout.opened_at is not None
    text = shown(served, olga)
    assert "Serves: rollout 1" in text and "Comes next: rollout 2" in text, "an open gate makes no pod serve"
    assert "Still serves (rollout 1)" in text and "Served before" not in text
    served.serve()
    served.round()
    text = shown(served, olga)
    assert "Serves: rollout 2" in text and "End the hold" in text and "Weights still warm" in text
    assert "Served before (rollout 1)" in text and "Comes next" not in text


def test_what_failed_to_take_over_does_not_serve(served: EndpointWorld, olga: Client) -> None:
    served.version()
    served.apply()
    served.until_served()
    served.apply(spec__worker__image="vllm/vllm-openai:broken")
    served.round()
    served.serve(available=1, failed="No new pod started within its time.")
    served.round()
    assert served.rollout.state == "Failed"
    text = shown(served, olga)
    assert "Serves: rollout 1" in text and "Not finished: rollout 2" in text and "Still serves (rollout 1)" in text
    served.version("llms/next")
    served.apply(spec__modelSourceConfig__modelLocation="llms/next")
    served.round()
    text = shown(served, olga)
    for words in ("Serves: rollout 1", "Not finished: rollout 2", "Comes next: rollout 3", "Go back to rollout 1"):
        assert words in text, words


def test_a_cache_that_is_not_asked_for_is_said_to_be_so(served: EndpointWorld, olga: Client) -> None:
    served.version()
    served.apply()
    served.until_served()
    assert "Image kept not known" in " ".join(shown(served, olga).split())
    served.apply(spec__modelCacheConfig__imageCache__enabled=False)
    text = " ".join(shown(served, olga).split())
    assert "Image kept not asked for" in text and "Weights warm on 2 of 2 nodes" in text


def test_an_endpoint_of_the_local_fleet_speaks_of_no_rollouts(victor: Client) -> None:
    cluster = factories.cluster(type="Local")
    row = factories.endpoint(of=cluster, document={"modelName": "llama", "replicas": 0})
    text = Page(victor.get(f"/endpoints/{row.pk}").content).text
    assert "llama" in text and "fleet serve" in text and "Version none of the catalogue" in text
    assert "Rollout" not in text and "round" not in text
    version = factories.version(model="llama", version="v7")
    assert version.artifact is not None
    Endpoint.objects.filter(pk=row.pk).update(annotations={"hearth.dev/digest": version.artifact.digest})
    assert "Version llama v7" in Page(victor.get(f"/endpoints/{row.pk}").content).text
    [listed] = victor.get("/endpoints.json").json()["rows"]
    assert (listed["weights"], listed["image"]) == ("llama v7", "")
    assert EndpointSerializer().fields["served_version"].get_attribute(endpoint_get(endpoint_id=row.pk)) == "llama v7"
    elsewhere = factories.endpoint(of=factories.cluster(type="Kubernetes"))
    assert "No rollout yet" in Page(victor.get(f"/endpoints/{elsewhere.pk}").content).text


def test_a_dry_run_shows_what_the_round_would_refuse(served: EndpointWorld, olga: Client) -> None:
    served.gateway.applied = []
    served.version(size=64 * MIB)

    def tried(**changes: Any) -> str:
        manifest = yaml.safe_dump(config(**{"spec__instanceType": GONE, **changes}))
        fields = {"cluster": served.world.cluster.name, "step": "preview", "manifest": manifest}
        answer = olga.post("/endpoints/new", fields)
        assert answer.status_code == 200
        return Page(answer.content).text

    text = tried(spec__modelSourceConfig__s3Storage__bucketName="nobodys")
    assert "Its weights would not come." in text and "No source connection of type S3 allows s3://nobodys" in text
    text = tried()
    assert "weights would not come" not in text and "Its image would not be kept." in text and "folders" in text
    served.gateway.applied = None
    assert "Nothing would be served." in tried()


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([("Accepted", "False", "No such field."), ("RolledOut", "False", "Follows.")], "No such field."),
        ([("Available", "False", "0 of 2."), ("RolledOut", "False", "It made no progress.")], "It made no progress."),
        ([("Theirs", "False", "Another operator's."), ("Accepted", "True", "Understood.")], "Another operator's."),
        ([("Accepted", "True", "Understood.")], ""),
        (7, ""),
    ],
)
def test_the_list_says_why_one_failed(conditions: Any, said: str, victor: Client) -> None:
    if isinstance(conditions, list):
        conditions = [dict(zip(("type", "status", "message"), one, strict=True)) for one in conditions]
    status = {"state": "DeploymentFailed", "conditions": conditions}
    cluster = factories.cluster(type="Kubernetes", observed_at=timezone.now())
    row = factories.endpoint(of=cluster, status=status)
    [cells] = Page(victor.get("/endpoints").content).table("endpoints")
    assert cells[2] == " ".join(f"Deployment failed {said}".split())
    assert b'class="short"' in victor.get("/endpoints").content, "a name of usual length stays in one line"
    assert [one["why"] for one in victor.get("/endpoints.json").json()["rows"]] == [said]
    assert victor.get(f"/endpoints/{row.pk}").status_code == 200


def test_pods_that_wait_say_why_and_those_that_leave_say_so(victor: Client) -> None:
    condition = {"type": "RolledOut", "status": "False", "reason": "ImagePullFailed", "message": "Pod a waits: <b>."}
    odd = {"type": "Odd", "status": "False", "reason": ["anybody's"]}
    unwritten = {"state": "DeploymentInProgress", "conditions": [odd, condition]}
    made = factories.endpoint(of=factories.cluster(observed_at=timezone.now()), unwritten=unwritten)
    waits = {"wait_reason": "ImagePullFailed", "wait_message": "server: no <image>."}
    factories.instance(of=made, name="a", ready=False, **waits)
    factories.instance(of=made, name="b", ready=False, leaving=True)
    page = Page(victor.get(f"/endpoints/{made.pk}").content)
    text = " ".join(page.text.split())
    assert "a Not ready server: no <image>." in text and "b Terminating" in text
    assert "RolledOut: False (ImagePullFailed)" in text and "Deployment in progress" in text
    assert "Pod a waits: <b>." in Page(victor.get("/endpoints").content).text
    assert "Pod a waits: <b>." in victor.get("/endpoints.csv").content.decode()
    factories.variant(of=made)
    routed = victor.get(f"/endpoints/{made.pk}/routing.json?table=instances").json()["rows"]
    assert {one["name"]: (one["state"], one["why"]) for one in routed} == {
        "a": ("NotReady", "server: no <image>."), "b": ("Terminating", ""),
    }  # fmt: skip
    Cluster.objects.update(observed_at=timezone.now() - timedelta(hours=1))
    routed = victor.get(f"/endpoints/{made.pk}/routing.json?table=instances").json()["rows"]
    assert {(one["state"], one["why"]) for one in routed} == {("Unknown", "")}, "what it waited for is no news"


def test_a_jumpstart_model_shows_the_version_and_the_image_that_it_came_to(victor: Client) -> None:
    facts = {"model_id": "llama", "version": "1.2.0", "image": "nk/server:v1"}
    version = factories.version(metadata={"jumpstart": facts})
    made = factories.endpoint(of=factories.cluster(type="Kubernetes"), kind="JumpStartModel")
    row = factories.rollout(of=made, source="jumpstart:llama@latest", version=version)
    for address in ("/endpoints", f"/endpoints/{made.pk}"):
        text = Page(victor.get(address).content).text
        assert "jumpstart://llama@1.2.0" in text and "nk/server:v1" in text and "@latest" not in text, address
    for told in (
        victor.get("/api/v1/endpoints").json()["items"][0]["rollout"],
        victor.get(f"/api/v1/rollouts/{row.pk}").json(),
    ):
        assert (told["weights"], told["image"]) == ("jumpstart://llama@1.2.0", "nk/server:v1")


def test_a_digest_in_the_name_of_an_image_is_cut_and_can_be_read_in_full(victor: Client) -> None:
    image = f"registry.invalid/vllm/vllm-openai@sha256:{'0123456789abcdef' * 4}"
    row = factories.rollout(image=image)
    for address in ("/endpoints", f"/endpoints/{row.endpoint_id}"):
        page = Page(victor.get(address).content)
        assert "vllm-openai@sha256:0123456789ab…" in page.text and image not in page.text
        assert image in [one.attrs.get("title") for one in page.page.walk()]


def test_only_clusters_that_take_documents_are_offered(olga: Client) -> None:
    factories.cluster(name="lab", type="Local")
    page = Page(olga.get("/endpoints/new").content)
    assert [one.attrs["value"] for one in page.root.one("select", name="cluster").all("option")] == [""]
    assert "None here takes documents." in page.text
    refused = olga.post("/endpoints/new", {"cluster": "lab", "step": "preview", "manifest": yaml.safe_dump(config())})
    assert Page(refused.content).text.count("Nothing would be served.") == 1
    factories.cluster(name="real", type="Kubernetes")
    page = Page(olga.get("/endpoints/new").content)
    assert [one.attrs["value"] for one in page.root.one("select", name="cluster").all("option")] == ["", "real"]
    assert "None here" not in page.text
    chosen = [
        one.attrs["value"] for one in page.root.one("select", name="cluster").all("option") if "selected" in one.attrs
    ]
    assert chosen == ["real"], "there is nothing to choose"
    factories.cluster(name="second", type="Kubernetes")
    page = Page(olga.get("/endpoints/new").content)
    assert [
        one.attrs["value"] for one in page.root.one("select", name="cluster").all("option") if "selected" in one.attrs
    ] == [""]


def test_places_of_the_navigation_look_different() -> None:
    icons = [place.icon for place in PLACES]
    assert len(set(icons)) == len(icons), "each has its own"
