"""Listings, heads and bodies as broken stores, proxies and caches give them."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from caches.sources import open_source
from controlplane.clusters.documents import Algorithm, FileRecord, Reason
from controlplane.errors import HearthError, Permanent, Transient
from tests.sources.scripted import SECRET, Answer, Asked, serving

URI = "s3://bucket/p"
BODY = bytes(range(256)) * 400
FILE = FileRecord("f", len(BODY), Algorithm.ETAG, "etag", "etag")
MODIFIED = {"Last-Modified": "Sun, 29 Nov 2026 00:00:00 GMT"}


def listing(*objects: str, token: str = "") -> Answer:
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    contents = "".join(f"<Contents>{item}</Contents>" for item in objects)
    return Answer(
        body=f"<ListBucketResult>{contents}{more or '<IsTruncated>false</IsTruncated>'}</ListBucketResult>".encode()
    )


def thing(key: str, size: int = 1, etag: str = "&quot;e&quot;") -> str:
    return f"<Key>{key}</Key><Size>{size}</Size><ETag>{etag}</ETag>"


def ranged(asked: Asked, **changes: Any) -> Answer:
    """What a sound store answers to a ranged read of FILE."""
    first, last = (int(part) for part in asked.headers["range"].removeprefix("bytes=").split("-"))
    body = BODY[first : last + 1]
    headers = {"ETag": '"etag"', "Content-Range": f"bytes {first}-{last}/{len(BODY)}"} | MODIFIED
    return replace(Answer(206, body, headers), **changes)


def test_it_follows_pages_with_the_stores_tokens_also_over_empty_ones() -> None:
    pages = {"": ([], "t 1"), "t 1": ([thing("p/a")], "t+/2="), "t+/2=": ([], "t3"), "t3": ([thing("p/b")], "")}

    def script(asked: Asked) -> Answer:
        objects, token = pages[asked.query.get("continuation-token", [""])[0]]
        return listing(*objects, token=token)

    with serving(script) as store:
        source, found, token = store.open(), [], ""
        while True:
            page = source.list_page(URI, token, 7)
            found += [file.path for file in page.files]
            token = page.next_token
            if not token:
                break
        assert found == ["a", "b"]
        assert [asked.query["max-keys"] for asked in store.asked] == [["7"]] * 4
        assert all(asked.query["prefix"] == ["p/"] for asked in store.asked)


def test_it_does_not_turn_in_a_circle_with_a_store_that_repeats_its_page() -> None:
    with serving(lambda asked: listing(token="same")) as store:
        with pytest.raises(Permanent) as caught:
            store.open().check(URI)
        assert caught.value.code == "source:source:rejected" and "again" in caught.value.detail
        assert len(store.asked) == 2


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (listing("<Key>p/f</Key><Size>1</Size>"), "source:source:rejected"),
        (listing("<Key>p/f</Key><ETag>e</ETag>"), "source:source:rejected"),
        (listing("<Size>1</Size><ETag>e</ETag>"), "source:source:rejected"),
        (listing("<Key>p/f</Key><Size>many</Size><ETag>e</ETag>"), "source:source:rejected"),
        (Answer(body=b"<html><body>Sign in</body></html>"), "source:user:empty-prefix"),
        (Answer(body=b"not xml at all"), "source:source:unavailable"),
        (Answer(body=b""), "source:user:empty-prefix"),
        (Answer(403, b"<Error><Code>AccessDenied</Code></Error>"), "source:user:access-denied"),
        (Answer(403, b""), "source:user:access-denied"),
        (Answer(401, b"<html>"), "source:user:access-denied"),
        (Answer(404, b"<Error><Code>NoSuchBucket</Code></Error>"), "source:user:no-such-bucket"),
        (Answer(301, b"<Error><Code>PermanentRedirect</Code></Error>"), "source:user:wrong-region"),
        (Answer(400, b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>"), "source:user:wrong-region"),
        (Answer(405, b""), "source:source:rejected"),
        (Answer(501, b"<Error><Code>NotImplemented</Code></Error>"), "source:source:unavailable"),
    ],
)
def test_it_says_what_an_odd_listing_means(answer: Answer, code: str) -> None:
    with serving(lambda asked: answer) as store, pytest.raises(HearthError) as caught:
        store.open().check(URI)
    assert caught.value.code == code and caught.value.next_step
    assert "hunter2" not in caught.value.detail


def test_it_leaves_out_folder_markers_and_nothing_else() -> None:
    objects = [thing("p/", 0), thing("p/d/", 0), thing("p/d/x", 0), thing("p/e/", 3), thing("p/f", 0, "plain")]
    with serving(lambda asked: listing(*objects)) as store:
        page = store.open().list_page(URI)
    assert [(file.path, file.size_bytes, file.revision) for file in page.files] == [
        ("d/x", 0, "e"), ("e/", 3, "e"), ("f", 0, "plain"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "algorithm", "checksum"),
    [
        ({}, Algorithm.ETAG, "etag"),
        ({"x-amz-checksum-crc64nvme": "rosUhgp5mIg="}, Algorithm.CRC64NVME, "rosUhgp5mIg="),
        ({"x-amz-checksum-crc64nvme": "rosUhgp5mIg=-3"}, Algorithm.ETAG, "etag"),
        ({"x-amz-checksum-crc64nvme": "rosUhgp5mIg=", "x-amz-checksum-type": "COMPOSITE"}, Algorithm.ETAG, "etag"),
        ({"x-amz-checksum-crc32": "AAAAAA=="}, Algorithm.ETAG, "etag"),
        ({"x-amz-checksum-sha256": "nonsense"}, Algorithm.ETAG, "etag"),
        (
            {"x-amz-checksum-sha256": "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="},
            Algorithm.SHA256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        (
            {"x-amz-checksum-sha256": "broken", "x-amz-checksum-crc64nvme": "rosUhgp5mIg="},
            Algorithm.CRC64NVME,
            "rosUhgp5mIg=",
        ),
    ],
)
def test_it_takes_the_strongest_statement_about_the_whole_file(
    headers: dict[str, str], algorithm: Algorithm, checksum: str
) -> None:
    with serving(lambda asked: Answer(headers={"ETag": '"etag"', **headers}, length=7)) as store:
        record = store.open().describe(URI, "f")
    assert (record.algorithm, record.checksum, record.size_bytes, record.revision) == (algorithm, checksum, 7, "etag")
    assert record.scope == ("" if algorithm.is_content else "store:bucket")


@pytest.mark.parametrize(("version", "kept"), [("null", ""), ("v1", "v1")])
def test_it_remembers_a_version_and_no_null_one(version: str, kept: str) -> None:
    with serving(lambda asked: Answer(headers={"ETag": "e", "x-amz-version-id": version})) as store:
        assert store.open().describe(URI, "f").version_id == kept


def test_a_head_without_an_etag_is_no_answer() -> None:
    with serving(lambda asked: Answer()) as store, pytest.raises(Permanent) as caught:
        store.open().describe(URI, "f")
    assert (caught.value.code, caught.value.reason) == ("source:source:rejected", Reason.SOURCE_UNAVAILABLE)
    assert "ETag" in caught.value.detail


def test_it_reads_a_range_and_asks_for_the_very_revision() -> None:
    with serving(ranged) as store:
        chunks = b"".join(bytes(chunk) for chunk in store.open().read_range(URI, FILE, 1000, 5000))
        (asked,) = store.asked
    assert chunks == BODY[1000:5000]
    assert (asked.headers["if-match"], asked.headers["range"]) == ('"etag"', "bytes=1000-4999")


@pytest.mark.parametrize(
    ("changes", "reason", "transient"),
    [
        ({"status": 200}, Reason.SOURCE_UNAVAILABLE, True),  # Range ignored
        ({"body": BODY[:10], "length": 4000}, Reason.SOURCE_UNAVAILABLE, True),
        ({"body": b"", "length": 4000}, Reason.SOURCE_UNAVAILABLE, True),
        ({"body": BODY[:3999]}, Reason.SOURCE_UNAVAILABLE, True),
        ({"body": BODY[:4001]}, Reason.SOURCE_UNAVAILABLE, True),
        ({"headers": {"ETag": '"other"'}}, Reason.SOURCE_CHANGED, False),
        ({"headers": {"ETag": ""}}, Reason.SOURCE_CHANGED, False),
        ({"headers": {"Content-Range": f"bytes 0-3999/{len(BODY)}"}}, Reason.SOURCE_UNAVAILABLE, True),
        ({"headers": {"Content-Range": f"bytes 1000-4999/{len(BODY) + 1}"}}, Reason.SOURCE_CHANGED, False),
        ({"headers": {"Content-Range": "bytes 1000-4999/*"}}, Reason.SOURCE_UNAVAILABLE, True),
        ({"headers": {"Content-Range": "nonsense"}}, Reason.SOURCE_UNAVAILABLE, True),
        ({"status": 304, "body": b""}, Reason.SOURCE_UNAVAILABLE, False),
        ({"status": 403, "body": b""}, Reason.ACCESS_DENIED, False),
        ({"status": 404, "body": b""}, Reason.SOURCE_CHANGED, False),
        ({"status": 412, "body": b""}, Reason.SOURCE_CHANGED, False),
        ({"status": 416, "body": b""}, Reason.SOURCE_CHANGED, False),
        ({"status": 500, "body": b"<Error><Code>InternalError</Code></Error>"}, Reason.SOURCE_UNAVAILABLE, True),
        ({"status": 503, "body": b"<Error><Code>SlowDown</Code></Error>"}, Reason.SOURCE_UNAVAILABLE, True),
        ({"status": 504, "body": b"<html>"}, Reason.SOURCE_UNAVAILABLE, True),
    ],
)
def test_it_never_passes_other_bytes_than_were_asked_for(
    changes: dict[str, Any], reason: Reason, transient: bool
) -> None:
    def script(asked: Asked) -> Answer:
        sound = ranged(asked)
        return ranged(asked, **(changes | {"headers": sound.headers | changes.get("headers", {})}))

    passed = b""
    with serving(script) as store, pytest.raises(HearthError) as caught:
        for chunk in store.open().read_range(URI, FILE, 1000, 5000, stall_seconds=30.0):
            passed += bytes(chunk)
    assert isinstance(caught.value, Transient if transient else Permanent)
    assert getattr(caught.value, "reason", "") == reason
    assert len(passed) <= 4000
    assert len(store.asked) == 1


def test_a_slow_stream_that_moves_is_no_stall_and_a_silent_one_is() -> None:
    def trickle(asked: Asked) -> Answer:
        return ranged(asked, pieces=tuple(BODY[at : at + 500] for at in range(0, 4000, 500)))

    with serving(trickle) as store:
        assert sum(len(c) for c in store.open().read_range(URI, FILE, 0, 4000, stall_seconds=30.0)) == 4000
    began = time.monotonic()
    with serving(lambda asked: ranged(asked, body=BODY[:10], length=4000, hang=True)) as store:
        with pytest.raises(Transient) as caught:
            list(store.open().read_range(URI, FILE, 0, 4000, stall_seconds=0.2))
        assert time.monotonic() - began < 60 and caught.value.reason == Reason.SOURCE_UNAVAILABLE


def test_a_throttled_listing_says_when_to_come_back() -> None:
    with serving(lambda asked: Answer(429, b"")) as store, pytest.raises(Transient) as caught:
        list(store.open().read_range(URI, FILE, 0, 10))
    assert caught.value.retry_at and caught.value.retry_at > datetime.now(UTC)


def test_it_opens_nothing_for_an_empty_range() -> None:
    with serving(ranged) as store:
        assert list(store.open().read_range(URI, FILE, 5, 5)) == []
        assert not store.asked


def test_it_sends_a_token_only_with_the_connections_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("AWS_ACCESS_KEY_ID", "mine"), ("AWS_SECRET_ACCESS_KEY", "mine"), ("AWS_SESSION_TOKEN", "t")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    script = {"GET": ranged, "HEAD": lambda asked: Answer(headers={"ETag": "e"})}
    with serving(lambda asked: script[asked.method](asked)) as store:
        for secret, token in ((SECRET, None), ({**SECRET, "session_token": "ours"}, "ours"), ({}, None)):
            source = open_source(store.open().spec, secret)
            list(source.read_range(URI, FILE, 0, 10))
            source.describe(URI, "f")
            for asked in (store.asked.pop(), store.asked.pop()):
                assert ("key/" in asked.headers.get("authorization", "")) is bool(secret)
                assert "mine" not in str(asked.headers)
                assert asked.headers.get("x-amz-security-token") == token
