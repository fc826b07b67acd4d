"""A hold keeps what it says for as long as it says, whichever cache is switched meanwhile, and says no more than it
keeps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from caches.domain.text import second_text
from caches.models import CacheEntry, Image, ModelVersion
from caches.selectors.endpoints import Warmth, rollout_warmth
from caches.services.endpoints.rollout_holds import rollout_hold
from caches.services.endpoints.rollouts import rollout_release
from caches.services.images.catalogue import image_revoke
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import EntryState
from controlplane.clusters.gateway import Refused
from controlplane.errors import Clash
from tests.services.test_endpoint_images import HOLD, NEXT, VLLM, ImagesWorld, by_digest, served

__all__ = ["served"]  # a fixture
pytestmark = pytest.mark.django_db
WEIGHTS, IMAGE = "spec__modelCacheConfig__weightsCache__enabled", "spec__modelCacheConfig__imageCache__enabled"
BOTH_OFF = {WEIGHTS: False, IMAGE: False}
WARM = {"n1": EntryState.READY, "n2": EntryState.READY}
GONE = {"n1": EntryState.ABSENT, "n2": EntryState.ABSENT}
AN_HOUR = timedelta(seconds=3601)


@dataclass
class Walk:
    """Rollout 1 serves the weights ``before`` with VLLM, rollout 2 the weights ``after`` with NEXT."""

    served: ImagesWorld
    before: ModelVersion
    after: ModelVersion
    images: tuple[str, str]

    def first(self, **changes: Any) -> None:
        self.served.apply(metadata__annotations=HOLD, **changes)
        self.served.until_held()

    def second(self, **changes: Any) -> None:
        place = {"spec__modelSourceConfig__modelLocation": "llms/next", "spec__worker__image": NEXT}
        self.served.apply(**{**place, "metadata__annotations": HOLD, **changes})

    def until_holding(self) -> None:
        self.second()
        self.served.until_held()
        self.says("The weights and the image of the version before are kept until")

    def settle(self) -> None:
        """Nodes and holders do as they are told, and Hearth sees it."""
        for _ in range(3):
            self.served.round()
            self.served.warm()
            self.served.pull()

    def says(self, words: str) -> None:
        row = self.served.rollout
        assert (row.number, row.state) == (2, "Holding") and row.held_until is not None
        assert row.message == f"{words} {second_text(row.held_until)}."

    @property
    def pinned(self) -> set[str]:
        """The addresses of weights, and the references of images."""
        uris = {pin.version.uri for pin in self.served.pins if pin.version is not None and pin.image is None}
        return uris | {pin.image.reference for pin in self.served.pins if pin.image is not None}


@pytest.fixture
def walk(served: ImagesWorld) -> Walk:
    images = by_digest(VLLM, served.registry.push(VLLM, "one")), by_digest(NEXT, served.registry.push(NEXT, "two"))
    return Walk(served, served.version(), served.version("llms/next"), images)


@pytest.fixture
def holding(walk: Walk) -> Walk:
    walk.first()
    walk.until_holding()
    return walk


def test_held_weights_stay_while_their_cache_is_switched_off_and_on(holding: Walk) -> None:
    served = holding.served
    holding.second(**{WEIGHTS: False})
    holding.settle()
    assert holding.pinned == {holding.before.uri, VLLM, NEXT}, "what serves is released, and nothing else"
    assert served.entries(holding.before) == WARM and served.entries(holding.after) == GONE
    holding.says("The weights and the image of the version before are kept until")
    holding.second()
    holding.settle()
    assert holding.pinned == {holding.before.uri, holding.after.uri, VLLM, NEXT}
    assert served.entries(holding.before) == served.entries(holding.after) == WARM
    taken = AuditEvent.objects.filter(action="endpoint.evict").values_list("before__digest", flat=True)
    assert holding.after.artifact is not None and set(taken) == {holding.after.artifact.digest}


def test_a_held_image_stays_while_its_cache_is_switched_off_and_on(holding: Walk) -> None:
    served, (before, after) = holding.served, holding.images
    holding.second(**{IMAGE: False})
    holding.settle()
    assert holding.pinned == {holding.before.uri, holding.after.uri, VLLM}
    assert served.held == {before}
    holding.says("The weights and the image of the version before are kept until")
    assert served.rollout.previous is not None
    assert rollout_warmth(served.rollout.previous).image == Warmth(2, 2), "as it is shown"
    holding.second()
    holding.settle()
    assert holding.pinned == {holding.before.uri, holding.after.uri, VLLM, NEXT} and served.held == {before, after}


@pytest.mark.parametrize("off", [{WEIGHTS: False}, {IMAGE: False}, BOTH_OFF], ids=["weights", "image", "both"])
@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by time"])
def test_all_that_is_held_goes_when_the_hold_ends_while_a_cache_is_off(
    by_hand: bool, off: dict[str, bool], holding: Walk, actor: Actor
) -> None:
    served = holding.served
    holding.second(**off)
    holding.settle()
    assert {holding.before.uri, VLLM} <= holding.pinned
    served.serve()
    if by_hand:
        rollout_release(actor=actor, rollout_id=served.rollout.pk)
    with time_machine.travel(timezone.now() + (timedelta(0) if by_hand else AN_HOUR)):
        holding.settle()
    assert served.rollout.state == "Done"
    on = {holding.after.uri} if WEIGHTS not in off else set()
    assert holding.pinned == on | ({NEXT} if IMAGE not in off else set())
    assert served.entries(holding.before) == GONE
    assert served.entries(holding.after) == (WARM if on else GONE)
    assert served.held == ({holding.images[1]} if IMAGE not in off else set())


def test_a_hold_made_longer_while_both_caches_are_off_keeps_it_for_longer(holding: Walk, actor: Actor) -> None:
    served = holding.served
    holding.second(**BOTH_OFF)
    holding.settle()
    rollout_hold(actor=actor, rollout_id=served.rollout.pk, seconds=86400)
    holding.says("The weights and the image of the version before are kept until")
    with time_machine.travel(timezone.now() + AN_HOUR):
        served.round()
        assert holding.pinned == {holding.before.uri, VLLM}
    with time_machine.travel(timezone.now() + timedelta(days=1, seconds=1)):
        served.round()
        assert holding.pinned == set() and served.rollout.state == "Done"


def test_going_back_while_both_caches_are_off_finds_what_was_held_until_its_pods_have_come(holding: Walk) -> None:
    """Then what serves is what was held, and the caches are off for what serves."""
    holding.second(**BOTH_OFF)
    holding.settle()
    holding.served.apply(**BOTH_OFF, metadata__annotations=HOLD)
    holding.served.round()
    row = holding.served.rollout
    assert (row.number, row.version, row.state) == (3, holding.before, "Switching")
    assert holding.pinned == {holding.before.uri, VLLM} and holding.served.entries(holding.before) == WARM
    holding.served.serve()
    holding.settle()
    assert holding.pinned == set()
    assert holding.served.rollout.message.startswith("Nothing of the version before is kept")


def test_a_hold_that_has_ended_keeps_nothing_although_the_cluster_refuses_what_serves(
    holding: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise Refused("a rule of the cluster says no")

    holding.served.gateway.work = None  # somebody deleted the Deployment, and it cannot be made again
    monkeypatch.setattr(holding.served.gateway, "apply_served", refuses)
    with time_machine.travel(timezone.now() + AN_HOUR):
        holding.settle()
    assert holding.pinned == {holding.after.uri, NEXT} and holding.served.entries(holding.before) == GONE


def test_a_hold_ends_although_the_document_is_refused_since(holding: Walk) -> None:
    holding.second(spec__worker__image="a b")
    holding.settle()
    assert holding.pinned == {holding.before.uri, VLLM, holding.after.uri, NEXT}, "what serves goes on, and so it holds"
    with time_machine.travel(timezone.now() + AN_HOUR):
        holding.settle()
    assert holding.pinned == {holding.after.uri, NEXT} and holding.served.entries(holding.before) == GONE
    assert (holding.served.rollout.number, holding.served.rollout.state) == (2, "Done")


def test_weights_that_serve_and_are_held_stay_as_long_as_they_are_held(walk: Walk) -> None:
    """Of a rollout to another image alone."""
    same = {"spec__modelSourceConfig__modelLocation": "llms/chat-small"}
    walk.first()
    walk.second(**same)
    walk.served.until_held()
    walk.second(**same, **{WEIGHTS: False})
    walk.settle()
    assert walk.pinned == {walk.before.uri, VLLM, NEXT} and walk.served.entries(walk.before) == WARM
    with time_machine.travel(timezone.now() + AN_HOUR):
        walk.settle()
    assert walk.pinned == {NEXT} and walk.served.entries(walk.before) == GONE


@pytest.mark.parametrize(
    ("off", "words"),
    [
        ({WEIGHTS: False}, "The image of the version before is kept until"),
        ({IMAGE: False}, "The weights of the version before are kept until"),
        (BOTH_OFF, "Nothing of the version before is kept: none of it is pinned. The hold ends at"),
    ],
    ids=["weights", "image", "both"],
)
def test_of_a_cache_that_was_off_before_nothing_is_said_to_be_kept(
    off: dict[str, bool], words: str, walk: Walk, actor: Actor
) -> None:
    walk.first(**off)
    walk.second()
    walk.served.until_held()
    walk.says(words)
    assert walk.served.condition("RolledOut")[2] == walk.served.rollout.message
    walk.settle()
    walk.says(words)
    row = walk.served.rollout
    if off != BOTH_OFF:
        rollout_hold(actor=actor, rollout_id=row.pk, seconds=600)
        walk.says(words)
        return
    with pytest.raises(Clash) as refused:
        rollout_hold(actor=actor, rollout_id=row.pk, seconds=600)
    assert refused.value.code == "rollout:user:nothing-held"
    assert refused.value.detail.endswith("is Holding: nothing of the version before is pinned.")
    assert walk.served.rollout.held_until == row.held_until
    rollout_release(actor=actor, rollout_id=row.pk)
    walk.served.round()
    assert walk.served.rollout.state == "Done", "it is ended like any other"


def test_a_cache_that_is_off_while_pods_change_leaves_nothing_to_hold(walk: Walk) -> None:
    """It was switched before any hold began."""
    walk.first()
    walk.second()
    walk.served.round()
    walk.served.resolve()
    walk.served.round()
    walk.served.warm()
    walk.served.round()
    assert walk.served.rollout.state == "Switching"
    walk.second(**{WEIGHTS: False})
    walk.served.round()
    assert walk.before.uri not in walk.pinned
    walk.second()
    walk.settle()
    walk.served.serve()
    walk.served.round()
    walk.says("The image of the version before is kept until")


def test_an_image_that_is_withdrawn_is_said_to_be_kept_no_more(holding: Walk, actor: Actor) -> None:
    image_revoke(actor=actor, image_id=Image.objects.get(reference=VLLM).pk, reason="It has a hole.", withdraw=True)
    holding.settle()
    holding.says("The weights of the version before are kept until")
    assert not CacheEntry.objects.filter(artifact__digest__in=[holding.images[0]], state=EntryState.READY).exists()
