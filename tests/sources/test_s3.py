"""S3 on a real server: listing, checksums, ranges and every refusal."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from caches.sources.base import Source
from caches.sources.checksums import combine_crc64nvme, crc64nvme, crc64nvme_text
from controlplane.clusters.documents import Algorithm, FileRecord, Reason
from controlplane.errors import Permanent, Transient
from tests.sources.conftest import Bucket

DATA = random.Random(1).randbytes(3 * 1024 * 1024 + 17)
ODD = ["a-b", "a/b", "a/c", "a.txt", "b/1", "b/2/3", "b-", "Z", "é", "a b+c%20*.t", "x'y&z=?#", "tail~!@$(),;:[]{}|^`"]


def read(source: Source, uri: str, file: FileRecord, start: int = 0, end: int | None = None) -> bytes:
    return b"".join(source.read_range(uri, file, start, file.size_bytes if end is None else end))


def listed(source: Source, uri: str, page_size: int) -> list[str]:
    paths: list[str] = []
    token = ""
    for _ in range(50):
        page = source.list_page(uri, token, page_size)
        assert len(page.files) <= page_size
        paths += [file.path for file in page.files]
        token = page.next_token
        if not token:
            return paths
    raise AssertionError("listing never ends")


@pytest.mark.parametrize("where", ["bucket", "moto_bucket"])
def test_it_lists_every_name_once_over_pages_and_reads_each(where: str, request: pytest.FixtureRequest) -> None:
    bucket: Bucket = request.getfixturevalue(where)
    for name in ODD:
        bucket.put(f"models/m/{name}", name.encode())
    bucket.put("models/m/folder/", b"")
    bucket.put("models/m2/other", b"not below the prefix")
    uri = f"s3://{bucket.name}/models/m"
    source = bucket.open()
    assert sorted(listed(source, uri, 2)) == sorted(listed(source, uri + "/", 500)) == sorted(ODD)
    for name in ODD:
        assert read(source, uri, source.describe(uri, name)) == name.encode()


def test_it_pages_through_many_folders_without_losing_a_file(bucket: Bucket) -> None:
    names = [f"layer-{n % 7}/{'sub/' if n % 3 else ''}part-{n:03}" for n in range(120)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: bucket.put(f"m/{name}", b"x"), names))
    source = bucket.open()
    for page_size in (7, 50, 120, 500):
        assert sorted(listed(source, f"s3://{bucket.name}/m", page_size)) == sorted(names)


def test_it_reads_any_range_and_its_parts_combine_to_the_stated_checksum(bucket: Bucket) -> None:
    bucket.put("m/weights", DATA, ChecksumAlgorithm="CRC64NVME")
    uri = f"s3://{bucket.name}/m"
    source = bucket.open()
    file = source.describe(uri, "weights")
    assert (file.algorithm, file.size_bytes, file.scope) == (Algorithm.CRC64NVME, len(DATA), "")
    half = 1_000_003
    first, second = read(source, uri, file, 0, half), read(source, uri, file, half)
    assert first + second == DATA
    whole = combine_crc64nvme(crc64nvme(first), crc64nvme(second), len(second))
    assert file.checksum == crc64nvme_text(whole) == crc64nvme_text(crc64nvme(DATA))
    assert source.read_head(uri, file, 10) == DATA[:10]
    assert source.read_head(uri, file, 10**9) == DATA
    assert read(source, uri, file, 5, 5) == b""


def test_it_anchors_by_sha256_and_falls_back_to_the_scoped_etag(bucket: Bucket) -> None:
    bucket.put("m/sha", b"abc", ChecksumAlgorithm="SHA256")
    bucket.put("m/plain", b"abc")
    uri = f"s3://{bucket.name}/m"
    source = bucket.open(name="first")
    sha, plain = source.describe(uri, "sha"), source.describe(uri, "plain")
    assert (sha.algorithm, sha.checksum) == (Algorithm.SHA256, hashlib.sha256(b"abc").hexdigest())
    assert plain.algorithm == Algorithm.ETAG
    assert plain.checksum == plain.revision == hashlib.md5(b"abc", usedforsecurity=False).hexdigest()
    assert plain.scope == f"first:{bucket.name}"
    assert bucket.open(name="second").describe(uri, "plain").scope != plain.scope


@pytest.mark.parametrize("where", ["bucket", "moto_bucket"])
@pytest.mark.parametrize(
    ("algorithm", "kind", "anchor"),
    [("CRC64NVME", "FULL_OBJECT", Algorithm.CRC64NVME), ("SHA256", "COMPOSITE", Algorithm.ETAG)],
)
def test_it_never_takes_a_composite_checksum_for_the_content(
    where: str, algorithm: str, kind: str, anchor: Algorithm, request: pytest.FixtureRequest
) -> None:
    bucket: Bucket = request.getfixturevalue(where)
    body = b"a" * (5 * 1024 * 1024) + b"tail"
    bucket.put_multipart("m/multi", [body[:-4], body[-4:]], algorithm, kind)
    file = bucket.open().describe(f"s3://{bucket.name}/m", "multi")
    assert file.algorithm == anchor
    if anchor is Algorithm.CRC64NVME:
        assert file.checksum == crc64nvme_text(crc64nvme(body))


@pytest.mark.parametrize("where", ["bucket", "moto_bucket"])
def test_it_refuses_to_read_an_object_that_was_overwritten(where: str, request: pytest.FixtureRequest) -> None:
    bucket: Bucket = request.getfixturevalue(where)
    uri = f"s3://{bucket.name}/m"
    for options in ({}, {"ChecksumAlgorithm": "SHA256"}):
        bucket.put("m/f", DATA, **options)
        source = bucket.open()
        file = source.describe(uri, "f")
        assert read(source, uri, file, 0, 100) == DATA[:100]
        bucket.put("m/f", bytes(reversed(DATA)), **options)
        with pytest.raises(Permanent) as caught:
            read(source, uri, file, 100, 200)
        assert caught.value.reason == Reason.SOURCE_CHANGED


def test_it_goes_on_when_the_same_bytes_have_another_etag(bucket: Bucket) -> None:
    bucket.put("m/f", DATA, ChecksumAlgorithm="SHA256")
    uri = f"s3://{bucket.name}/m"
    source = bucket.open()
    there = source.describe(uri, "f")
    elsewhere = FileRecord("f", there.size_bytes, there.algorithm, there.checksum, "0" * 32, "some-version")
    assert read(source, uri, elsewhere) == DATA


def test_it_says_source_changed_when_the_object_is_gone(bucket: Bucket) -> None:
    bucket.put("m/f", b"abc")
    uri = f"s3://{bucket.name}/m"
    source = bucket.open()
    file = source.describe(uri, "f")
    bucket.client.delete_object(Bucket=bucket.name, Key="m/f")
    for attempt in (lambda: read(source, uri, file), lambda: source.describe(uri, "f")):
        with pytest.raises(Permanent) as caught:
            attempt()
        assert (caught.value.code, caught.value.reason) == ("source:source:changed", Reason.SOURCE_CHANGED)


def test_it_reads_the_registered_version_after_an_overwrite_in_a_versioned_bucket(moto_bucket: Bucket) -> None:
    moto_bucket.client.put_bucket_versioning(Bucket=moto_bucket.name, VersioningConfiguration={"Status": "Enabled"})
    moto_bucket.put("m/f", b"old")
    uri = f"s3://{moto_bucket.name}/m"
    source = moto_bucket.open()
    file = source.describe(uri, "f")
    moto_bucket.put("m/f", b"new")
    assert file.version_id
    assert read(source, uri, file) == b"old"
    moto_bucket.client.delete_object(Bucket=moto_bucket.name, Key="m/f", VersionId=file.version_id)
    with pytest.raises(Permanent) as caught:
        read(source, uri, file)
    assert caught.value.reason == Reason.SOURCE_CHANGED


def test_it_checks_a_good_place_and_refuses_each_bad_one_with_its_reason(bucket: Bucket) -> None:
    bucket.put("m/f", b"abc")
    bucket.put("hollow/", b"")
    good = f"s3://{bucket.name}/m"
    bucket.open().check(good)
    cases = [
        (f"s3://{bucket.name}/typo", "source:user:empty-prefix", Reason.SOURCE_UNAVAILABLE),
        (f"s3://{bucket.name}/hollow", "source:user:empty-prefix", Reason.SOURCE_UNAVAILABLE),
        (f"s3://{bucket.name}/m/f", "source:user:empty-prefix", Reason.SOURCE_UNAVAILABLE),
        ("s3://another-bucket/m", "source:user:not-allowed", Reason.INVALID_REQUEST),
        (f"s3://{bucket.name}/m/../n", "source:user:bad-uri", Reason.INVALID_REQUEST),
        (f"file:///{bucket.name}", "source:user:bad-uri", Reason.INVALID_REQUEST),
    ]
    for uri, code, reason in cases:
        with pytest.raises(Permanent) as caught:
            bucket.open().check(uri)
        assert (caught.value.code, caught.value.reason) == (code, reason), uri
        assert caught.value.next_step


def test_it_says_no_such_bucket(bucket: Bucket) -> None:
    bucket.client.delete_bucket(Bucket=bucket.name)
    with pytest.raises(Permanent) as caught:
        bucket.open().check(f"s3://{bucket.name}/m")
    assert caught.value.code == "source:user:no-such-bucket"


@pytest.mark.parametrize(
    "wrong", [{"access_key_id": "nobody", "secret_access_key": "x"}, {"secret_access_key": "wrong"}, None]
)
def test_it_says_access_denied_for_wrong_or_no_credentials(bucket: Bucket, wrong: dict[str, str] | None) -> None:
    bucket.put("m/f", b"abc")
    uri = f"s3://{bucket.name}/m"
    file = bucket.open().describe(uri, "f")
    secret = {} if wrong is None else bucket.secret | wrong
    source = Bucket(bucket.name, bucket.client, bucket.endpoint, secret).open()
    for attempt in (lambda: source.check(uri), lambda: read(source, uri, file)):
        with pytest.raises(Permanent) as caught:
            attempt()
        assert (caught.value.reason, caught.value.status) == (Reason.ACCESS_DENIED, 403)
        assert "wrong" not in str(caught.value)


def test_it_refuses_half_a_secret(bucket: Bucket) -> None:
    with pytest.raises(Permanent) as caught:
        Bucket(bucket.name, bucket.client, bucket.endpoint, {"access_key_id": "a"}).open()
    assert caught.value.reason == Reason.ACCESS_DENIED


def test_it_takes_nothing_from_the_environment(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("m/f", b"abc")
    uri = f"s3://{bucket.name}/m"
    file = bucket.open().describe(uri, "f")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.secret["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.secret["secret_access_key"])
    monkeypatch.setenv("AWS_PROFILE", "missing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    anonymous = Bucket(bucket.name, bucket.client, bucket.endpoint, {}).open()
    for attempt in (lambda: anonymous.check(uri), lambda: read(anonymous, uri, file)):
        with pytest.raises(Permanent) as caught:
            attempt()
        assert caught.value.reason == Reason.ACCESS_DENIED
    assert read(bucket.open(), uri, file) == b"abc"


def test_it_says_unavailable_when_nobody_listens(bucket: Bucket, unused_port: int) -> None:
    source = Bucket(bucket.name, bucket.client, f"http://127.0.0.1:{unused_port}", bucket.secret).open()
    uri = f"s3://{bucket.name}/m"
    file = FileRecord("f", 3, Algorithm.ETAG, "e", "e")
    for attempt in (lambda: source.check(uri), lambda: read(source, uri, file)):
        with pytest.raises(Transient) as caught:
            attempt()
        assert caught.value.reason == Reason.SOURCE_UNAVAILABLE
