"""What stands before each process on a cluster: it waits for the migrations."""

from __future__ import annotations

import pytest
from django.db.migrations.recorder import MigrationRecorder

from controlplane.management.commands.await_schema import await_schema, missing

Row = MigrationRecorder.Migration


def last() -> tuple[str, str]:
    row = Row.objects.filter(app="caches").order_by("-name").first()
    assert row is not None
    return str(row.app), str(row.name)


@pytest.mark.django_db
def test_it_waits_for_nothing_where_everything_is_there() -> None:
    assert await_schema(lambda: pytest.fail("nothing to wait for"), lambda reason: pytest.fail(reason))


@pytest.mark.django_db
def test_it_waits_until_the_last_migration_and_says_why_once() -> None:
    app, name = last()
    Row.objects.filter(app=app, name=name).delete()
    said: list[str] = []
    rounds = iter([False, False, True])

    def pause() -> bool:
        if next(rounds):
            Row.objects.create(app=app, name=name)
        return False

    assert await_schema(pause, said.append)
    assert said == [f"Waiting for 1 migration, {app}.{name} first."]


@pytest.mark.django_db
def test_it_gives_up_when_it_is_told_to() -> None:
    app, name = last()
    Row.objects.filter(app=app, name=name).delete()
    assert not await_schema(lambda: True, lambda reason: None)


@pytest.mark.django_db
def test_a_schema_that_is_ahead_is_enough() -> None:
    # A release was taken back: the database keeps what the newer one added.
    Row.objects.create(app="caches", name="9999_of_a_later_release")
    assert missing() == ""
