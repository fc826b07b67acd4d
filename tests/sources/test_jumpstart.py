"""JumpStart models from documents to bytes: terms, packed artifacts, addresses that expire, a hub that refuses."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from caches.sources import open_source
from caches.sources.jumpstart import JumpStartSource
from controlplane.clusters.documents import Algorithm, ConnectionSpec, Reason, SourceType
from controlplane.errors import HearthError, Permanent, Transient
from tests.agent.world import noise
from tests.standins.jumpstart import CONTENT, IMAGE, KEYS, PRIVATE, REGION, TERMS, JumpStart, jumpstart
from tests.standins.serving import Said

WEIGHTS = noise(30_000)
FILES = {"config.json": b"{}", "model-1.safetensors": WEIGHTS, "model-2.safetensors": WEIGHTS[::-1], "z": b""}


@pytest.fixture
def standing(moto_endpoint: str) -> Iterator[JumpStart]:
    with jumpstart(moto_endpoint) as made:
        yield made


def opened(standing: JumpStart, secret: dict[str, str] | None = None, **fields: Any) -> JumpStartSource:
    spec = ConnectionSpec(
        "js", SourceType.JUMP_START, endpoint=standing.endpoint, region=REGION, hub_endpoint=standing.hub.url,
        **{"allowed": ("*",), "manifest": standing.manifest_uri} | fields,
    )  # fmt: skip
    source = open_source(spec, KEYS if secret is None else secret)
    assert isinstance(source, JumpStartSource)
    return source


@pytest.fixture
def gated(standing: JumpStart) -> Iterator[tuple[JumpStartSource, str]]:
    """A source, and the address of a gated model whose terms were accepted."""
    standing.gate("acme", "1.2.0", "acme/pack/", FILES)
    source = opened(standing)
    terms = source.terms(source.resolve("jumpstart://acme").uri)
    assert terms is not None
    yield source, terms.accepted_uri
    source.close()


def refused(call: Any, *args: Any) -> HearthError:
    with pytest.raises(HearthError) as caught:
        call(*args)
    text = caught.value.detail + caught.value.next_step
    assert KEYS["secret_access_key"] not in text and "sig-" not in text and "quote" not in text
    return caught.value


def test_it_resolves_a_model_to_its_artifact_and_its_image(standing: JumpStart) -> None:
    folder = f"acme/{secrets.token_hex(6)}/"
    standing.put(f"{folder}model.bin", WEIGHTS)
    standing.offer("acme", "1.9.0", "old/")
    standing.offer("acme", "1.10.0", folder)
    source = opened(standing)
    resolved = source.resolve("jumpstart://js/acme@1.*?instance_type=ml.g6.xlarge")
    assert resolved.revision == "1.10.0" and resolved.facts["jumpstart"]["artifact"] == f"s3://{CONTENT}/{folder}"
    assert (resolved.facts["jumpstart"]["image"], resolved.facts["jumpstart"]["environment"]) == (
        IMAGE,
        {"SERVER": "1"},
    )
    assert source.terms(resolved.uri) is None
    source.check(resolved.uri)
    model = source.model(resolved.uri)
    assert (model.image, model.environment, model.version) == (IMAGE, {"SERVER": "1"}, "1.10.0")
    assert source.model(resolved.uri, "ml.p5.48xlarge").image == ""
    source.close()


def test_nodes_read_without_asking_for_the_documents_again(standing: JumpStart) -> None:
    folder = f"acme/{secrets.token_hex(6)}/"
    standing.put(f"{folder}model.bin", WEIGHTS)
    standing.offer("acme", "1.0.0", folder)
    first = opened(standing)
    uri = first.resolve("jumpstart://acme").uri
    file = first.describe(uri, "model.bin")
    assert file.algorithm is Algorithm.SHA256
    standing.remove(standing.manifest_key)
    node = opened(standing)
    assert b"".join(map(bytes, node.read_range(uri, file, 5, 500))) == WEIGHTS[5:500]
    assert refused(node.resolve, uri).code == "source:user:not-found"


def test_a_packed_artifact_is_one_file(standing: JumpStart) -> None:
    key = f"{secrets.token_hex(6)}/acme.tar.gz"
    standing.put(key, WEIGHTS)
    standing.put(f"{key}.other", b"not this")
    standing.offer("acme", "1.0.0", key)
    source = opened(standing)
    resolved = source.resolve("jumpstart://acme@1.0")
    assert resolved.facts["jumpstart"]["compression"] == "Gzip"
    source.check(resolved.uri)
    assert [file.path for file in source.list_page(resolved.uri).files] == ["acme.tar.gz"]
    assert source.read_head(resolved.uri, source.describe(resolved.uri, "acme.tar.gz"), 9**6) == WEIGHTS
    assert refused(source.describe, resolved.uri, "acme.tar.gz.other").code == "source:source:changed"


@pytest.mark.parametrize("uri", ["jumpstart://none", "jumpstart://acme@2.*"])
def test_it_says_when_there_is_no_such_model(standing: JumpStart, uri: str) -> None:
    standing.offer("acme", "1.0.0", "acme/")
    error = refused(opened(standing).resolve, uri)
    assert (error.code, getattr(error, "reason", "")) == ("source:user:no-such-model", Reason.SOURCE_UNAVAILABLE)


def test_it_says_when_a_model_is_sold_as_a_package(standing: JumpStart) -> None:
    standing.offer("acme", "1.0.0", "", hosting_model_package_arns={REGION: "arn"})
    assert refused(opened(standing).resolve, "jumpstart://acme").code == "source:user:not-offered"


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_it_says_when_the_manifest_is_none(standing: JumpStart, body: bytes) -> None:
    standing.put(standing.manifest_key, body)
    assert refused(opened(standing).resolve, "jumpstart://acme").code in (
        "source:source:rejected", "source:user:not-offered",
    )  # fmt: skip


def test_the_manifest_is_the_region_s_own_where_none_is_named(standing: JumpStart) -> None:
    error = refused(opened(standing, manifest="").probe)
    assert error.code == "source:user:not-found" and f"s3://{CONTENT}/models_manifest.json" in error.detail
    standing.put(standing.manifest_key, b"[]")
    opened(standing).probe()


def test_terms_are_a_text_with_a_place_and_a_digest(standing: JumpStart) -> None:
    standing.gate("acme", "1.2.0", "acme/pack/", FILES)
    source = opened(standing)
    uri = source.resolve("jumpstart://acme").uri
    terms = source.terms(uri)
    assert terms is not None and terms.text == TERMS.decode() and terms.digest == hashlib.sha256(TERMS).hexdigest()
    assert (terms.subject, terms.version, terms.place) == ("acme", "1.2.0", f"s3://{CONTENT}/{standing.terms_key}")
    assert source.resolve(terms.accepted_uri).uri == terms.accepted_uri  # what was accepted stays in the address


def test_nothing_gated_is_read_without_accepted_terms(standing: JumpStart) -> None:
    standing.gate("acme", "1.2.0", "acme/pack/", FILES)
    source = opened(standing)
    uri = source.resolve("jumpstart://acme").uri
    for error in (
        refused(source.check, uri),
        refused(source.list_page, uri),
        refused(source.describe, uri, "config.json"),
        refused(source.list_page, "jumpstart://acme"),
    ):
        assert (error.code, getattr(error, "reason", "")) == ("source:user:terms-required", Reason.ACCESS_DENIED)
    assert not standing.hub.asked
    assert refused(source.check, f"{uri}&eula={'0' * 64}").code == "source:user:terms-required"


def test_terms_without_a_gated_bucket_are_terms_too(standing: JumpStart) -> None:
    standing.put(standing.terms_key, TERMS)
    folder = f"{secrets.token_hex(6)}/"
    standing.put(f"{folder}f", b"x")
    standing.offer("acme", "1.0.0", folder, hosting_eula_key=standing.terms_key)
    source = opened(standing)
    uri = source.resolve("jumpstart://acme").uri
    assert refused(source.check, uri).code == "source:user:terms-required"
    terms = source.terms(uri)
    assert terms is not None
    source.check(terms.accepted_uri)


def test_a_gated_model_without_terms_to_read_is_refused(standing: JumpStart) -> None:
    standing.offer("acme", "1.0.0", "acme/pack/", gated_bucket=True)
    source = opened(standing)
    assert refused(source.terms, source.resolve("jumpstart://acme").uri).code == "source:user:not-offered"


def test_the_hub_is_asked_signed_for_this_very_artifact(
    standing: JumpStart, gated: tuple[JumpStartSource, str]
) -> None:
    source, uri = gated
    source.check(uri)
    asked = json.loads(standing.hub.asked[0].body)
    assert asked["AccessConfig"] == {"AcceptEula": True, "ExpectedS3Url": f"s3://{PRIVATE}/acme/pack/"}
    assert (asked["HubName"], asked["HubContentName"], asked["HubContentVersion"]) == (
        "SageMakerPublicHub", "acme", "1.2.0",
    )  # fmt: skip
    assert all("authorization" not in asked.headers for asked in standing.bucket.asked)


def test_it_renews_addresses_that_expired_once_for_all_threads(
    standing: JumpStart, gated: tuple[JumpStartSource, str]
) -> None:
    source, uri = gated
    file = source.describe(uri, "model-1.safetensors")
    standing.signature = "sig-2"
    before = len(standing.hub.asked)
    spans = [(start, start + 3000) for start in range(0, 30_000, 3000)]
    with ThreadPoolExecutor(5) as pool:
        parts = list(pool.map(lambda span: b"".join(map(bytes, source.read_range(uri, file, *span))), spans))
    assert b"".join(parts) == WEIGHTS
    assert len(standing.hub.asked) - before == 2  # two pages, by one thread


def test_an_address_that_will_not_serve_is_not_asked_for_for_ever(
    standing: JumpStart, gated: tuple[JumpStartSource, str]
) -> None:
    source, uri = gated
    file = source.describe(uri, "config.json")
    standing.fault = lambda asked: Said(403) if asked.method == "GET" else None
    before = len(standing.bucket.asked)
    assert refused(source.read_head, uri, file, 1).code in ("source:user:access-denied", "source:source:changed")
    assert len(standing.bucket.asked) - before <= 2


@pytest.mark.parametrize(
    ("kind", "code", "family"),
    [
        ("AccessDeniedException", "source:user:access-denied", Permanent),
        ("com.amazon#ValidationException", "source:user:access-denied", Permanent),
        ("ResourceNotFound", "source:user:no-such-model", Permanent),
        ("ThrottlingException", "source:source:throttled", Transient),
        ("SomethingElse", "source:source:rejected", Permanent),
    ],
)
def test_it_says_what_the_hub_says(
    standing: JumpStart, gated: tuple[JumpStartSource, str], kind: str, code: str, family: type[HearthError]
) -> None:
    source, uri = gated
    standing.fault = lambda asked: Said(400, f'{{"__type": "{kind}", "message": "quote"}}'.encode())
    error = refused(source.check, uri)
    assert isinstance(error, family) and error.code == code


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"AuthorizedUrlConfigs": [{}]}',
     b'{"AuthorizedUrlConfigs": [{"Url": "file:///etc/passwd", "LocalPath": "/x"}]}',
     b'{"AuthorizedUrlConfigs": [{"Url": "http://169.254.169.254/", "LocalPath": "/x"}]}',
     b'{"AuthorizedUrlConfigs": [{"Url": "http://127.0.0.1/", "LocalPath": "/../x"}]}'],
)  # fmt: skip
def test_it_takes_no_address_that_is_none(standing: JumpStart, gated: tuple[JumpStartSource, str], body: bytes) -> None:
    source, uri = gated
    standing.fault = lambda asked: Said(200, body)
    assert isinstance(refused(source.check, uri), Permanent)


def test_gated_models_need_credentials(standing: JumpStart) -> None:
    standing.gate("acme", "1.2.0", "acme/pack/", FILES)
    keyed = opened(standing)
    terms = keyed.terms(keyed.resolve("jumpstart://acme").uri)
    assert terms is not None
    wrong = opened(standing, {**KEYS, "access_key_id": "AKIDOTHER"})
    assert refused(wrong.check, terms.accepted_uri).code == "source:user:access-denied"
    nobody = open_source(keyed.spec, {})
    assert refused(nobody.list_page, terms.accepted_uri).code == "source:user:access-denied"
