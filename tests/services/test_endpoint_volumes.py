"""Endpoints whose pods bring their weights along: their image is kept all the same, by a pin that has no version."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone
from prometheus_client.core import CollectorRegistry

from caches.metrics import CachesCollector
from caches.models import Pin
from caches.selectors.coverage import pools_coverage
from caches.services.endpoints.mirrors import IMAGE_KINDS, WEIGHTS_KINDS
from caches.services.pin_specs import PinSpec
from caches.services.pins import pin_create, pin_preview
from controlplane.accounts.models import Scope, User
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import ArtifactKind
from controlplane.errors import Invalid
from tests.api.conftest import api_for
from tests.services.test_endpoint_images import HOLD, NEXT, VLLM, ImagesWorld, by_digest, served

__all__ = ["served"]  # a fixture
pytestmark = pytest.mark.django_db
VOLUMES = [{"name": "model-weights", "persistentVolumeClaim": {"claimName": "models"}}]
VOLUME = {
    "spec__modelSourceConfig": {"modelSourceType": "kubernetesVolume"},
    "spec__kubernetes": {"volumes": VOLUMES},
}


def apply(served: ImagesWorld, image: str = VLLM, **changes: Any) -> None:
    served.apply(**VOLUME, spec__worker__image=image, metadata__annotations=HOLD, **changes)


def test_its_image_is_kept_and_run_by_digest(served: ImagesWorld) -> None:
    digest = served.registry.push(VLLM, "one")
    apply(served)
    served.until_held()
    assert served.status["state"] == "DeploymentComplete"
    assert served.image == by_digest(VLLM, digest) and len(served.held) == 1
    assert served.condition("ImageCacheReady")[:2] == ("True", "Ready")
    assert "modelCacheConfig.weightsCache" in served.condition("FieldsIgnored")[2], "a cache that it cannot have"
    [pin] = served.pins
    assert (pin.version_id, pin.artifacts) == (None, ["Image"])
    kinds = {kind for kind, _ in served.gateway.mirrors}
    assert kinds == set(IMAGE_KINDS) and not kinds & set(WEIGHTS_KINDS)
    served.round()
    assert [one.pk for one in served.pins] == [pin.pk], "a round that is repeated makes no other"

    served.delete()
    for _ in range(3):
        served.round()
        served.pull()
    assert served.held == set() and served.pins == []


def test_another_image_stands_beside_it_until_it_is_released(served: ImagesWorld) -> None:
    served.registry.push(VLLM, "one")
    after = served.registry.push(NEXT, "two")
    apply(served)
    served.until_held()
    apply(served, NEXT)
    served.until_held()
    assert served.image == by_digest(NEXT, after) and served.rollout.state == "Holding"
    assert [pin.version_id for pin in served.pins] == [None, None] and len(served.held) == 2


def test_its_pin_is_shown_like_any_other(served: ImagesWorld, admin: User) -> None:
    served.registry.push(VLLM, "one")
    apply(served)
    served.until_held()
    [pin] = served.pins
    api = api_for(admin, Scope.READ)
    for query in ("", "?ordering=model", "?ordering=-model"):
        [row] = api.get(f"pins{query}").json()["items"]
        assert (row["model"], row["version"], row["digest"]) == (None, None, None)
        assert row["image"]["reference"] == VLLM and row["status"]["ready"] == 2
    assert api.get(f"pins/{pin.pk}").status_code == 200
    client = Client()
    client.force_login(admin)
    for path in ("/pins", f"/pins/{pin.pk}", f"/pins/{pin.pk}/unpin"):
        answer = client.get(path)
        assert answer.status_code == 200 and VLLM in answer.content.decode(), path
    assert client.get("/").status_code == 200
    [covered] = pools_coverage(now=timezone.now())
    assert covered.image_coverage.ready == 2 and covered.coverage.required == 0
    registry = CollectorRegistry()
    registry.register(CachesCollector())
    list(registry.collect())


def test_nobody_else_makes_a_pin_without_a_version(served: ImagesWorld) -> None:
    served.registry.push(VLLM, "one")
    apply(served)
    served.until_held()
    [pin] = served.pins
    pools = (served.world.pool.pk,)
    alone = PinSpec(version_id=None, pool_ids=pools, artifacts=(ArtifactKind.IMAGE,), image_id=pin.image_id)
    with pytest.raises(Invalid, match="an endpoint's"):
        pin_create(actor=SYSTEM, spec=alone)
    for spec in (PinSpec(version_id=None, pool_ids=pools), PinSpec(None, pools, artifacts=(ArtifactKind.IMAGE,))):
        with pytest.raises(Invalid, match="no such version"):
            pin_preview(spec=spec)
    for broken in ({"endpoint": None}, {"image": None}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Pin.objects.filter(pk=pin.pk).update(**broken)
