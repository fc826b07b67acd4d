"""Documents survive the journey whole, and nothing else passes for one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clusters import codec
from controlplane.clusters.documents import (
    Action,
    Algorithm,
    Consumer,
    FileRecord,
    Limits,
    Manifest,
    NodeCacheSpec,
    NodeCacheStatus,
)
from tests.contracts.observing import DIGEST, spec, status


@dataclass(frozen=True, slots=True)
class Odd:
    """What the real documents do not have yet."""

    count: int
    share: float
    action: Action | None
    names: frozenset[str] = frozenset()
    labels: Mapping[str, int] = field(default_factory=dict)
    anything: object = None


def test_it_carries_every_document_whole() -> None:
    consumer = Consumer("u", "n", "a-1", "x", frozenset({"b", "a"}), True, 3, {"app.kubernetes.io/name": "v"})
    assert codec.loads(NodeCacheSpec, codec.dumps(spec("a-1", "x", DIGEST))) == spec("a-1", "x", DIGEST)
    assert codec.loads(NodeCacheStatus, codec.dumps(told := status("a-1", "x"))) == told
    assert codec.loads(Consumer, codec.dumps(consumer)) == consumer


def test_it_writes_what_a_cluster_shows() -> None:
    data = codec.encode(spec("a-1", "x", DIGEST, limits=Limits(bytes_per_second=None)))
    assert data["nodeUid"] == "x"
    assert data["desired"][0]["action"] == "Ensure"
    assert "bytesPerSecond" not in data["limits"]
    assert codec.encode(Odd(1, 2.0, None, frozenset("ba"), {"Some_key": 1}))["names"] == ["a", "b"]
    assert codec.encode(Odd(1, 2.0, None, labels={"Some_key": 1}))["labels"] == {"Some_key": 1}


def test_it_writes_times_in_utc_to_the_microsecond() -> None:
    elsewhere = timezone(timedelta(hours=2))
    assert codec.encode(datetime(2026, 5, 1, 12, 0, 0, 5, elsewhere)) == "2026-05-01T10:00:00.000005Z"
    with pytest.raises(ValueError, match="without a zone"):
        codec.encode(datetime(2026, 5, 1))


def test_it_has_one_text_for_equal_documents() -> None:
    one = Odd(1, 2.0, None, frozenset("abc"), {"x": 1, "a": 2})
    two = Odd(1, 2.0, None, frozenset("cba"), {"a": 2, "x": 1})
    assert codec.dumps(one) == codec.dumps(two)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_it_refuses_numbers_that_json_does_not_have(value: float) -> None:
    with pytest.raises(ValueError, match="no place"):
        codec.encode(value)
    with pytest.raises(codec.DecodeError):
        codec.decode(Odd, {"count": 1, "share": value, "action": None})


def test_it_refuses_to_send_what_is_no_document() -> None:
    with pytest.raises(TypeError):
        codec.encode({"a": object()})
    with pytest.raises(TypeError):
        codec.encode(Odd)


FINE: dict[str, Any] = {"count": 1, "share": 0.5, "action": "Evict", "labels": {}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"count": "1"}, r"Odd\.count: str instead of int"),
        ({"count": 1.0}, r"Odd\.count: float instead of int"),
        ({"count": True}, r"Odd\.count: bool instead of int"),
        ({"count": None}, r"Odd\.count"),
        ({"share": "x"}, r"Odd\.share"),
        ({"action": "Explode"}, r"Odd\.action: 'Explode' is no Action"),
        ({"action": {}}, r"Odd\.action"),
        ({"names": "ab"}, r"Odd\.names: str instead of an array"),
        ({"names": ["a", 1]}, r"Odd\.names\[1\]: int instead of str"),
        ({"labels": []}, r"Odd\.labels: list instead of an object"),
        ({"labels": {"k": "v"}}, r"Odd\.labels\.k: str instead of int"),
        ({"extra": 1}, r"Odd\.extra: unknown field"),
    ],
)
def test_it_names_the_field_that_is_wrong(change: dict[str, Any], told: str) -> None:
    with pytest.raises(codec.DecodeError, match=told):
        codec.decode(Odd, FINE | change)


@pytest.mark.parametrize("data", [None, [], "x", 3])
def test_it_refuses_what_is_no_object(data: object) -> None:
    with pytest.raises(codec.DecodeError, match=r"Odd: .* instead of an object"):
        codec.decode(Odd, data)


def test_it_asks_for_what_has_no_default() -> None:
    with pytest.raises(codec.DecodeError, match=r"Odd\.count: missing"):
        codec.decode(Odd, {"share": 1})
    assert codec.decode(Odd, {"count": 1, "share": 1}) == Odd(1, 1.0, None)


@pytest.mark.parametrize("text", ["", "{", "nul", b"\xff"])
def test_it_refuses_what_is_no_json(text: str | bytes) -> None:
    with pytest.raises(codec.DecodeError):
        codec.loads(Odd, text)


@pytest.mark.parametrize("time", ["", "yesterday", "2026-05-01T10:00:00", 5, None])
def test_it_refuses_what_is_no_time(time: object) -> None:
    data = codec.encode(status("a-1", "x")) | {"reportedAt": time}
    with pytest.raises(codec.DecodeError, match=r"NodeCacheStatus\.reportedAt"):
        codec.decode(NodeCacheStatus, data)


def test_it_reads_times_as_utc() -> None:
    data = codec.encode(status("a-1", "x")) | {"reportedAt": "2026-05-01T12:00:00+02:00"}
    assert codec.decode(NodeCacheStatus, data).reported_at == datetime(2026, 5, 1, 10, tzinfo=UTC)


def test_it_lets_an_older_reader_skip_what_it_does_not_know() -> None:
    data = codec.encode(spec("a-1", "x", DIGEST))
    data["future"] = data["desired"][0]["future"] = {"any": "thing"}
    assert codec.decode(NodeCacheSpec, data, ignore_unknown=True) == spec("a-1", "x", DIGEST)
    with pytest.raises(codec.DecodeError):
        codec.decode(NodeCacheSpec, data)


records = st.builds(
    FileRecord,
    path=st.text(),
    size_bytes=st.integers(0, 2**62),
    algorithm=st.sampled_from(Algorithm),
    checksum=st.text(),
    revision=st.text(),
    version_id=st.text(),
)


@given(st.builds(Manifest, digest=st.text(), files=st.lists(records, max_size=5).map(tuple)))
def test_it_brings_any_manifest_back(manifest: Manifest) -> None:
    assert codec.loads(Manifest, codec.dumps(manifest).encode("utf-8", "surrogatepass")) == manifest


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(json_values, st.sampled_from([NodeCacheSpec, NodeCacheStatus, Odd, Manifest]))
def test_it_fails_in_one_way_only(data: object, document: type) -> None:
    try:
        made: object = codec.decode(document, json.loads(json.dumps(data)))
    except codec.DecodeError:
        return
    assert isinstance(made, document)
