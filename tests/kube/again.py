"""What has failed on a real node is tried again by a person: by itself an agent waits a minute or longer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from caches.models import ModelVersion
from caches.services.entries import entry_retry
from controlplane.audit.services import SYSTEM
from controlplane.errors import Clash, Missing
from tests.kube.hearth import HearthOnKube


def warm_again(hearth: HearthOnKube, node: str, version: ModelVersion) -> Callable[[], bool]:
    """To wait for: whether it is Ready there. Until then a person asks for it whenever it is Failed."""

    def warm() -> bool:
        entry = hearth.entry(node, version)
        if entry is not None:
            with suppress(Clash, Missing):  # it has not failed, or is tried already
                entry_retry(actor=SYSTEM, entry_id=entry.pk)
        return hearth.is_ready(version, node)

    return warm
