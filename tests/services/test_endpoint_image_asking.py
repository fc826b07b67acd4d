"""What an endpoint's reference means: who is asked, how often, and what is said until somebody knows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from caches.models import Image, ModelVersion, Pin
from caches.selectors.endpoint_targets import CacheTargets
from caches.services.endpoints.images import FOLDERS, EndpointImage, endpoint_image
from controlplane.clusters.models import ClusterType, NodePool
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind
from tests import factories
from tests.domain.endpoints import config, spec_of

pytestmark = pytest.mark.django_db
NAME = "registry.example/team/server:v1"


class Asking:
    """One rollout that began now, of an endpoint over one pool."""

    def __init__(self, type_: ClusterType = ClusterType.KUBERNETES) -> None:
        self.pool: NodePool = factories.pool(of=factories.cluster(type=type_))
        factories.node(of=self.pool)
        self.endpoint = factories.endpoint(of=self.pool.cluster)
        self.rollout = factories.rollout(of=self.endpoint, state="Preparing")
        self.version: ModelVersion | None = factories.version()

    def ask(self, reference: str = NAME, now: datetime | None = None, **changes: Any) -> EndpointImage:
        self.rollout.refresh_from_db()
        return endpoint_image(
            endpoint=self.endpoint,
            spec=spec_of(config(spec__worker__image=reference, **changes)),
            rollout=self.rollout,
            version=self.version,
            targets=CacheTargets((self.pool,), {}, "/opt"),
            now=now or timezone.now(),
        )

    @property
    def operations(self) -> int:
        return Operation.objects.filter(kind=OperationKind.IMAGE_REGISTER).count()


@pytest.fixture
def asking() -> Asking:
    return Asking()


def said(found: EndpointImage) -> tuple[str, str]:
    assert found.cache is not None
    return found.cache.state, found.cache.message


def known(reference: str = NAME, **fields: Any) -> Image:
    return factories.image(reference=reference, registry="registry.example", repository="team/server", **fields)


def test_it_is_asked_for_once_and_waited_for_a_moment(asking: Asking) -> None:
    for _ in range(3):
        found = asking.ask()
        assert (found.reference, found.pending) == (NAME, True)
        assert said(found) == ("Pending", "Its registry is asked for the digest.")
    assert asking.operations == 1
    late = asking.ask(now=asking.rollout.created_at + timedelta(seconds=16))
    assert (late.reference, late.pending) == (NAME, False)


@pytest.mark.parametrize(
    ("age", "pending"), [(timedelta(0), False), (timedelta(minutes=4), False), (timedelta(minutes=6), True)]
)
def test_a_new_rollout_takes_no_old_answer_for_its_own(age: timedelta, pending: bool, asking: Asking) -> None:
    image = known(checked_at=asking.rollout.created_at - age)
    found = asking.ask()
    assert found.pending is pending and asking.operations == int(pending)
    late = asking.ask(now=asking.rollout.created_at + timedelta(seconds=16))
    assert image.artifact is not None
    assert late.reference == f"registry.example/team/server@{image.artifact.digest}", "rather than wait on"


def test_a_digest_needs_no_fresh_answer(asking: Asking) -> None:
    image = known()
    assert image.artifact is not None
    fixed = f"registry.example/team/server@{image.artifact.digest}"
    Image.objects.update(reference=fixed, tag="", checked_at=None)
    found = asking.ask(fixed)
    assert (found.reference, found.pending, asking.operations) == (fixed, False, 0)
    assert Pin.objects.get().image == image


def test_what_was_found_is_kept_for_the_whole_rollout(asking: Asking) -> None:
    image = known()
    before = asking.ask().reference
    Image.objects.update(moved_to="sha256:" + "9" * 64)
    newer = known()
    found = asking.ask()
    assert found.reference == before and "names sha256:999" in found.moved
    assert image.artifact is not None and newer.artifact is not None and image.artifact.digest in before


def test_a_registration_that_somebody_took_away_is_asked_for_again_later(asking: Asking) -> None:
    asking.ask()
    Operation.objects.update(state="Failed")
    Image.objects.all().delete()
    asking.ask()
    assert asking.operations == 1, "not in every round"
    with time_machine.travel(timezone.now() + timedelta(minutes=6)):
        for _ in range(2):
            found = asking.ask()
            assert said(found)[0] == "Pending"
    assert asking.operations == 2 and Image.objects.count() == 1


def test_what_was_refused_is_said_and_asked_for_again_in_a_while(asking: Asking) -> None:
    asking.ask()
    Operation.objects.update(state="Failed")
    Image.objects.update(state="Refused", message="No such image.", next_step="Push it.", updated_at=timezone.now())
    for _ in range(2):
        found = asking.ask()
        assert said(found) == ("Failed", "No such image. Push it.") and not found.pending
    assert asking.operations == 1
    with time_machine.travel(timezone.now() + timedelta(minutes=6)):
        for _ in range(2):
            assert said(asking.ask()) == ("Failed", "No such image. Push it."), "that is all that is known meanwhile"
    assert asking.operations == 2 and Operation.objects.filter(state__in=ACTIVE_STATES).count() == 1
    asking.rollout.delete()
    asking.rollout = factories.rollout(of=asking.endpoint, number=2, state="Preparing")
    assert asking.ask().pending, "a rollout that comes now waits for what its registry says now"


def test_a_registry_that_does_not_answer_is_said_while_it_is_asked_again(asking: Asking) -> None:
    asking.ask()
    Operation.objects.update(message=f"{NAME}: the registry does not answer.", state="Running")
    found = asking.ask()
    told = f"{NAME}: the registry does not answer. It is asked again and again."
    assert (said(found), found.pending, asking.operations) == (("Failed", told), True, 1)


def test_without_a_version_that_would_name_the_image_it_says_why_there_is_none(asking: Asking) -> None:
    asking.rollout.refresh_from_db()
    given: dict[str, Any] = {"endpoint": asking.endpoint, "rollout": asking.rollout, "version": None}
    given |= {"spec": replace(spec_of(config()), image=""), "now": timezone.now()}
    given |= {"targets": CacheTargets((asking.pool,), {}, "/opt")}
    assert said(endpoint_image(**given))[0] == "Pending"
    state, message = said(endpoint_image(**given, refused="No connection allows it."))
    assert state == "Failed" and message.endswith("and there is none. No connection allows it.")
    image = known(checked_at=asking.rollout.created_at)
    given["spec"] = spec_of(config(spec__worker__image=image.reference))
    words = "It is kept once its weights are registered."
    assert said(endpoint_image(**given)) == ("Pending", words)
    assert said(endpoint_image(**given, refused="No such bucket.")) == ("Failed", f"{words} No such bucket.")


def test_what_is_no_reference_is_said_and_asked_of_nobody(asking: Asking) -> None:
    reference = "registry.example/Team"
    found = asking.ask(reference)
    assert said(found)[0] == "Failed" and said(found)[1] != "" and not found.pending
    assert (found.reference, asking.operations) == (reference, 0), "its pods are the cluster's business"


def test_without_the_cache_nobody_is_asked_and_pods_run_what_is_known(asking: Asking) -> None:
    off: dict[str, Any] = {"spec__modelCacheConfig__imageCache__enabled": False}
    assert asking.ask(**off) == EndpointImage(NAME)
    assert asking.operations == 0
    image = known(checked_at=None)
    assert image.artifact is not None
    found = asking.ask(**off)
    assert (found.reference.rpartition("@")[2], found.cache) == (image.artifact.digest, None)
    assert not Pin.objects.exists()


def test_folders_say_why_they_hold_none() -> None:
    asking = Asking(ClusterType.LOCAL)
    found = asking.ask()
    assert said(found) == ("Failed", FOLDERS) and not found.pending and asking.operations == 0


def test_weights_that_are_not_registered_yet_come_first(asking: Asking) -> None:
    image = known()
    asking.version = None
    found = asking.ask()
    assert said(found)[0] == "Pending" and "weights" in said(found)[1]
    assert image.artifact is not None and found.reference.endswith(image.artifact.digest)
    assert not Pin.objects.exists()
