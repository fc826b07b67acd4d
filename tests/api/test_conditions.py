"""ETag and If-Match on everything people edit: whoever read an older version changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from caches.models import Pin, SourceConnection, Webhook
from caches.services.connections import connection_delete
from caches.services.pins import pin_remove
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM
from controlplane.clusters.models import NodePool
from controlplane.errors import Stale
from controlplane.rest.etags import etag_of
from tests import factories
from tests.api.conftest import Api
from tests.api.rows import description, filled

# What may be changed of each edited thing, and changed again.
EDITS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "node-pools/{name}": ({"priority": 1}, {"priority": 2}),
    "pins/{pin_id}": ({"priority": 1}, {"priority": 2}),
    "source-connections/{name}": ({"max_downloads": 1}, {"max_downloads": 2}),
    "webhooks/{name}": ({"enabled": False}, {"enabled": True}),
}
EDITED = sorted(EDITS)
DELETED = [path for path in EDITED if path != "node-pools/{name}"]


@pytest.fixture
def known(populated: dict[str, str], settings: Any) -> dict[str, str]:
    settings.SOURCE_ROOTS = ["/nonexistent"]
    SourceConnection.objects.update(type="S3", allowed=["models"])
    return populated


def test_it_promises_if_match_on_whatever_can_be_patched() -> None:
    patched = [path for path in description() if "patch" in description()[path]]

    assert sorted(patched) == EDITED
    for path in patched:
        assert "If-Match" in {one["name"] for one in description()[path]["patch"]["parameters"]}


@pytest.mark.parametrize("path", EDITED)
def test_it_changes_only_the_version_that_was_read(admin_api: Api, known: dict[str, str], path: str) -> None:
    place, (first, second) = filled(path, known), EDITS[path]
    etag = admin_api.get(place)["ETag"]
    assert admin_api.get(place)["ETag"] == etag  # reading changes nothing

    changed = admin_api.patch(place, first, headers={"If-Match": etag})
    late = admin_api.patch(place, second, headers={"If-Match": etag})

    assert changed.status_code == 200 and changed["ETag"] != etag
    assert (late.status_code, late.json()["code"]) == (412, "request:user:stale")
    assert "new ETag" in late.json()["next_step"]
    shown = admin_api.get(place)
    assert shown["ETag"] == changed["ETag"] and {name: shown.json()[name] for name in first} == first
    assert admin_api.patch(place, second, headers={"If-Match": changed["ETag"]}).status_code == 200


@pytest.mark.parametrize("path", EDITED)
@pytest.mark.parametrize("header", ["", " ", '""', "abc", '"0"', 'W/"0"', '"1", "2"', "*, *"])
def test_it_takes_no_other_text_for_the_version(admin_api: Api, known: dict[str, str], path: str, header: str) -> None:
    # The empty one is a script's variable that was never set: not the same as asking for no check.
    answer = admin_api.patch(filled(path, known), EDITS[path][0], headers={"If-Match": header})

    assert (answer.status_code, answer.json()["code"]) == (412, "request:user:stale")
    assert not AuditEvent.objects.filter(action__endswith=".update").exists()


@pytest.mark.parametrize("path", EDITED)
def test_it_takes_the_version_among_others_or_any(admin_api: Api, known: dict[str, str], path: str) -> None:
    place, (first, second) = filled(path, known), EDITS[path]
    etag = admin_api.get(place)["ETag"]

    one = admin_api.patch(place, first, headers={"If-Match": f'"0", {etag} , "1"'})
    any_ = admin_api.patch(place, second, headers={"If-Match": " * "})
    none = admin_api.patch(place, first)

    assert [answer.status_code for answer in (one, any_, none)] == [200, 200, 200]
    assert len({one["ETag"], any_["ETag"], none["ETag"]}) == 3


@pytest.mark.parametrize("path", EDITED)
def test_it_keeps_the_version_when_nothing_is_changed(admin_api: Api, known: dict[str, str], path: str) -> None:
    place = filled(path, known)
    before = admin_api.patch(place, EDITS[path][0])["ETag"]

    for body in ({}, EDITS[path][0]):
        answer = admin_api.patch(place, body, headers={"If-Match": before})
        assert (answer.status_code, answer["ETag"]) == (200, before)
    assert AuditEvent.objects.filter(action__endswith=".update").count() == 1


@pytest.mark.parametrize("path", DELETED)
def test_it_deletes_only_the_version_that_was_read(admin_api: Api, known: dict[str, str], path: str) -> None:
    if path.startswith("source-connections"):
        SourceConnection.objects.create(name="spare", type="S3", allowed=["models"])
    place = "source-connections/spare" if path.startswith("source-connections") else filled(path, known)
    old = admin_api.get(place)["ETag"]
    new = admin_api.patch(place, EDITS[path][0])["ETag"]

    assert admin_api.delete(place, headers={"If-Match": old}).status_code == 412
    assert admin_api.get(place).status_code == 200
    assert admin_api.delete(place, headers={"If-Match": new}).status_code in (202, 204)
    assert admin_api.get(place).status_code == 404


@pytest.mark.django_db
def test_it_refuses_under_the_lock_what_changed_after_the_api_looked() -> None:
    pin, connection = factories.pin(), factories.connection()
    read = {row.pk: row.updated_at for row in (pin, connection)}
    later = timedelta(microseconds=1)
    Pin.objects.update(updated_at=pin.updated_at + later, priority=1)
    SourceConnection.objects.update(updated_at=connection.updated_at + later)

    with pytest.raises(Stale):
        pin_remove(actor=SYSTEM, pin_id=pin.pk, if_updated_at=read[pin.pk])
    with pytest.raises(Stale):
        connection_delete(actor=SYSTEM, connection_id=connection.pk, if_updated_at=read[connection.pk])

    assert Pin.objects.get().removed_at is None and SourceConnection.objects.filter(pk=connection.pk).exists()


@pytest.mark.parametrize(
    ("path", "kind"), [("node-pools", NodePool), ("webhooks", Webhook), ("source-connections", SourceConnection)]
)
def test_it_gives_the_version_of_what_it_has_just_made(
    admin_api: Api, known: dict[str, str], path: str, kind: Any
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "node-pools": {"cluster": "bb", "name": "new", "selector": {"kind": "gpu"}},
        "webhooks": {"name": "new", "url": "https://192.0.2.1/", "secret_name": "hooks"},
        "source-connections": {"name": "new", "type": "S3", "allowed": ["models"]},
    }

    made = admin_api.post(path, bodies[path])

    assert made.status_code == 201, made.content
    shown = admin_api.get(made["Location"].removeprefix("http://testserver"))
    assert shown["ETag"] == made["ETag"] == etag_of(kind.objects.get(name="new"))
    assert shown.json() == made.json()


@given(
    moment=some.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2100, 1, 1), timezones=some.just(UTC)),
)
def test_it_tells_versions_apart_that_are_a_microsecond_apart(moment: datetime) -> None:
    later = moment + timedelta(microseconds=1)

    assert etag_of(Webhook(updated_at=moment)) != etag_of(Webhook(updated_at=later))
