"""Resolving page by page with trouble in the middle: every ending is one of three, and no page is read for nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from caches.domain.manifests import manifest_decode
from caches.models import Artifact, Launch, ModelVersion, SourceConnection
from caches.services import connections, listing, resolving
from caches.services.catalogue import version_delete, version_register
from caches.services.connections import connection_create
from caches.services.resolving import version_resolve_step
from caches.sources import open_source
from caches.sources.base import Page, Source
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.errors import Permanent, Transient
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel, operation_retry
from controlplane.operations.steps import operation_step
from tests import factories

pytestmark = pytest.mark.django_db
ADA = Actor("ada", Via.API)
FILES = 7
AWAY = Transient("source:source:unavailable", "The store is away.", reason="SourceUnavailable")
CHANGED = Permanent("source:source:changed", "It is another file now.", reason="SourceChanged")
Trouble = Callable[[str, int], None]


class Troubled:
    """The real source; ``trouble`` is asked before each call (its name, its number from 1) and may raise or act."""

    def __init__(self, real: Source, log: list[tuple[str, Any]], trouble: Trouble) -> None:
        self.real, self.log, self.trouble = real, log, trouble

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            self.log.append((name, args[1] if len(args) > 1 else ""))
            self.trouble(name, sum(1 for made, _ in self.log if made == name))
            return getattr(self.real, name)(*args, **given)

        return call


class Place:
    """A folder of seven files, read two at a time through a source that can be troubled."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.log: list[tuple[str, Any]] = []
        self.trouble: Trouble = lambda name, number: None
        monkeypatch.setattr(resolving, "PAGE_SIZE", 2)
        monkeypatch.setattr(
            connections,
            "open_source",
            lambda *args, **given: Troubled(open_source(*args, **given), self.log, lambda *now: self.trouble(*now)),
        )
        self.connection = connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[str(folder.parent)])
        self.version, self.operation = self.register()
        self.log.clear()

    def register(self, name: str = "1") -> tuple[ModelVersion, Operation]:
        uri = self.folder.as_uri()
        return version_register(actor=ADA, model="llama", version=name, connection=self.connection, uri=uri)

    def step(self) -> bool:
        return version_resolve_step(operation_id=self.operation.pk)

    def finish(self) -> Operation:
        for _ in range(20):
            if operation_step(operation_id=self.operation.pk):
                break
        self.operation.refresh_from_db()
        self.version.refresh_from_db()
        return self.operation

    def pages(self) -> list[Any]:
        return [token for name, token in self.log if name == "list_page"]

    def refused(self) -> tuple[str, str, str]:
        self.finish()
        assert not any(key.startswith("_") for key in self.operation.params) and not Artifact.objects.exists()
        assert AuditEvent.objects.filter(action="version.refused").count() == 1
        return self.operation.state, self.version.state, self.version.code


@pytest.fixture
def place(tmp_path: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Place:
    settings.SOURCE_ROOTS = [str(tmp_path)]
    folder = tmp_path / "llama"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"part-{number}.bin").write_bytes(bytes([number]) * 100)
    return Place(folder, monkeypatch)


def nth(call: str, which: int, do: Callable[[], object]) -> Trouble:
    def trouble(name: str, number: int) -> None:
        if (name, number) == (call, which):
            do()

    return trouble


def failing(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


def test_it_reads_each_page_once(place: Place) -> None:
    assert place.finish().state == "Succeeded"
    assert len(place.pages()) == len(set(place.pages())) == 4
    assert sum(name == "describe" for name, _ in place.log) == FILES


def test_launches_that_were_seen_before_it_was_registered_get_its_name(place: Place) -> None:
    place.finish()
    artifact = Artifact.objects.get()
    place.version.delete()
    launch = factories.launch(digest=artifact.digest)
    place.version, place.operation = place.register("2")
    assert not Launch.objects.filter(stale_at__isnull=False).exists()
    place.finish()
    assert Launch.objects.get(stale_at__isnull=False) == launch


@pytest.mark.parametrize("call", ["list_page", "describe"])
def test_it_goes_on_with_the_page_at_which_the_store_went_away(place: Place, call: str) -> None:
    place.trouble = nth(call, 3, failing(AWAY))
    seen = []
    for _ in range(12):
        try:
            if place.step():
                break
        except Transient:
            place.operation.refresh_from_db()
            seen.append(place.operation.params.get("_listed", 0))
    assert place.finish().state == "Succeeded" and len(seen) == 1
    assert len(place.pages()) == 5 and len(set(place.pages())) == 4
    assert place.version.artifact is not None and place.version.artifact.files_count == FILES


@pytest.mark.parametrize("call", ["list_page", "describe"])
@pytest.mark.parametrize("which", [1, 4])
def test_a_worker_killed_at_any_call_costs_a_repeat_and_changes_nothing(place: Place, call: str, which: int) -> None:
    place.trouble = nth(call, which, failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        for _ in range(8):
            place.step()
    assert not Artifact.objects.exists()
    place.trouble = lambda name, number: None
    place.finish()
    killed = place.version.artifact
    place.version, place.operation = place.register("2")
    place.finish()
    assert place.version.artifact == killed and Artifact.objects.count() == 1


@pytest.mark.parametrize("which", [1, 3, 4])
def test_a_source_that_refuses_half_way_refuses_the_version_with_its_words(place: Place, which: int) -> None:
    place.trouble = nth("list_page", which, failing(CHANGED))
    assert place.refused() == ("Failed", "Refused", "source:source:changed")
    assert place.version.message == "It is another file now."
    assert (place.operation.error or {})["reason"] == "SourceChanged"


def test_a_folder_that_goes_between_listing_and_looking_is_no_registration(place: Place) -> None:
    place.trouble = nth("describe", 1, lambda: shutil.rmtree(place.folder))
    state, version, code = place.refused()
    assert (state, version) == ("Failed", "Refused") and code.startswith("source:")


def test_it_gives_up_on_a_store_that_stays_away(place: Place) -> None:
    place.step()
    place.trouble = lambda name, number: failing(AWAY)()  # type: ignore[assignment]
    with pytest.raises(Transient):
        place.step()
    Operation.objects.update(created_at=timezone.now() - timedelta(minutes=61))
    assert place.refused() == ("Failed", "Refused", "source:source:unavailable")


def test_a_cancel_between_pages_ends_it_and_a_retry_begins_anew(place: Place) -> None:
    place.step()
    operation_cancel(actor=ADA, operation_id=place.operation.pk)
    place.finish()
    assert (place.operation.state, place.version.state, place.version.code) == (
        "Canceled", "Refused", "version:user:canceled"
    )  # fmt: skip
    place.log.clear()
    (place.folder / "part-9.bin").write_bytes(b"new")
    place.operation = operation_retry(actor=ADA, operation_id=place.operation.pk)
    assert place.finish().state == "Succeeded"
    assert place.pages()[0] == "" and place.version.artifact.files_count == FILES + 1  # type: ignore[union-attr]


@pytest.mark.parametrize("moment", ["between", "last"])
def test_a_version_deleted_meanwhile_leaves_nothing_behind(
    place: Place, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(*args: Any, **given: Any) -> dict[str, Any]:
        version_delete(actor=ADA, version_id=place.version.pk)
        return {}

    if moment == "between":
        place.step()
        delete()
    else:
        monkeypatch.setattr(resolving, "read_metadata", delete)
    for _ in range(10):
        if operation_step(operation_id=place.operation.pk):
            break
    place.operation.refresh_from_db()
    assert place.operation.state == "Failed"
    assert (place.operation.error or {})["code"] == "version:user:not-found"
    assert not Artifact.objects.exists() and not ModelVersion.objects.exists()


@pytest.mark.parametrize(
    ("limit", "count", "state"), [(FILES, 1, "Succeeded"), (FILES - 1, 1, "Failed"), (1, 1, "Failed")]
)
def test_the_number_of_files_is_bounded_over_all_pages(
    place: Place, limit: int, count: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "MAX_FILES", limit)
    assert place.finish().state == state
    if state == "Failed":
        assert place.version.code == "version:user:too-many-files"
        assert sum(name == "describe" for name, _ in place.log) <= limit


@pytest.mark.parametrize(
    ("name", "code"), [("PART-0.bin", "version:user:case-collision"), ("x\\y", "version:user:unsafe-path")]
)
def test_names_that_no_node_may_hold_are_found_on_whatever_page(place: Place, name: str, code: str) -> None:
    (place.folder / name).write_bytes(b"x")
    assert place.refused() == ("Failed", "Refused", code)


def test_a_file_named_on_two_pages_is_one_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a listing changes while it is read."""
    whole = place.folder

    class Twice(Troubled):
        def list_page(self, uri: str, token: str = "", size: int = 2) -> Page:
            page = self.real.list_page(uri, token, size)
            again = self.real.list_page(uri, "", 1).files if token else ()
            return Page((*page.files, *again), page.next_token)

    monkeypatch.setattr(
        connections, "open_source", lambda *a, **g: Twice(open_source(*a, **g), place.log, place.trouble)
    )
    place.finish()
    assert place.version.artifact is not None
    paths = [file.path for file in manifest_decode(bytes(place.version.artifact.manifest)).files]
    assert paths == sorted(file.name for file in whole.iterdir())


def test_pages_shrink_to_a_floor_and_then_it_is_the_stores_trouble(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: Any, **given: Any) -> Any:
        raise listing.TooSlow("source:source:slow", "Slow.", reason="SourceUnavailable")

    monkeypatch.setattr(resolving, "PAGE_SIZE", 500)
    monkeypatch.setattr(resolving, "describe_all", slow)
    sizes = []
    with pytest.raises(Transient):
        for _ in range(9):
            place.step()
            place.operation.refresh_from_db()
            sizes.append(place.operation.params["_page_size"])
    assert sizes == [125, 31, 20]


def test_progress_is_said_in_files(place: Place) -> None:
    place.step()
    place.step()
    place.operation.refresh_from_db()
    assert place.operation.message == "4 files read, and there are more." and place.operation.params["_listed"] == 4


def test_it_does_nothing_for_an_operation_that_ended_or_never_was(place: Place) -> None:
    place.finish()
    place.log.clear()
    assert place.step() and place.log == []
    assert version_resolve_step(operation_id=place.version.pk)


def test_a_connection_that_may_no_longer_read_there_refuses_the_version(place: Place, tmp_path: Path) -> None:
    place.step()
    SourceConnection.objects.update(allowed=[str(tmp_path / "elsewhere")])
    assert place.refused()[:2] == ("Failed", "Refused")
