"""Phases that an earlier rule gave are made again, and nothing else of the launch."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from caches.domain.launches.timeline import RULE
from caches.domain.launches.words import Mark
from caches.models import Launch, LaunchHour
from caches.services.launches.retiming import launches_retime
from tests import factories
from tests.domain.launches import mark
from tests.services.launches import settle, sighting, take_in

pytestmark = pytest.mark.django_db
KEPT = ("event_class", "weights", "miss_reason", "node_name", "began_at", "ready_seconds", "total_seconds", "state")


def launch(uid: str, ready: float = 20) -> Launch:
    """A hit that was found in 20 ms by a step that ran for 2 s."""
    seen = [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 1), mark(Mark.ENSURE_STARTED, 1)]
    seen += [mark(Mark.ENSURE_ENDED, 3, seconds=0.02, found="hit"), mark(Mark.STARTED, 3), mark(Mark.READY, ready)]
    (made,) = take_in(sighting(factories.cluster(name=f"of-{uid}"), uid, *seen))
    settle()
    return Launch.objects.get(pk=made.pk)


def as_before(made: Launch, **fields: Any) -> None:
    """As the version before assembled it, with labels that nobody could find again."""
    changed = {"rule": 1, "reached": "FirstRequest", "phase_seconds": [1, None, 2, None, None, None, None]}
    Launch.objects.filter(pk=made.pk).update(**changed, event_class="NewModelVersion", unknown_seconds=17, **fields)


def test_what_an_earlier_rule_gave_is_made_again_and_labels_and_counts_stay() -> None:
    made, young = launch("u-1"), launch("u-2")
    assert made.rule == RULE and launches_retime() == 0, "what this version assembles follows its rule"
    as_before(made)
    before = Launch.objects.values(*KEPT).get(pk=made.pk)
    assert not LaunchHour.objects.filter(step="Hour").exists()
    assert launches_retime() == 1
    found = Launch.objects.get(pk=made.pk)
    assert (found.phase_seconds, found.phases, found.unknown_seconds, found.reached, found.rule) == (
        made.phase_seconds, made.phases, made.unknown_seconds, "HealthChecks", RULE,
    )  # fmt: skip
    assert found.phase_seconds[2] == 0.02 and found.unknown_seconds == pytest.approx(18.98)
    assert Launch.objects.values(*KEPT).get(pk=made.pk) == before and found.event_class == "NewModelVersion"
    assert found.stale_at is None and not LaunchHour.objects.filter(step="Hour").exists(), "its hour counts the same"
    assert Launch.objects.get(pk=young.pk).phases == young.phases and launches_retime() == 0


def test_it_takes_the_latest_first_and_no_more_than_it_may() -> None:
    made = [launch(f"u-{number}", ready=20 + number) for number in range(3)]
    for number, one in enumerate(made):
        as_before(one, began_at=one.began_at.replace(year=2020 + number))
    assert launches_retime(limit=2) == 2
    assert list(Launch.objects.filter(rule=1).values_list("pk", flat=True)) == [made[0].pk]
    assert (launches_retime(), launches_retime()) == (1, 0)


def test_what_waits_is_left_to_its_assembly_and_what_has_no_evidence_as_it_is() -> None:
    waits, bare = launch("u-1"), launch("u-2")
    as_before(waits, stale_at=waits.began_at)
    as_before(bare)
    bare.observations.all().delete()
    assert launches_retime() == 1
    assert Launch.objects.get(pk=bare.pk).phase_seconds[2] == 2, "there is nothing to make it of"
    settle()
    found = Launch.objects.get(pk=waits.pk)
    assert (found.rule, found.reached, found.phase_seconds[2]) == (RULE, "HealthChecks", 0.02)


def test_what_a_process_of_before_writes_follows_the_rule_of_before() -> None:
    made = launch("u-1")
    columns = [str(one.column) for one in Launch._meta.concrete_fields if one.column not in ("rule", "id")]
    names = ", ".join(columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {Launch._meta.db_table} (id, {names}) SELECT gen_random_uuid(), {names}"
            f" FROM {Launch._meta.db_table} WHERE id = %s",
            [made.pk],
        )
    assert sorted(Launch.objects.values_list("rule", flat=True)) == [1, RULE]
