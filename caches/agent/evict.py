"""Taking an artifact away because the control plane said so: out of everybody's sight in one step, then removed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from caches.agent.jobs import Commit
from caches.agent.store import Store


@dataclass(slots=True)
class Evict:
    """``take_away`` at once, in the loop; ``run`` in a thread. The record goes after the files, never before."""

    store: Store
    digest: str
    stopped: threading.Event = field(init=False, default_factory=threading.Event)
    commit: Commit = field(init=False)

    def __post_init__(self) -> None:
        self.commit = Commit(self.stopped)

    def take_away(self) -> bool:
        """Rename what is there into the trash. False when nothing was there."""
        store, digest = self.store, self.digest
        tree = store.discard(store.tree(digest))
        partial = store.discard(store.partial(digest))
        return tree or partial

    def run(self) -> None:
        """Raises Stopped when the eviction was taken back before the record was forgotten; the files are gone then."""
        self.store.empty_trash()
        with self.commit():
            self.store.forget(self.digest)
