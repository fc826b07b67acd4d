"""The spelling of ready-labels is a contract with other controllers and with earlier databases."""

from __future__ import annotations

import re

import pytest

from caches.domain.labels import IMAGE_READY, WEIGHTS_READY, cache_uid, is_ready_label, ready_label
from controlplane.clusters.documents import ArtifactKind

DIGEST = "sha256:" + "ab" * 32


def test_it_spells_the_label_as_the_managed_feature_does() -> None:
    prefix, name = ready_label(DIGEST).split("/")
    assert prefix == "inference.sagemaker.aws.amazon.com"
    assert re.fullmatch(r"weights-cache-ready\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", name)
    assert len(name) <= 63  # the limit of a label's name


def test_it_calls_the_same_bytes_by_the_same_uid_for_ever() -> None:
    assert cache_uid(DIGEST) == "2692b3ec-2b73-5efa-ab94-ce23daa570e1"


def test_it_tells_different_bytes_apart() -> None:
    assert cache_uid(DIGEST) != cache_uid(DIGEST[:-1] + "c")


def test_it_knows_its_own_labels() -> None:
    assert is_ready_label(ready_label(DIGEST))
    assert is_ready_label(ready_label(DIGEST, ArtifactKind.IMAGE))
    assert ready_label(DIGEST, ArtifactKind.IMAGE) == f"{IMAGE_READY}{cache_uid(DIGEST)}" != ready_label(DIGEST)


@pytest.mark.parametrize(
    "foreign",
    [
        f"{WEIGHTS_READY}0b7c6f2e-8f0a-4a53-9d7e-6d3d1f6a5c11",  # the vendor's operator: random uids
        f"{WEIGHTS_READY}",
        f"{WEIGHTS_READY}llama",
        f"{IMAGE_READY}0b7c6f2e-8f0a-4a53-9d7e-6d3d1f6a5c11",
        f"{IMAGE_READY}{DIGEST[7:19]}",
        f"hearth.dev/weights-cache-ready.{cache_uid(DIGEST)}",
        cache_uid(DIGEST),
        "kubernetes.io/hostname",
    ],
)
def test_it_leaves_the_labels_of_others_alone(foreign: str) -> None:
    assert not is_ready_label(foreign)
