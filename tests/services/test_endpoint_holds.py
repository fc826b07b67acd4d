"""Ending a hold: said at once by whom and when, let go by the next round, and taken back by who speaks before that."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from caches.domain.rollouts import RolloutFacts, RolloutState, VersionFacts
from caches.domain.text import second_text
from caches.models import ModelVersion, Rollout
from caches.services.endpoints.rollout_holds import rollout_hold
from caches.services.endpoints.rollouts import rollout_release, rollout_step
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.errors import Clash
from tests.services.endpoints import EndpointWorld

pytestmark = pytest.mark.django_db
VERA = Actor(name="vera", via="Api", request_id="r-2")  # type: ignore[arg-type]


@pytest.fixture
def before(served: EndpointWorld) -> ModelVersion:
    """What rollout 2 holds for an hour."""
    hold = {"metadata__annotations": {"hearth.dev/hold-seconds": "3600"}}
    first = served.version()
    served.apply(**hold)
    served.until_served()
    served.version("llms/next")
    served.apply(**hold, spec__modelSourceConfig__modelLocation="llms/next")
    served.until_served()
    assert served.rollout.state == "Holding"
    return first


def has(served: EndpointWorld, version: ModelVersion) -> bool:
    return version.pk in {pin.version_id for pin in served.pins}


def facts(row: Rollout) -> RolloutFacts:
    """As a round sees it that looks now."""
    return RolloutFacts(
        RolloutState(row.state), VersionFacts(True), row.updated_at, held_until=row.held_until,
        released=row.released_at is not None,
    )  # fmt: skip


def test_who_ends_a_hold_is_said_at_once_and_stays_known(
    served: EndpointWorld, before: ModelVersion, actor: Actor
) -> None:
    row = rollout_release(actor=actor, rollout_id=served.rollout.pk)
    assert row.held_at is not None and (row.held_by, row.held_until) == ("olga", row.held_at)
    assert row.message == f"olga ended the hold at {second_text(row.held_at)}: the version before is kept no longer."
    assert row.released_by == "", "nobody opened its gate by hand"
    assert has(served, before), "a round lets it go"
    again = rollout_release(actor=VERA, rollout_id=row.pk)
    assert (again.held_by, again.held_at) == ("olga", row.held_at), "twice is once"
    assert AuditEvent.objects.filter(action="rollout.release").count() == 1
    served.round()
    ended = served.rollout
    assert (ended.state, ended.held_by, ended.held_at) == ("Done", "olga", row.held_at)
    assert not has(served, before)


def test_a_hold_that_is_asked_for_before_anything_went_wins(
    served: EndpointWorld, before: ModelVersion, actor: Actor
) -> None:
    seen = facts(rollout_release(actor=actor, rollout_id=served.rollout.pk))
    held = rollout_hold(actor=VERA, rollout_id=served.rollout.pk, seconds=600)
    assert held.held_by == "vera" and not held.hold_was_ended and "are kept until" in held.message
    assert rollout_step(rollout=served.rollout, facts=seen).state == "Holding", "of a round that looked in between"
    served.round()
    assert served.rollout.state == "Holding" and has(served, before)
    told = AuditEvent.objects.get(action="rollout.hold").before
    assert told is not None and told["ended_by"] == "olga", "and the trail says whose word that was"
    rollout_release(actor=actor, rollout_id=held.pk)
    served.round()
    assert served.rollout.state == "Done" and not has(served, before), "the last word counts"


def test_a_step_that_did_not_know_takes_no_word_back(served: EndpointWorld, before: ModelVersion, actor: Actor) -> None:
    seen = facts(served.rollout)
    row = rollout_release(actor=actor, rollout_id=served.rollout.pk)
    stepped = rollout_step(rollout=served.rollout, facts=replace(seen, now=seen.now + timedelta(seconds=1)))
    assert stepped.message == row.message and stepped.hold_was_ended


def test_what_comes_too_late_is_told_who_ended_it(served: EndpointWorld, before: ModelVersion, actor: Actor) -> None:
    row = rollout_release(actor=actor, rollout_id=served.rollout.pk)
    served.round()
    assert row.held_at is not None
    why = f"is Done: olga ended its hold at {second_text(row.held_at)}."
    with pytest.raises(Clash) as refused:
        rollout_hold(actor=VERA, rollout_id=row.pk, seconds=600)
    assert refused.value.code == "rollout:user:nothing-held" and refused.value.detail.endswith(why)
    with pytest.raises(Clash) as refused:
        rollout_release(actor=VERA, rollout_id=row.pk)
    assert refused.value.detail.endswith(why)
