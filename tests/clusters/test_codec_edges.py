"""Every document over any road: what leaves comes back, and what is damaged on the way is named."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.clusters import codec, documents
from controlplane.clusters.documents import (
    CapacityStatus,
    ConnectionSpec,
    Consumer,
    DesiredEntry,
    EntryStatus,
    Limits,
    Manifest,
    NodeCacheSpec,
    NodeCacheStatus,
    Orphan,
)
from controlplane.clusters.gateway import ClusterEvent
from controlplane.clusters.local import database
from controlplane.clusters.local.nodes import LocalNode
from controlplane.clusters.local.store import Store
from tests.contracts.observing import DIGEST, spec, status

# Times to the microsecond in any zone; the extreme years have no neighbour to convert into.
times = st.datetimes(
    min_value=datetime(2, 1, 1),
    max_value=datetime(9998, 12, 31),
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
floats = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(datetime, times)
st.register_type_strategy(float, floats)
TRAVELLERS = (
    CapacityStatus,
    ClusterEvent,
    ConnectionSpec,
    Consumer,
    DesiredEntry,
    EntryStatus,
    Limits,
    LocalNode,
    Manifest,
    NodeCacheSpec,
    NodeCacheStatus,
    Orphan,
)


@pytest.mark.parametrize("document", TRAVELLERS, ids=lambda document: document.__name__)
def test_it_brings_any_document_back_with_one_text(document: type) -> None:
    @settings(max_examples=15, deadline=None)
    @given(st.from_type(document))
    def journey(made: object) -> None:
        text = codec.dumps(made)
        back: object = codec.loads(document, text)
        assert back == made
        assert codec.dumps(back) == text, "otherwise every look would be a change"
        text.encode()

    journey()


@pytest.mark.parametrize("document", TRAVELLERS, ids=lambda document: document.__name__)
def test_it_names_fields_in_one_way_each(document: type) -> None:
    wire = [name for _, name in codec._wire_names(document)]
    assert len(set(wire)) == len(wire) == len(fields(document))
    assert all(name[0].islower() and "_" not in name for name in wire)


def test_it_knows_every_document_that_there_is() -> None:
    """A new document must be able to travel, or it is none."""
    for made in vars(documents).values():
        if isinstance(made, type) and is_dataclass(made):
            codec._decoder(made)({}, "", True) if made is Limits else codec._decoder(made)


@pytest.mark.parametrize("name", [b"model\xff.bin", b"\xed\xa0\x80", "größe ✓".encode(), b"a\x00b"])
def test_it_carries_file_names_that_are_no_text(name: bytes, tmp_path: Path) -> None:
    """A folder on a node may have any bytes as its name; reporting it must not end the agent."""
    text = name.decode(errors="surrogateescape")
    told = codec.dumps(Orphan(text, 1, True))
    assert codec.loads(Orphan, told.encode()).name == text
    database.database_create(tmp_path)
    with Store(tmp_path).write() as session:
        session.put("Orphan", "x", "u", spec=told, status=None)


@pytest.mark.parametrize(
    "at",
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_it_writes_times_that_sort_as_texts(at: datetime) -> None:
    text = codec.encode(at)
    assert len(text) == len("2026-01-01T00:00:00.000000Z") and text.endswith("Z")
    assert codec._decode_time(text, "", False) == at


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "2026-02-30T00:00:00Z"])
def test_it_refuses_times_that_no_clock_can_show(text: str) -> None:
    data = codec.encode(status("a-1", "x")) | {"reportedAt": text}
    with pytest.raises(codec.DecodeError, match="not a time"):
        codec.decode(NodeCacheStatus, data)


def test_it_refuses_numbers_that_do_not_fit() -> None:
    data = codec.encode(spec("a-1", "x")) | {"statusIntervalSeconds": 10**400}
    with pytest.raises(codec.DecodeError, match=r"statusIntervalSeconds: larger than any float"):
        codec.decode(NodeCacheSpec, data)


@pytest.mark.parametrize("opening", ["[", '{"desired":'])
def test_it_refuses_what_is_nested_without_end(opening: str) -> None:
    deep = opening * (sys.getrecursionlimit() * 50)
    with pytest.raises(codec.DecodeError, match="not JSON"):
        codec.loads(NodeCacheSpec, deep)


def _paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in the data that holds a value."""
    found = [at] if at else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        found += _paths(item, (*at, key))
    return found


def _changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(data))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


@pytest.mark.parametrize("document", [NodeCacheSpec, NodeCacheStatus])
def test_it_finds_damage_anywhere_and_says_where(document: type) -> None:
    whole = codec.encode(spec("a-1", "x", DIGEST) if document is NodeCacheSpec else status("a-1", "x"))
    paths = _paths(whole)
    assert len(paths) > 25
    for path in paths:
        with pytest.raises(codec.DecodeError) as told:
            codec.decode(document, _changed(whole, path, {"no": ["such", "thing"]}))
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
        assert str(told.value).startswith(f"{document.__name__}{place}"), path


@pytest.mark.parametrize("wire", ["nodeName", "nodeUid", "observedGeneration", "reportedAt", "capacity"])
def test_it_misses_every_field_that_has_no_default(wire: str) -> None:
    data = codec.encode(status("a-1", "x"))
    del data[wire]
    with pytest.raises(codec.DecodeError, match=rf"NodeCacheStatus\.{wire}: missing"):
        codec.decode(NodeCacheStatus, data)


def test_it_takes_null_for_nothing_only_where_nothing_is_allowed() -> None:
    data = codec.encode(status("a-1", "x"))
    assert codec.decode(NodeCacheStatus, _changed(data, ("entries", 0, "retryAt"), None)).entries[0].retry_at is None
    with pytest.raises(codec.DecodeError):
        codec.decode(NodeCacheStatus, _changed(data, ("entries", 0, "message"), None))


def test_it_refuses_kinds_of_fields_that_it_cannot_bring_back() -> None:
    for annotation in (set[str], tuple[int, str], int | str, bytes):
        with pytest.raises(TypeError):
            codec._decoder(annotation)
