"""Whatever happens to the store, a watcher that lists, watches and lists again after Gone holds what is there."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controlplane.clusters.gateway import EventType, Gone
from controlplane.clusters.local import database
from controlplane.clusters.local.store import Store

names = st.sampled_from(["a", "b", "c"])
kinds = st.sampled_from(["Thing", "Other"])
uids = st.sampled_from(["one", "two"])
texts = st.sampled_from(["1", "2", "3"])


class Mirror:
    """What a watcher of one kind believes."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[str, str, str | None]] = {}
        self.token = ""

    def catch_up(self, store: Store) -> None:
        with store.read() as session:
            try:
                changes, self.token = session.changes("Thing", self.token)
            except Gone:
                listed = session.all("Thing")
                self.objects = {stored.name: (stored.uid, stored.spec, stored.status) for stored in listed}
                self.token = session.token("Thing")
                return
        for change in changes:
            known = self.objects.get(change.object.name)
            if change.type is EventType.DELETED:
                assert known is not None and known[0] == change.object.uid, "it deletes what was told, and no other"
                del self.objects[change.object.name]
            else:
                assert (known is None) == (change.type is EventType.ADDED)
                self.objects[change.object.name] = (change.object.uid, change.object.spec, change.object.status)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hearth-store-"))
        database.database_create(self.folder)
        self.store = Store(self.folder, keep_changes=7)
        self.truth: dict[tuple[str, str], tuple[str, str, str | None]] = {}
        self.generations: dict[tuple[str, str], int] = {}
        self.eager, self.lazy = Mirror(), Mirror()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(kind=kinds, name=names, uid=uids, spec=texts, status=st.none() | texts)
    def put(self, kind: str, name: str, uid: str, spec: str, status: str | None) -> None:
        known = self.truth.get((kind, name))
        with self.store.write() as session:
            generation = session.put(kind, name, uid, spec=spec, status=status)
        if known is None or known[0] != uid:
            assert generation == 1
        else:
            assert generation == self.generations[(kind, name)] + (known[1] != spec)
        self.truth[(kind, name)] = (uid, spec, status)
        self.generations[(kind, name)] = generation

    @rule(kind=kinds, name=names)
    def delete(self, kind: str, name: str) -> None:
        with self.store.write() as session:
            assert session.delete(kind, name) == ((kind, name) in self.truth)
        self.truth.pop((kind, name), None)

    @rule()
    def look(self) -> None:
        self.lazy.catch_up(self.store)
        assert self.lazy.objects == self._things()

    @precondition(lambda self: self.eager.token)
    @rule()
    def repeat(self) -> None:
        """A token may be used again: the answer is the same, or Gone."""
        with self.store.read() as session:
            assert session.changes("Thing", self.eager.token)[0] == ()

    @rule()
    def compact(self) -> None:
        with self.store.write() as session:
            session.compact(session.version())

    @invariant()
    def the_eager_watcher_is_right(self) -> None:
        self.eager.catch_up(self.store)
        assert self.eager.objects == self._things()

    def _things(self) -> dict[str, tuple[str, str, str | None]]:
        return {name: value for (kind, name), value in self.truth.items() if kind == "Thing"}


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
