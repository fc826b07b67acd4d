"""Rollouts of an endpoint: warmed beside what serves, switched, held, gone back to, released."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from caches.domain.rollouts import RolloutFacts, RolloutState, VersionFacts
from caches.models import Rollout
from caches.services.admission import CapacityClash
from caches.services.endpoints import pins as endpoint_pins
from caches.services.endpoints.rollout_holds import rollout_hold
from caches.services.endpoints.rollouts import rollout_step
from caches.services.pin_specs import PinSpec
from caches.services.pins import pin_create
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import EntryState
from tests import factories
from tests.services.endpoints import EndpointWorld
from tests.services.world import MIB

pytestmark = pytest.mark.django_db
PLACE = "spec__modelSourceConfig__modelLocation"
HOLD = {"hearth.dev/hold-seconds": "3600"}


def next_version(served: EndpointWorld, **changes: object) -> None:
    served.version("llms/next")
    served.apply(**{PLACE: "llms/next", "metadata__annotations": HOLD, **changes})


def test_a_new_path_warms_gates_switches_holds_and_releases(served: EndpointWorld) -> None:
    old = served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    next_version(served)
    served.round()
    assert (served.rollout.number, served.rollout.state) == (2, "Warming")
    assert len(served.gateway.deployments) == 1, "what serves is not touched before the gate opens"
    assert len(served.pins) == 2
    served.warm()
    served.round()
    assert len(served.gateway.deployments) == 2 and served.rollout.state == "Switching"
    served.serve()
    served.round()
    assert served.rollout.state == "Holding" and len(served.pins) == 2
    assert served.entries(old) == {"n1": EntryState.READY, "n2": EntryState.READY}
    with time_machine.travel(timezone.now() + timedelta(seconds=3601)):
        served.round()
    assert served.rollout.state == "Done"
    [pin] = served.pins
    assert pin.version_id != old.pk
    served.world.settle()
    assert served.entries(old) == {"n1": EntryState.ABSENT, "n2": EntryState.ABSENT}


def test_a_hold_that_somebody_makes_longer_is_not_ended_by_a_step_that_did_not_know(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    next_version(served)
    served.until_served()
    row = served.rollout
    late = timezone.now() + timedelta(hours=2)
    seen = RolloutFacts(RolloutState.HOLDING, VersionFacts(True), late, held_until=row.held_until)
    rollout_hold(actor=SYSTEM, rollout_id=row.pk, seconds=86400)
    assert rollout_step(rollout=row, facts=seen).state == "Holding"
    assert rollout_step(rollout=row, facts=replace(seen, held_until=row.held_until)).state == "Holding"
    after = replace(seen, held_until=row.held_until, now=late + timedelta(days=2))
    assert rollout_step(rollout=row, facts=after).state == "Done"


def test_what_somebody_else_pinned_stays_when_an_endpoint_goes(served: EndpointWorld) -> None:
    version = served.version()
    served.apply()
    served.until_served()
    pin_create(actor=SYSTEM, spec=PinSpec(version_id=version.pk, pool_ids=(served.world.pool.pk,)))
    served.delete()
    served.round()
    served.world.settle()
    assert served.entries(version) == {"n1": EntryState.READY, "n2": EntryState.READY}


def test_files_on_a_node_that_is_down_go_when_it_comes_back(served: EndpointWorld) -> None:
    version = served.version()
    served.apply()
    served.until_served()
    served.delete()
    served.round()
    for _ in range(3):
        served.world.reconcile()
        served.world.obey("n1")
        served.world.observe()
    assert served.entries(version) == {"n1": EntryState.ABSENT, "n2": EntryState.READY}
    served.world.settle()
    assert served.entries(version) == {"n1": EntryState.ABSENT, "n2": EntryState.ABSENT}


def test_going_back_finds_the_old_version_warm(served: EndpointWorld) -> None:
    old = served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    next_version(served)
    served.until_served()
    assert served.rollout.state == "Holding"
    served.apply(metadata__annotations=HOLD)
    served.round()
    assert [row.state for row in Rollout.objects.order_by("number")] == ["Done", "RolledBack", "Switching"]
    assert served.rollout.version == old and served.rollout.reason == "GateOpen"
    assert len(served.gateway.deployments) == 3, "at once: nothing has to be fetched"


def test_a_third_version_supersedes_the_second_while_that_warms(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    next_version(served)
    served.round()
    served.version("llms/third")
    served.apply(**{PLACE: "llms/third"}, metadata__annotations=HOLD)
    served.round()
    assert [row.state for row in Rollout.objects.order_by("number")] == ["Done", "Superseded", "Warming"]
    assert {pin.version.uri for pin in served.pins if pin.version} == {
        "s3://models/llms/chat-small",
        "s3://models/llms/third",
    }


def numbers(served: EndpointWorld) -> list[str]:
    """Of the rollouts that the pods of each Deployment written so far carry."""
    templates = [made["spec"]["template"]["metadata"]["annotations"] for made in served.gateway.deployments]
    return [annotations["hearth.dev/rollout"] for annotations in templates]


def test_going_back_to_what_serves_while_another_version_warms_touches_no_pod(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    next_version(served)
    served.round()
    served.apply(metadata__annotations=HOLD)
    served.round()
    assert [row.state for row in Rollout.objects.order_by("number")] == ["Done", "Superseded", "Done"], "at once"
    first, *again = served.gateway.deployments
    assert all(made == first for made in again), "what is written is word for word what runs"
    assert [pin.version.uri for pin in served.pins if pin.version] == ["s3://models/llms/chat-small"]


def test_going_back_while_another_version_rolls_out_leaves_the_pods_that_are_still_there(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    next_version(served)
    served.round()
    served.warm()
    served.round()
    assert served.rollout.state == "Switching" and numbers(served) == ["1", "2"]
    served.apply(metadata__annotations=HOLD)
    served.round()
    served.serve()
    served.round()
    assert [row.state for row in Rollout.objects.order_by("number")] == ["Done", "Superseded", "Holding"]
    assert numbers(served) == ["1", "2", "1"]
    assert served.gateway.deployments[2] == served.gateway.deployments[0], "the ReplicaSet of then"
    # And forth again: what was given up is held, and goes on as it was.
    next_version(served)
    served.round()
    assert served.gateway.deployments[-1] == served.gateway.deployments[1]


def test_going_back_after_a_version_that_would_not_run_replaces_none_of_those_that_do(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    next_version(served)
    served.until_failed("It crashes.")
    served.apply(metadata__annotations=HOLD)
    served.round()
    assert served.rollout.state == "Switching" and numbers(served) == ["1", "2", "1"]
    next_version(served)
    served.round()
    assert numbers(served)[-1] == "4", "what failed is tried anew, with new pods"


def test_another_image_alone_rolls_out_without_another_pin(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    served.apply(spec__worker__image="vllm/vllm-openai:v2", metadata__annotations=HOLD)
    served.round()
    assert (served.rollout.number, served.rollout.state) == (2, "Switching"), "its weights are warm"
    assert served.gateway.deployments[-1]["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":v2")
    served.serve()
    served.round()
    assert len(served.pins) == 1


def test_what_does_not_fit_beside_its_predecessor_waits_with_numbers(served: EndpointWorld) -> None:
    served.version(size=600 * MIB)
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    served.version("llms/next", size=600 * MIB)
    served.apply(**{PLACE: "llms/next"}, metadata__annotations=HOLD)
    served.round()
    assert served.rollout.state == "WaitingForRoom"
    assert "600 MiB" in served.rollout.message and "does not fit" in served.rollout.message
    assert len(served.gateway.deployments) == 1 and len(served.pins) == 1


def test_a_gate_that_would_make_another_pin_which_does_not_fit_leaves_the_one_there_is(
    served: EndpointWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds what serves."""
    served.version()
    served.apply()
    served.until_served()
    [before] = served.pins

    def no_room(**given: object) -> None:
        raise CapacityClash("It does not fit: 1 of 2.", next_step="Free some space.", plans=())

    with monkeypatch.context() as full:
        full.setattr(endpoint_pins, "pin_create", no_room)
        served.apply(metadata__annotations={"hearth.dev/gate": "Count:1"})
        served.round()
    assert [pin.pk for pin in served.pins] == [before.pk]
    served.round()
    assert len(served.pins) == 1 and served.pins[0].pk != before.pk, "with room it is moved"


def test_a_deployment_that_gives_up_fails_the_rollout_and_keeps_the_old_pin(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    next_version(served)
    served.round()
    served.warm()
    served.round()
    served.serve(failed="The pods do not get ready.")
    served.round()
    assert (served.rollout.state, served.status["state"]) == ("Failed", "DeploymentFailed")
    assert len(served.pins) == 2, "nothing is taken away from pods that still serve"


def third_version(served: EndpointWorld) -> None:
    served.version("llms/third")
    served.apply(**{PLACE: "llms/third"}, metadata__annotations=HOLD)


def test_what_never_served_is_not_held(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations=HOLD)
    served.round()
    served.warm()
    served.round()
    served.serve(available=0)
    assert served.rollout.opened_at is not None
    next_version(served)
    served.until_served()
    assert [row.state for row in Rollout.objects.order_by("number")] == ["Superseded", "Done"]
    assert served.rollout.previous is None and len(served.pins) == 1


@pytest.mark.parametrize("when", ["before the next begins", "before the next opens"])
def test_what_served_with_some_of_its_pods_is_held(when: str, served: EndpointWorld) -> None:
    old = served.version()
    served.apply(metadata__annotations=HOLD)
    served.round()
    served.warm()
    served.round()
    served.serve(available=0)

    def one_serves() -> None:
        assert old.artifact is not None
        factories.instance(of=served.endpoint, ready=True, digest=old.artifact.digest)

    if when == "before the next begins":
        one_serves()
    next_version(served)
    served.round()
    if when == "before the next opens":
        one_serves()
    served.until_served()
    assert (served.rollout.state, served.rollout.previous) == ("Holding", Rollout.objects.get(number=1))
    assert len(served.pins) == 2


def test_what_serves_stays_pinned_while_one_after_another_fails_to_replace_it(served: EndpointWorld) -> None:
    first = served.version()
    served.apply(metadata__annotations=HOLD)
    served.until_served()
    next_version(served)
    served.until_failed()
    third_version(served)
    served.round()
    assert served.rollout.state == "Warming"
    assert first.pk in {pin.version_id for pin in served.pins}, "its pods are those that serve"
    served.until_served()
    assert (served.rollout.state, served.rollout.previous) == ("Holding", Rollout.objects.get(number=1))
    assert {pin.version_id for pin in served.pins} == {first.pk, served.rollout.version_id}
