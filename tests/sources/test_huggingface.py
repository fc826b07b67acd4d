"""The hub: commits, gated repositories, mirrors that do half of it, and addresses that expire."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from caches.sources import open_source
from caches.sources.base import Source
from caches.sources.hub_uri import HubPlace, check_repository, split_hub
from controlplane.clusters.documents import Algorithm, ConnectionSpec, Reason, SourceType
from controlplane.errors import HearthError, Permanent, Transient
from tests.agent.world import KIB, noise
from tests.standins.hub import Hub, blob_id, hub
from tests.standins.serving import Asked, Said

WEIGHTS = noise(40 * KIB)
FILES = {"README.md": b"read me", "config.json": b"{}", "model.safetensors": WEIGHTS}
TOKEN = "hf_allowed-to-read"


@pytest.fixture
def standing() -> Iterator[Hub]:
    with hub() as made:
        made.tokens.add(TOKEN)
        yield made


def opened(standing: Hub, token: str = "", allowed: tuple[str, ...] = ("org",), **fields: Any) -> Source:
    spec = ConnectionSpec("mirror", SourceType.HUGGING_FACE, endpoint=standing.endpoint, allowed=allowed, **fields)
    return open_source(spec, {"token": token} if token else {})


def refused(source: Source, uri: str = "hf://org/m") -> HearthError:
    """What registering says."""
    with pytest.raises(HearthError) as caught:
        source.check(source.resolve(uri).uri)
    source.close()
    assert caught.value.next_step and TOKEN not in caught.value.detail + caught.value.next_step
    return caught.value


def test_it_resolves_a_branch_once_and_reads_that_commit_for_ever(standing: Hub) -> None:
    repository = standing.repository("org/m")
    first = repository.commit(FILES)
    source = opened(standing)
    uri = source.resolve("hf://org/m").uri
    assert uri == f"hf://org/m@{first}"
    repository.commit({"other.bin": b"x"})
    assert [file.path for file in source.list_page("hf://org/m").files] == sorted(FILES)
    assert source.resolve("hf://org/m").revision == first
    later = opened(standing)
    assert later.resolve("hf://org/m@main").revision != first
    assert [file.path for file in later.list_page(uri).files] == sorted(FILES)


def test_it_takes_the_strongest_statement_of_each_file(standing: Hub) -> None:
    standing.repository("org/m").commit(FILES)
    source = opened(standing)
    uri = source.resolve("hf://org/m").uri
    anchors = {path: source.describe(uri, path) for path in FILES}
    assert (anchors["config.json"].algorithm, anchors["config.json"].checksum) == (Algorithm.GIT, blob_id(b"{}"))
    assert anchors["model.safetensors"].algorithm is Algorithm.SHA256
    assert all(record.algorithm.is_content and not record.scope for record in anchors.values())


def test_it_asks_the_hub_once_for_a_listing_and_once_for_where_a_file_is(standing: Hub) -> None:
    standing.repository("org/m").commit(FILES)
    source = opened(standing)
    uri = source.resolve("hf://org/m").uri
    source.list_page(uri)
    file = source.describe(uri, "model.safetensors")
    for start in range(0, 40 * KIB, 4 * KIB):
        assert b"".join(map(bytes, source.read_range(uri, file, start, start + 100))) == WEIGHTS[start : start + 100]
    assert [asked.path.split("/")[-1] for asked in standing.api.asked] == ["main", uri[-40:], "model.safetensors"]
    assert len(standing.store.asked) == 10


def test_it_renews_an_address_that_expired(standing: Hub) -> None:
    standing.repository("org/m").commit(FILES)
    source = opened(standing)
    uri = source.resolve("hf://org/m").uri
    file = source.describe(uri, "model.safetensors")
    assert source.read_head(uri, file, 10) == WEIGHTS[:10]
    standing.signature = "newer"
    assert source.read_head(uri, file, 10) == WEIGHTS[:10]
    assert source.read_head(uri, file, 10) == WEIGHTS[:10]
    assert [asked.query["signature"] for asked in standing.store.asked] == ["signed", "signed", "newer", "newer"]


def test_it_gives_its_token_to_the_hub_alone(standing: Hub) -> None:
    standing.repository("org/m", private=True).commit(FILES)
    source = opened(standing, TOKEN)
    uri = source.resolve("hf://org/m").uri
    file = source.describe(uri, "model.safetensors")
    for _ in range(2):
        assert source.read_head(uri, file, 10) == WEIGHTS[:10]
    assert {asked.headers.get("authorization") for asked in standing.api.asked} == {f"Bearer {TOKEN}"}
    assert {asked.headers.get("authorization") for asked in standing.store.asked} == {None}


@pytest.mark.parametrize("token", ["", "hf_of-somebody-else"])
def test_it_refuses_masked_checksums_though_the_hub_answers_200(standing: Hub, token: str) -> None:
    standing.repository("org/m", gated="masked").commit(FILES)
    error = refused(opened(standing, token))
    assert (error.code, getattr(error, "reason", "")) == ("source:user:gated", Reason.ACCESS_DENIED)
    assert not any("resolve" in asked.path for asked in standing.api.asked)


def test_it_refuses_a_gated_repository_without_large_files(standing: Hub) -> None:
    """Nothing is masked there, and the files that everybody may read prove nothing."""
    standing.repository("org/m", gated="masked").commit({"README.md": b"read me", "config.json": b"{}"})
    assert refused(opened(standing)).code == "source:user:gated"
    assert refused(opened(standing, "hf_of-somebody-else")).code == "source:user:gated"


def test_it_reads_a_gated_repository_with_access(standing: Hub) -> None:
    standing.repository("org/m", gated="masked").commit(FILES)
    source = opened(standing, TOKEN)
    uri = source.resolve("hf://org/m").uri
    source.check(uri)
    assert source.read_head(uri, source.describe(uri, "model.safetensors"), 9**6) == WEIGHTS


@pytest.mark.parametrize(
    ("token", "code"), [("", "source:user:access-denied"), ("hf_other", "source:user:no-such-repository")]
)
def test_it_does_not_tell_a_private_repository_from_none(standing: Hub, token: str, code: str) -> None:
    standing.repository("org/m", private=True).commit(FILES)
    assert refused(opened(standing, token)).code == code
    assert refused(opened(standing, token), "hf://org/none").code == code


def test_it_refuses_a_revision_that_is_not_there(standing: Hub) -> None:
    standing.repository("org/m").commit(FILES)
    assert refused(opened(standing), "hf://org/m@v2").code == "source:user:no-such-revision"
    assert refused(opened(standing), f"hf://org/m@{'0' * 40}").code == "source:user:no-such-revision"
    assert refused(opened(standing), "hf://org/m@main/none").code == "source:user:empty-prefix"


@pytest.mark.parametrize("status", [401, 403])
def test_it_refuses_a_token_that_the_hub_refuses(standing: Hub, status: int) -> None:
    standing.fault = lambda asked: Said(status, b"{}")
    error = refused(opened(standing, TOKEN))
    assert error.code == "source:user:access-denied" and "token" in error.next_step


@pytest.mark.parametrize(
    ("headers", "seconds"), [({"Retry-After": "120"}, 120), ({"RateLimit": '"api";r=0;t=200'}, 200), ({}, 10)]
)
def test_it_comes_back_when_the_hub_says(standing: Hub, headers: dict[str, str], seconds: int) -> None:
    standing.fault = lambda asked: Said(429, b"", headers)
    with pytest.raises(Transient) as caught:
        opened(standing).resolve("hf://org/m")
    assert caught.value.code == "source:source:throttled" and caught.value.retry_at
    assert timedelta(0) <= datetime.now(UTC) + timedelta(seconds=seconds) - caught.value.retry_at < timedelta(minutes=1)


def test_it_comes_back_when_the_store_behind_the_hub_says(standing: Hub) -> None:
    standing.repository("org/m").commit(FILES)
    source = opened(standing)
    uri = source.resolve("hf://org/m").uri
    file = source.describe(uri, "model.safetensors")
    standing.fault = lambda asked: Said(429, b"", {"Retry-After": "5"}) if "signature" in asked.query else None
    with pytest.raises(Transient) as caught:
        source.read_head(uri, file, 10)
    assert caught.value.code == "source:source:throttled" and "signature" not in caught.value.detail


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (Said(200, WEIGHTS, {"ETag": f'"{blob_id(b"other")}"'}), "source:source:changed"),
        (Said(200, WEIGHTS, {"ETag": '"0-of-a-cache"'}), "source:source:rejected"),
        (Said(200, WEIGHTS), "source:source:rejected"),
        (Said(404, b"", {"X-Error-Code": "EntryNotFound"}), "source:source:changed"),
        (Said(302, b"", {"Location": "https://169.254.169.254/x"}), "source:user:address-refused"),
    ],
)
def test_it_takes_no_file_of_a_mirror_that_may_be_another(
    standing: Hub, said: Said, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing.repository("org/m").commit(FILES)
    source = opened(standing)
    uri = source.resolve("hf://org/m").uri
    file = source.describe(uri, "model.safetensors")
    if said.status == 302:  # no such machine can be reached from here: the loopback takes its place
        said.headers["Location"] = f"{standing.store.url}/x"
        monkeypatch.setattr("caches.sources.allowed.METADATA", frozenset({ip_address("127.0.0.1")}))
    standing.fault = lambda asked: said if "/resolve/" in asked.path else None
    with pytest.raises(Permanent) as caught:
        source.read_head(uri, file, 10)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1", b'[{"type":"file"}]', b'[{"type":"file","path":"f","size":-1,"oid":"a"}]', b"\xff"]
)
def test_it_takes_no_listing_that_it_cannot_read(standing: Hub, body: bytes) -> None:
    standing.repository("org/m").commit(FILES)
    standing.fault = lambda asked: Said(200, body) if "/tree/" in asked.path else None
    assert refused(opened(standing)).code == "source:source:rejected"


def test_it_does_not_follow_a_listing_that_never_ends(standing: Hub) -> None:
    standing.repository("org/m").commit(FILES)

    def same(asked: Asked) -> Said | None:
        if "/tree/" not in asked.path:
            return None
        return Said(200, b"[]", {"Link": '<http://elsewhere/?cursor=x>; rel="next"'})

    standing.fault = same
    assert "again and again" in refused(opened(standing)).detail
    assert all(asked.headers["host"].startswith("127.0.0.1") for asked in standing.api.asked)


def test_a_probe_asks_for_each_place(standing: Hub) -> None:
    standing.repository("org/m").commit(FILES)
    opened(standing, allowed=("*", "org", "org/m")).probe()
    with pytest.raises(Permanent):
        opened(standing, allowed=("org/none",)).probe()


def test_it_refuses_a_secret_without_a_token_and_a_forbidden_endpoint() -> None:
    spec = ConnectionSpec("h", SourceType.HUGGING_FACE, endpoint="http://169.254.169.254", allowed=("*",))
    for secret, code in (({"key": "x"}, "source:user:secret-missing"), ({}, "source:user:address-refused")):
        with pytest.raises(Permanent) as caught:
            open_source(spec, secret)
        assert caught.value.code == code
    private = ConnectionSpec("h", SourceType.HUGGING_FACE, endpoint="http://127.0.0.1:9", allowed=("*",))
    with pytest.raises(Permanent):
        open_source(private, {}, allow_private=False)


SPEC = ConnectionSpec("mirror", SourceType.HUGGING_FACE, allowed=("org", "other/one"))


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("hf://org/m", HubPlace("org/m")),
        ("hf://mirror/org/m@v1.0", HubPlace("org/m", "v1.0")),
        ("hf://org/m@refs%2Fpr%2F1/sub/folder/", HubPlace("org/m", "refs/pr/1", "sub/folder")),
        ("hf://other/one@main/sp%20ace", HubPlace("other/one", "main", "sp ace")),
    ],
)
def test_it_reads_addresses(uri: str, place: HubPlace) -> None:
    assert split_hub(uri, SPEC) == place == split_hub(place.uri, SPEC)


@pytest.mark.parametrize(
    "uri",
    ["hf://org", "hf://elsewhere/org/m", "hf://org/m@", "hf://org/m@../x", "hf://org/m@v1/../x", "hf://org/m@a%00b",
     "hf://org/..", "hf://org/a--b", "hf://o?x/m", "hf://other/two", "s3://org/m", "hf://org/m/sub"],
)  # fmt: skip
def test_it_refuses_addresses(uri: str) -> None:
    with pytest.raises(Permanent) as caught:
        split_hub(uri, SPEC)
    assert caught.value.reason == Reason.INVALID_REQUEST


def test_it_knows_what_may_stand_in_the_allowed_list() -> None:
    for good in ("*", "org", "org/m.1"):
        check_repository(good)
    for bad in ("", "org/", "a/b/c", "org/*", "../x", "-x"):
        with pytest.raises(Permanent):
            check_repository(bad)
