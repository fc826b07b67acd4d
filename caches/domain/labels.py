"""The node labels that say what is Ready on a node, spelt as the managed feature spells them.

The uid after the prefix is derived from the artifact's digest, so that a control plane with a fresh database calls the
same bytes by the same label. Its UUID version tells it from the labels of another controller, whose uids are random:
those are never touched.
"""

from __future__ import annotations

import functools
from uuid import UUID, uuid5

from controlplane.clusters.documents import ArtifactKind

WEIGHTS_READY = "inference.sagemaker.aws.amazon.com/weights-cache-ready."
IMAGE_READY = "inference.sagemaker.aws.amazon.com/image-cache-ready."

_DIGESTS = UUID("6f1d2c1e-5a3b-4a7e-9d0c-2f8f7a6b1c40")  # names within it are digests; must never change
_DERIVED = 5


@functools.lru_cache(maxsize=65536)  # a round asks for the same few on every node
def cache_uid(digest: str) -> str:
    """The uid by which labels name the artifact with this digest, e.g. ``sha256:…``."""
    return str(uuid5(_DIGESTS, digest))


def ready_label(digest: str, kind: ArtifactKind | str = ArtifactKind.WEIGHTS) -> str:
    """The node label that says that the artifact is Ready there; its value is ``true``."""
    return f"{IMAGE_READY if kind == ArtifactKind.IMAGE else WEIGHTS_READY}{cache_uid(digest)}"


@functools.lru_cache(maxsize=65536)
def is_ready_label(name: str) -> bool:
    """Whether a label is one that Hearth sets and may remove."""
    prefix = next((prefix for prefix in (WEIGHTS_READY, IMAGE_READY) if name.startswith(prefix)), None)
    if prefix is None:
        return False
    try:
        return UUID(name.removeprefix(prefix)).version == _DERIVED
    except ValueError:
        return False
