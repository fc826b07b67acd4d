"""Registries that want credentials, refuse, throttle, redirect and lie; a stand-in answers."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from caches.domain.images import parse_reference
from caches.sources import open_registry
from caches.sources.image_documents import Blob
from caches.sources.image_sizes import unpacked_bytes
from caches.sources.registry import RegistryClient, check_repository, may_pull
from caches.sources.registry_auth import challenge_of
from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.errors import HearthError, Permanent, Transient
from tests.agent.world import noise
from tests.standins.registry import INDEX, MANIFEST, RegistryStandIn, digest_of, registry_stand_in
from tests.standins.serving import Asked, Said, Server, serving

CREDENTIALS = {"username": RegistryStandIn.user, "password": RegistryStandIn.password}
LAYER = noise(2000)


@pytest.fixture
def standing(request: pytest.FixtureRequest) -> Iterator[RegistryStandIn]:
    with registry_stand_in(getattr(request, "param", "")) as made:
        made.image((LAYER, ""), tag="v1")
        yield made


def opened(standing: RegistryStandIn, secret: dict[str, str] | None = None, **fields: Any) -> RegistryClient:
    spec = ConnectionSpec("r", SourceType.REGISTRY, endpoint=f"http://{standing.host}", allowed=("*",), **fields)
    return open_registry(spec, secret or {})


def refused(standing: RegistryStandIn, secret: dict[str, str] | None = None, name: str = "m:v1") -> HearthError:
    with pytest.raises(HearthError) as caught:
        opened(standing, secret).resolve(name)
    for word in (secret or {}).values():
        assert word not in caught.value.detail + caught.value.next_step
    return caught.value


@pytest.mark.parametrize("standing", ["basic", "bearer"], indirect=True)
def test_it_authenticates_as_it_is_asked_to_and_once(standing: RegistryStandIn) -> None:
    client = opened(standing, CREDENTIALS)
    client.probe()
    for _ in range(3):
        assert client.resolve("team/m:v1").compressed_bytes > len(LAYER)
    sent = [asked.headers.get("authorization", "") for asked in standing.api.asked]
    assert sent.count("") == 2  # once for the registry, once for the repository
    if standing.auth == "bearer":
        assert set(standing.tokens.values()) == {"", "repository:team/m:pull"}
        assert not any(header.startswith("Basic") for header in sent)
        assert {asked.query.get("service", "") for asked in standing.realm.asked} == {"the registry, here"}


@pytest.mark.parametrize("standing", ["bearer"], indirect=True)
def test_it_takes_a_public_image_with_a_token_for_nobody(standing: RegistryStandIn) -> None:
    assert opened(standing).resolve("m:v1").digest
    assert [asked.headers.get("authorization") for asked in standing.realm.asked] == [None]


@pytest.mark.parametrize("standing", ["bearer"], indirect=True)
def test_it_fetches_a_new_token_when_the_old_one_no_longer_counts(standing: RegistryStandIn) -> None:
    client = opened(standing, CREDENTIALS)
    client.resolve("m:v1")
    standing.tokens.clear()
    assert client.resolve("m:v1").digest


@pytest.mark.parametrize("standing", ["bearer"], indirect=True)
@pytest.mark.parametrize("said", [{}, {"token": 7}, {"token": "a b"}, {"token": "a\r\nHost: x"}, {"access_token": ""}])
def test_it_takes_no_token_that_is_none(standing: RegistryStandIn, said: dict[str, Any]) -> None:
    standing.token_answer = lambda token: said
    assert refused(standing, CREDENTIALS).code == "source:source:rejected"


@pytest.mark.parametrize("standing", ["basic", "bearer"], indirect=True)
def test_it_refuses_credentials_that_do_not_count(standing: RegistryStandIn) -> None:
    for secret in ({"username": "reader-7", "password": "hunter2"}, {"token": "hunter3"}):
        error = refused(standing, secret)
        assert (error.code, getattr(error, "reason", "")) == ("source:user:access-denied", Reason.ACCESS_DENIED)
        assert "password" in error.next_step
    if standing.auth == "basic":
        assert refused(standing).code == "source:user:access-denied"


def test_it_refuses_a_secret_that_is_half_of_one() -> None:
    for secret in ({"username": "x"}, {"password": "x"}, {"key": "x"}):
        with pytest.raises(Permanent) as caught:
            open_registry(ConnectionSpec("r", SourceType.REGISTRY, endpoint="http://127.0.0.1:9"), secret)
        assert caught.value.code == "source:user:secret-missing"


def _says(said: Said, asked: Asked) -> Said:
    return said


def test_it_sends_no_password_to_a_realm_that_may_not_be_asked(
    standing: RegistryStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for realm in ("http://169.254.169.254/", "file:///etc/passwd", "http://[", "nonsense"):
        challenge = {"WWW-Authenticate": f'Bearer realm="{realm}"'}
        monkeypatch.setattr(standing, "fault", partial(_says, Said(401, b"", challenge)))
        assert refused(standing, CREDENTIALS).code in ("source:user:address-refused", "source:source:rejected")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "source:user:access-denied", Permanent),
        (403, "source:user:access-denied", Permanent),
        (404, "source:user:no-such-image", Permanent),
        (429, "source:source:throttled", Transient),
        (500, "source:source:unavailable", Transient),
        (418, "source:source:rejected", Permanent),
    ],
)
def test_it_says_what_the_registry_says(
    standing: RegistryStandIn, status: int, code: str, kind: type[HearthError]
) -> None:
    standing.fault = lambda asked: Said(status, b"{}", {"Retry-After": "40"})
    error = refused(standing)
    assert isinstance(error, kind) and error.code == code
    assert not isinstance(error, Transient) or status != 429 or error.retry_at is not None
    assert "store" not in error.detail, "a registry is called one"


def test_it_follows_a_blob_elsewhere_without_its_credentials(standing: RegistryStandIn) -> None:
    standing.auth = "basic"
    packed = gzip.compress(LAYER * 5)
    standing.image((packed, "+gzip"), tag="v2")
    elsewhere = Server(lambda asked: Said(206, packed[-4:]))
    with serving(elsewhere):

        def redirect(asked: Asked) -> Said | None:
            if digest_of(packed) in asked.path and standing._may(asked):
                return Said(307, b"", {"Location": f"{elsewhere.url}/blob?signature=1"})
            return None

        standing.fault = redirect
        assert opened(standing, CREDENTIALS).resolve("m:v2").unpacked_bytes == len(LAYER) * 5
    assert elsewhere.asked and "authorization" not in elsewhere.asked[0].headers


def test_it_estimates_where_the_registry_does_not_show_ends(standing: RegistryStandIn) -> None:
    packed = gzip.compress(LAYER)
    standing.image((packed, "+gzip"), tag="v2")
    standing.fault = lambda asked: Said(200, packed) if digest_of(packed) in asked.path else None
    assert opened(standing).resolve("m:v2").unpacked_bytes == round(len(packed) * 2.6)


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("application/vnd.docker.distribution.manifest.v1+prettyjws", {"schemaVersion": 1}, "schema 1"),
        (MANIFEST, {"schemaVersion": 1, "fsLayers": []}, "schema 1"),
        (MANIFEST, {"schemaVersion": 2, "config": {}, "layers": []}, "digest"),
        (MANIFEST, {"schemaVersion": 2}, "descriptor"),
        ("text/html", {"hello": "there"}, "no image"),
        (INDEX, {"schemaVersion": 2, "manifests": []}, "no image for any platform"),
        (INDEX, {"schemaVersion": 2, "manifests": "x"}, "list"),
        (MANIFEST, {"config": {"digest": digest_of(b""), "size": 0, "mediaType": "application/vnd.cncf.helm.config"},
                    "layers": []}, "another kind of artifact"),
        (MANIFEST, [], "object"),
    ],
)  # fmt: skip
def test_it_refuses_what_is_no_image(standing: RegistryStandIn, kind: str, content: Any, words: str) -> None:
    standing.document(content, kind, "odd")
    error = refused(standing, name="m:odd")
    assert (error.code, getattr(error, "reason", "")) == ("source:user:not-an-image", Reason.INVALID_REQUEST)
    assert words in error.detail


def test_it_leaves_attestations_out_of_an_index(standing: RegistryStandIn) -> None:
    amd, arm = standing.image((LAYER, "")), standing.image((LAYER * 2, ""), architecture="arm64")
    odd = standing.document({"layers": []}, MANIFEST)
    digest = standing.index("all", amd64=amd, arm64=arm, unknown=odd)
    found = opened(standing).resolve("m:all")
    assert (found.digest, found.platforms) == (digest, ("linux/amd64", "linux/arm64"))
    assert found.unpacked_bytes == len(LAYER) * 2


def test_it_believes_no_digest_that_it_did_not_compute(standing: RegistryStandIn) -> None:
    wanted = digest_of(b"something else")
    standing.documents[wanted] = standing.documents["v1"]
    error = refused(standing, name=f"m@{wanted}")
    assert (error.code, getattr(error, "reason", "")) == ("source:source:other-digest", Reason.INTEGRITY_MISMATCH)
    body = standing.documents["v1"][1]
    standing.fault = lambda asked: Said(200, body, {"Content-Type": MANIFEST, "Docker-Content-Digest": wanted})
    assert refused(standing).code == "source:source:other-digest"


def test_it_computes_the_digest_where_a_head_does_not_state_it(standing: RegistryStandIn) -> None:
    body = standing.documents["v1"][1]
    standing.fault = lambda asked: Said(200, body, {"Content-Type": MANIFEST})
    assert opened(standing).current_digest("m:v1") == digest_of(body)


def test_it_reads_no_endless_manifest(standing: RegistryStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caches.sources.registry.MAX_DOCUMENT_BYTES", 50)
    assert refused(standing).code == "source:source:rejected"


@pytest.mark.parametrize("text", ["", "UPPER/case", "a b", "x:y:z", f"x@sha256:{'0' * 63}", "http://registry/x"])
def test_it_refuses_what_is_no_reference(standing: RegistryStandIn, text: str) -> None:
    assert refused(standing, name=text).code == "source:user:not-an-image"


@pytest.mark.parametrize(
    ("header", "scheme", "parameters"),
    [
        ('Bearer realm="https://a/t",service="s, t",scope="x:y:z,w"', "bearer",
         {"realm": "https://a/t", "service": "s, t", "scope": "x:y:z,w"}),
        ("BASIC realm=plain", "basic", {"realm": "plain"}),
        ("Negotiate", "negotiate", {}),
        ("", "", {}),
        ('Bearer realm="unended', "bearer", {"realm": '"unended'}),
    ],
)  # fmt: skip
def test_it_takes_a_challenge_apart(header: str, scheme: str, parameters: dict[str, str]) -> None:
    found = challenge_of(header)
    assert (found.scheme, dict(found.parameters)) == (scheme, parameters)


GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
GIB = 2**30


@pytest.mark.parametrize(
    ("layer", "end", "expected"),
    [
        (Blob("d", 1000, "application/vnd.oci.image.layer.v1.tar"), b"", 1000),
        (Blob("d", 1000, GZIP), (2500).to_bytes(4, "little"), 2500),
        (Blob("d", 1000, GZIP), (990).to_bytes(4, "little"), 990),  # what cannot be packed grows a little
        (Blob("d", 3 * GIB, GZIP), (2 * GIB).to_bytes(4, "little"), 6 * GIB),  # once around
        (Blob("d", 100, GZIP), (4 * GIB - 1).to_bytes(4, "little"), 260),  # more than packing can do
        (Blob("d", 1000, GZIP, is_stargz=True), (10).to_bytes(4, "little"), 2600),
        (Blob("d", 1000, GZIP), b"", 2600),
        (Blob("d", 1000, "application/vnd.oci.image.layer.v1.tar+zstd"), b"", 2600),
        (Blob("d", 0, GZIP), b"", 0),
    ],
)
def test_it_estimates_what_a_layer_takes(layer: Blob, end: bytes, expected: int) -> None:
    assert unpacked_bytes(layer, end) == expected


@pytest.mark.parametrize(
    ("endpoint", "reference", "place"),
    [
        ("", "nginx", ("https://registry-1.docker.io", "library/nginx")),
        ("", "docker.io/nginx:1", ("https://registry-1.docker.io", "library/nginx")),
        ("", "vllm/vllm-openai", ("https://registry-1.docker.io", "vllm/vllm-openai")),
        ("", "host.example/nginx", ("https://host.example", "nginx")),
        ("", "127.0.0.1:5000/nginx", ("http://127.0.0.1:5000", "nginx")),
        ("https://registry-1.docker.io", "index.docker.io/nginx", ("https://registry-1.docker.io", "library/nginx")),
        ("https://index.docker.io", "nginx", ("https://registry-1.docker.io", "library/nginx")),
        ("", "registry-1.docker.io/library/nginx", ("https://registry-1.docker.io", "library/nginx")),
        ("https://host.example", "nginx", ("https://host.example", "nginx")),
        ("https://Host.example", "host.example/nginx", ("https://Host.example", "nginx")),
    ],
)
def test_it_knows_where_a_reference_leads(
    endpoint: str, reference: str, place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caches.sources.allowed.check_endpoint", lambda *args, **named: None)  # names do not resolve
    spec = ConnectionSpec("r", SourceType.REGISTRY, endpoint=endpoint, allowed=("*",)) if endpoint else None
    assert open_registry(spec, {})._place(parse_reference(reference)) == place


@pytest.mark.parametrize(
    ("endpoint", "allowed", "reference", "may"),
    [
        ("https://docker.io", "nginx", "registry-1.docker.io/library/nginx", True),
        ("https://docker.io", "library/nginx", "nginx", True),
        ("https://docker.io", "library/other", "nginx", False),
        ("https://host.example", "library", "nginx", False),  # that folder means something in one registry alone
        ("https://host.example", "*", "docker.io/nginx", False),
    ],
)
def test_what_is_allowed_is_so_in_every_spelling(
    endpoint: str, allowed: str, reference: str, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caches.sources.allowed.check_endpoint", lambda *args, **named: None)  # names do not resolve
    client = open_registry(ConnectionSpec("r", SourceType.REGISTRY, endpoint=endpoint, allowed=(allowed,)), {})
    if may:
        assert client._place(parse_reference(reference))[1] == "library/nginx"
        return
    with pytest.raises(Permanent):
        client._place(parse_reference(reference))


def test_it_knows_what_may_be_pulled() -> None:
    assert may_pull("a/b/c", ("a/b",)) and may_pull("a", ("a",)) and may_pull("x", ("*",))
    assert not may_pull("ab/c", ("a",)) and not may_pull("a", ("a/b",)) and not may_pull("a", ())
    for good in ("*", "team", "team/one"):
        check_repository(good)
    for bad in ("", "team:v1", "registry.example/team", "Team", "a//b", f"x@sha256:{'0' * 64}"):
        with pytest.raises(Permanent):
            check_repository(bad)
