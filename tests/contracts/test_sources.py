"""What every source keeps, whatever the store: exact bytes of the registered content, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caches.domain.manifests import manifest_build
from caches.sources import open_source
from caches.sources.base import ListedFile, Source
from caches.sources.selection import manifest_of
from controlplane.clusters.documents import EntryState, FileRecord, Reason
from controlplane.errors import Permanent
from tests.agent.world import World
from tests.contracts.sources import FILES, PATIENT, PLACES, SourcePlace
from tests.sources.conftest import moto_endpoint

__all__ = ["moto_endpoint"]  # a fixture

Get = Callable[[str], SourcePlace]
BIG = "deep/er/part-1.bin"


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    """A place of each kind for the tests that only read, made when the first one asks."""
    made: dict[str, SourcePlace] = {}
    with ExitStack() as stack:

        def get(kind: str) -> SourcePlace:
            if kind not in made:
                made[kind] = stack.enter_context(PLACES[kind](request, tmp_path_factory.mktemp(kind)))
            return made[kind]

        yield get


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, shared: Get) -> SourcePlace:
    """Not to be changed."""
    return shared(request.param)


@pytest.fixture(params=sorted(PLACES))
def own_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourcePlace]:
    with PLACES[request.param](request, tmp_path) as made:
        yield made


@pytest.fixture
def source(place: SourcePlace) -> Iterator[Source]:
    opened = place.open()
    yield opened
    opened.close()


def whole(source: Source, uri: str, file: FileRecord) -> bytes:
    return b"".join(bytes(chunk) for chunk in source.read_range(uri, file, 0, file.size_bytes))


def test_it_lists_every_file_once_over_small_pages(place: SourcePlace, source: Source) -> None:
    uri, token = place.resolved(source), ""
    found: list[ListedFile] = []
    for _ in range(len(FILES) * 3):
        page = source.list_page(uri, token, 2)
        assert len(page.files) <= 2
        found += page.files
        token = page.next_token
        if not token:
            break
    assert sorted((file.path, file.size_bytes) for file in found) == sorted(
        (path, len(data)) for path, data in FILES.items()
    )


def test_it_describes_what_it_listed(place: SourcePlace, source: Source) -> None:
    uri = place.resolved(source)
    for listed in source.list_page(uri).files:
        record = source.describe(uri, listed.path)
        assert (record.path, record.size_bytes, record.revision) == (listed.path, listed.size_bytes, listed.revision)
        assert record.algorithm.is_content is place.anchored and bool(record.scope) is not place.anchored


def test_it_describes_without_having_listed(place: SourcePlace, source: Source) -> None:
    uri = place.resolved(source)
    record = source.describe(uri, BIG)
    other = place.open()
    other.list_page(uri)
    assert other.describe(uri, BIG) == record
    other.close()
    with pytest.raises(Permanent) as caught:
        source.describe(uri, "not/there")
    assert caught.value.reason == Reason.SOURCE_CHANGED


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 204_800), (1, 65_537), (204_799, 204_800), (7, 7)])
def test_it_reads_exactly_a_range(place: SourcePlace, source: Source, start: int, end: int) -> None:
    uri = place.resolved(source)
    file = source.describe(uri, BIG)
    for _ in range(2):  # the second may take a shorter way
        assert b"".join(map(bytes, source.read_range(uri, file, start, end))) == FILES[BIG][start:end]


def test_it_reads_every_file_and_no_more_than_there_is(place: SourcePlace, source: Source) -> None:
    uri = place.resolved(source)
    for path, data in FILES.items():
        file = source.bind(uri, source.describe(uri, path))
        assert source.read_head(uri, file, 10**6) == data and source.read_head(uri, file, 3) == data[:3]


def test_it_serves_threads_side_by_side(place: SourcePlace, source: Source) -> None:
    uri = place.resolved(source)
    file = source.describe(uri, BIG)
    spans = [(start, start + 10_240) for start in range(0, file.size_bytes, 10_240)]
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda span: b"".join(map(bytes, source.read_range(uri, file, *span))), spans)
    assert b"".join(parts) == FILES[BIG]


def test_it_says_that_a_good_place_is_good(place: SourcePlace, source: Source) -> None:
    source.probe()
    source.check(place.resolved(source))


def test_resolving_again_changes_nothing(own_place: SourcePlace) -> None:
    place = own_place
    source, other = place.open(), place.open()
    once = source.resolve(place.uri)
    assert source.resolve(once.uri) == once and bool(once.revision) is place.versioned
    place.put(BIG, b"new")
    source.close()
    assert other.resolve(once.uri) == once
    assert (other.resolve(place.uri) != once) is place.immutable
    other.close()


@pytest.mark.parametrize("content", [b"x" * 204_800, b"short", None])
def test_it_gives_the_registered_bytes_or_none(own_place: SourcePlace, content: bytes | None) -> None:
    place = own_place
    first, second = place.open(), place.open()
    uri = place.resolved(first)
    file = first.describe(uri, BIG)
    first.close()
    if content is None:
        place.remove(BIG)
    else:
        place.put(BIG, content)
    if place.immutable:
        assert whole(second, uri, file) == FILES[BIG]
    else:
        with pytest.raises(Permanent) as caught:
            whole(second, uri, file)
        assert caught.value.reason == Reason.SOURCE_CHANGED and BIG in caught.value.detail
    second.close()


def test_it_refuses_a_record_of_other_content(place: SourcePlace, source: Source) -> None:
    uri = place.resolved(source)
    file = source.describe(uri, BIG)
    other = source.describe(uri, "deep/er/part-2.bin")
    for wrong in (
        replace(file, checksum=other.checksum, revision=other.revision),
        replace(file, size_bytes=file.size_bytes + 1, revision=other.revision),
    ):
        with pytest.raises(Permanent) as caught:
            b"".join(map(bytes, source.read_range(uri, wrong, 0, 10)))
        assert caught.value.reason == Reason.SOURCE_CHANGED


CALLS: dict[str, Callable[[Source, str], Any]] = {
    "resolve": lambda source, uri: source.resolve(uri),
    "check": lambda source, uri: source.check(uri),
    "list": lambda source, uri: source.list_page(uri),
    "describe": lambda source, uri: source.describe(uri, "f"),
}


@pytest.mark.parametrize("call", sorted(CALLS))
def test_it_reads_nothing_outside_what_is_allowed(place: SourcePlace, source: Source, call: str) -> None:
    for uri in (place.forbidden, "https://example.org/x", "", f"{place.uri}/../x"):
        with pytest.raises(Permanent) as caught:
            CALLS[call](source, uri)
        assert caught.value.reason == Reason.INVALID_REQUEST and caught.value.next_step


def test_it_refuses_a_place_without_files(place: SourcePlace, source: Source) -> None:
    with pytest.raises(Permanent) as caught:
        source.check(place.resolved(source, place.missing))
    assert (caught.value.code, caught.value.reason) == ("source:user:empty-prefix", Reason.SOURCE_UNAVAILABLE)


def test_an_agent_warms_and_repairs_it(place: SourcePlace, tmp_path: Path) -> None:
    opened = place.open()
    uri = place.resolved(opened)
    manifest = manifest_of(opened, uri)
    opened.close()
    assert manifest == manifest_build(manifest.files)
    spec = replace(place.spec, name="disk", secret_name="keys" if place.secret else "")
    world = World(tmp_path, tuning=PATIENT, connections=(spec,))
    world.link.secrets["keys"] = place.secret
    world.open_source = open_source  # type: ignore[method-assign]  # the real one, not the disturbed folder
    world.link.manifests[manifest.digest] = manifest
    with world:
        world.want(manifest.digest, uri=uri)
        ready = world.becomes(manifest.digest, EntryState.READY, attempts=0)
        assert ready.bytes_moved == sum(map(len, FILES.values()))
        victims = [world.tree(manifest.digest) / path for path in (BIG, "config.json")]
        for victim in victims:
            victim.chmod(0o644)
            victim.write_bytes(bytes(victim.stat().st_size))
        world.want(manifest.digest, verify_round=1)
        again = world.becomes(manifest.digest, EntryState.READY, verify_round=1)
        assert again.bytes_moved - ready.bytes_moved == sum(victim.stat().st_size for victim in victims)
    assert world.content(manifest.digest) == FILES
