"""Images over REST, as a pipeline registers them and a person on call revokes them."""

from __future__ import annotations

from typing import Any

import pytest

from caches.models import Image
from caches.services.images.resolving import image_resolve_step
from tests import factories
from tests.api.conftest import Api, api_for
from tests.api.rows import walk
from tests.services.registries import Registry, use

REFERENCE = "registry.example/serving:v1"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    return use(Registry(), monkeypatch)


def test_it_registers_a_reference_and_names_the_image_in_the_result(operator_api: Api, registry: Registry) -> None:
    digest = registry.push(REFERENCE, "one")
    answer = operator_api.post("images", {"reference": REFERENCE, "pull_secret": "pull"})
    assert (answer.status_code, answer.json()["kind"], answer.json()["state"]) == (202, "ImageRegister", "Pending")

    image_resolve_step(operation_id=answer.json()["id"])

    ended = operator_api.get(f"operations/{answer.json()['id']}").json()
    assert (ended["state"], ended["result"]["digest"]) == ("Succeeded", digest)
    shown = operator_api.get(f"images/{ended['result']['image_id']}").json()
    assert {
        name: shown[name] for name in ("reference", "registry", "repository", "pull_secret", "state", "digest")
    } == {
        "reference": REFERENCE,
        "registry": "registry.example",
        "repository": "serving",
        "pull_secret": "pull",
        "state": "Available",
        "digest": digest,
    }
    assert (shown["size_bytes"], shown["compressed_bytes"], shown["versions_count"]) == (1000, 400, 0)
    assert (shown["tag"]["name"], shown["tag"]["moved_to"]) == ("v1", "")
    assert shown["refusal"] is None and shown["revocation"] is None
    assert shown["links"]["ui"].endswith(f"/images/{shown['id']}")


def test_it_says_why_an_image_was_refused(viewer_api: Api) -> None:
    image = factories.image(artifact=None, state="Refused", code="source:user:denied", message="No.", next_step="Ask.")

    shown = viewer_api.get(f"images/{image.pk}").json()

    assert shown["refusal"] == {"code": "source:user:denied", "detail": "No.", "next_step": "Ask."}
    assert (shown["digest"], shown["size_bytes"], shown["compressed_bytes"]) == (None, None, None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "reference"),
        ({"reference": "Not One"}, "reference"),
        ({"reference": REFERENCE, "tag": "v2"}, "tag"),
        ({"reference": ["a"]}, "reference"),
        ({"reference": REFERENCE, "pull_secret": "x" * 254}, "pull_secret"),
    ],
)
def test_it_names_the_wrong_field(operator_api: Api, body: Any, field: str) -> None:
    answer = operator_api.post("images", body)

    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, [field])
    assert not Image.objects.exists()


def test_it_revokes_and_restores_every_reference_of_a_digest(operator_api: Api) -> None:
    first = factories.image()
    second = factories.image(artifact=first.artifact)

    revoked = operator_api.post(f"images/{first.pk}/revoke", {"reason": "CVE"})

    assert (revoked.status_code, revoked.json()["revocation"]["reason"]) == (200, "CVE")
    assert revoked.json()["revocation"]["by"]
    assert {item["id"] for item in walk(operator_api, "images", revoked="true")} == {str(first.pk), str(second.pk)}
    refused = operator_api.delete(f"images/{second.pk}")
    assert (refused.status_code, refused.json()["code"]) == (409, "image:user:revoked")
    assert operator_api.post(f"images/{second.pk}/restore").json()["revocation"] is None
    assert operator_api.delete(f"images/{second.pk}").status_code == 204
    assert operator_api.get(f"images/{second.pk}").status_code == 404


def test_it_withdraws_an_image_after_showing_what_that_does(operator_api: Api) -> None:
    pool = factories.pool(of=factories.cluster(type="Kubernetes"))
    node, image = factories.node(of=pool), factories.image()
    factories.pin(of=factories.version(image=image), pools=(pool,), artifacts=["Weights", "Image"])
    factories.entry(on=node, of=image.artifact)
    path = f"images/{image.pk}/withdraw"

    plan = operator_api.post(f"{path}?dry_run=true", {"reason": "CVE"}).json()

    evicted = [(line["artifact"], line["reason"]) for line in plan["evictions"]]
    assert evicted == [(image.reference, "Unreferenced")]
    assert operator_api.get(f"images/{image.pk}").json()["revocation"] is None
    done = operator_api.post(path, {"reason": "CVE"}).json()
    assert done["revocation"]["reason"] == "CVE" and done["revocation"]["withdrawn_at"]
    assert operator_api.post(f"images/{image.pk}/restore").json()["revocation"] is None


def test_nobody_withdraws_an_image_from_pools_beyond_their_reach(db: None) -> None:
    cluster = factories.cluster(type="Kubernetes")
    mine, theirs = factories.pool(of=cluster), factories.pool(of=cluster)
    image = factories.image()
    factories.pin(of=factories.version(image=image), pools=(mine, theirs), artifacts=["Weights", "Image"])
    person = factories.user(role="Operator", target=mine.full_name)

    answer = api_for(person, "read", "evict").post(f"images/{image.pk}/withdraw", {"reason": "CVE"})

    assert answer.status_code == 403
    image.refresh_from_db()
    assert image.revoked_at is None


def test_it_registers_through_a_connection_to_a_registry_and_no_other(operator_api: Api) -> None:
    factories.connection(name="disk")
    factories.connection(name="images", type="Registry", endpoint="https://Registry.example:5000", allowed=["*"])

    refused = operator_api.post("images", {"reference": "serving:v1", "connection": "disk"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "connection")

    assert operator_api.post("images", {"reference": "serving:v1", "connection": "images"}).status_code == 202
    (image,) = walk(operator_api, "images")
    assert (image["reference"], image["connection"]) == ("registry.example:5000/serving:v1", "images")


def test_it_says_which_image_serves_a_version(operator_api: Api, viewer_api: Api) -> None:
    image = factories.image()
    factories.version(model="llama", version="v1")
    path = "models/llama/versions/v1"

    answer = operator_api.post(f"{path}/image", {"image_id": str(image.pk)})

    assert image.artifact is not None
    shown = {"reference": image.reference, "digest": image.artifact.digest}
    assert (answer.status_code, answer.json()["image"]) == (200, shown)
    assert viewer_api.get(path).json()["image"] == shown
    assert viewer_api.get(f"images/{image.pk}").json()["versions_count"] == 1
    refused = operator_api.post(f"{path}/image", {"image_id": "x"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "image_id")
    assert operator_api.post(f"{path}/image", {"image_id": None}).json()["image"] is None


def test_it_pins_weights_and_image_together(operator_api: Api) -> None:
    pool = factories.pool(of=factories.cluster(type="Kubernetes"))
    factories.node(of=pool)
    version = factories.version(model="llama", version="v1")
    body = {"model": "llama", "version": "v1", "pools": [pool.full_name], "artifacts": ["Weights", "Image"]}

    refused = operator_api.post("pins", body)
    assert (refused.status_code, refused.json()["code"]) == (409, "pin:user:no-image")

    image = factories.image()
    version.image = image
    version.save()
    plan = operator_api.post("pins?dry_run=true", body).json()
    assert {move["artifact"] for move in plan["moves"]} == {"llama v1", image.reference}
    made = operator_api.post("pins", body)
    assert made.status_code == 202
    (pin,) = walk(operator_api, "pins")
    assert pin["artifacts"] == ["Weights", "Image"]


def test_it_wants_a_reason(operator_api: Api) -> None:
    image = factories.image()

    for body in ({}, {"reason": ""}, {"reason": " "}, {"reason": "x" * 501}):
        answer = operator_api.post(f"images/{image.pk}/revoke", body)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "reason"), body


def test_it_filters_by_marks_and_by_a_part_of_the_reference(viewer_api: Api, populated: dict[str, str]) -> None:
    def found(**query: str) -> set[str]:
        return {item["repository"] for item in walk(viewer_api, "images", **query)}

    assert (found(moved="true"), found(moved="false")) == ({"ic"}, {"ia", "ib", "id"})
    assert (found(revoked="true"), found(revoked="false")) == ({"ia"}, {"ib", "ic", "id"})
    assert found(search="C:1") == {"ic"} and found(search="%") == set()
