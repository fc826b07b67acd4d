"""A fresh database beside a running cluster: nothing is touched, everything is shown, and one call takes it over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from caches.domain.labels import ready_label
from caches.domain.manifests import manifest_decode
from caches.models import Artifact, CacheEntry, ModelVersion, NodeProjection, SourceConnection, UnknownCopy
from caches.services.adoption import NO_MANIFEST, Adoption, cluster_adopt
from caches.services.pins import PinSpec, pin_create
from caches.services.pool_deletion import pool_delete
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action, ConnectionSpec, EntryState, Manifest, Origin, Orphan, SourceType
from controlplane.clusters.gateway import Unreachable
from controlplane.errors import Missing, Transient
from tests import factories
from tests.services.faulty import faulty
from tests.services.lost import lose_everything
from tests.services.world import MIB, World, version_of


@pytest.fixture
def warm(world: World, actor: Actor) -> Any:
    """``llama v1`` from the store ``lab``, pinned and Ready on both nodes; it is remembered as it was."""
    lab = factories.connection(
        name="lab", type="S3", allowed=["models"], region="eu-1", bytes_per_second=10**9, namespaces=["a"]
    )
    version = version_of(
        300 * MIB, connection=lab, model="llama", version="v1", uri="s3://models/llama", ignore_patterns=["*.md"]
    )
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    world.observe()
    return version


@pytest.fixture
def lost(world: World, warm: Any) -> Iterator[str]:
    """The database is fresh and has looked at the cluster; the digest of what is there."""
    digest = str(warm.artifact.digest)
    lose_everything()
    world.observe()
    yield digest


def adopt(world: World, actor: Actor, **options: Any) -> Adoption:
    return cluster_adopt(actor=actor, cluster_id=world.cluster.pk, **options)


def labels(world: World) -> list[bool]:
    world.observe()
    digest = ready_label(next(iter(world.held["n1"])))
    return [digest in world.node(name).labels for name in world.links]


def told(world: World) -> dict[str, dict[str, Action]]:
    return {name: world.desired(name) for name in world.links}


def test_a_fresh_database_leaves_every_line_and_label_as_they_are(world: World, lost: str) -> None:
    before = told(world)
    for _ in range(3):
        world.reconcile()
        world.obey()
        world.observe()
    assert told(world) == before == {name: {lost: Action.ENSURE} for name in world.links}
    assert labels(world) == [True, True]
    assert NodeProjection.objects.count() == 0
    assert "manage.py adopt" in world.loop().error and "1 artifact that 2 nodes" in world.loop().error
    copies = UnknownCopy.objects.values_list("digest", "state", "bytes_done", "wanted")
    assert list(copies) == [(lost, EntryState.READY, 300 * MIB, True)] * 2


def test_it_looks_before_it_writes_although_no_watcher_has_told_yet(world: World, lost: str) -> None:
    """A worker may come to the pool before the watcher has listed the NodeCaches."""
    UnknownCopy.objects.all().delete()
    world.reconcile()
    assert told(world) == {name: {lost: Action.ENSURE} for name in world.links}


def test_a_node_that_holds_nothing_strange_is_not_held_up(world: World, lost: str, actor: Actor) -> None:
    world.add("n3")
    world.observe()
    version = version_of(50 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.reconcile()
    world.reconcile()
    assert world.desired("n3") == {version.artifact.digest: Action.ENSURE}
    assert world.desired("n1") == {lost: Action.ENSURE}


def test_adoption_brings_back_names_sources_and_copies(world: World, lost: str, actor: Actor) -> None:
    nameless = factories.launch(digest=lost)
    found = adopt(world, actor)
    assert (found.connections, found.versions, found.artifacts) == (["lab"], ["llama v1"], [lost])
    nameless.refresh_from_db()
    assert nameless.stale_at is not None, "it gets the name of its version"
    assert (found.known, found.copies, found.not_adopted, found.orphans) == (0, 2, [], [])

    version = ModelVersion.objects.select_related("model", "artifact", "connection").get()
    assert (version.full_name, version.state, version.uri) == ("llama v1", "Available", "s3://models/llama")
    assert (version.ignore_patterns, version.drift) == (["*.md"], "Unchecked")
    assert version.artifact is not None
    assert manifest_decode(bytes(version.artifact.manifest)).digest == lost
    lab = version.connection
    assert (lab.name, lab.type, lab.region, lab.allowed) == ("lab", "S3", "eu-1", ["models"])
    assert (lab.bytes_per_second, lab.namespaces) == (10**9, ["a"]), "and nobody may more than before"
    assert {entry.state for entry in CacheEntry.objects.all()} == {"Ready"}
    assert not UnknownCopy.objects.exists()

    plan = world.reconcile()
    assert (plan.moves, plan.evictions) == ((), ())
    assert told(world) == {name: {lost: Action.ENSURE} for name in world.links}
    assert labels(world) == [True, True]
    assert world.loop().error == ""
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    assert world.reconcile().moves == (), "it is warm already"


def test_adoption_is_in_the_trail_once_however_often_it_is_asked_for(world: World, lost: str, actor: Actor) -> None:
    adopt(world, actor)
    again = adopt(world, actor)
    assert (again.connections, again.versions, again.artifacts, again.known) == ([], [], [], 1)
    [event] = AuditEvent.objects.filter(action="cluster.adopt")
    assert (event.object_name, event.actor) == (world.cluster.name, actor.name)
    assert event.after == {
        "connections": ["lab"], "versions": ["llama v1"], "artifacts": 1, "copies": 2, "not_adopted": 0,
    }  # fmt: skip


def test_a_dry_run_says_the_same_and_writes_nothing(world: World, lost: str, actor: Actor) -> None:
    events = AuditEvent.objects.count()
    dry = adopt(world, actor, dry_run=True)
    assert not ModelVersion.objects.exists() and not Artifact.objects.exists()
    assert not SourceConnection.objects.exists() and AuditEvent.objects.count() == events
    assert not UnknownCopy.objects.filter(released=True).exists()
    done = adopt(world, actor)
    assert (dry.versions, dry.connections, dry.copies) == (done.versions, done.connections, done.copies)


def test_what_nobody_published_is_named_and_then_no_longer_waited_for(world: World, lost: str, actor: Actor) -> None:
    world.gateway.delete_manifest(lost)
    found = adopt(world, actor)
    [left] = found.not_adopted
    assert (left.digest, left.reason, left.nodes) == (lost, NO_MANIFEST, ("n1", "n2"))
    world.reconcile()
    assert told(world) == {"n1": {}, "n2": {}}
    assert world.loop().error == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "", "version": ""}, "published without a name, from s3://models/llama"),
        ({"model": "../x"}, "A model's name has"),
        ({"version": "v 1"}, "A version has"),
        ({"uri": "s3://" + "x" * 1600}, "at most 1500"),
        ({"connection": ConnectionSpec("lab", SourceType.FILESYSTEM, allowed=("/etc",))}, "/etc"),
        ({"connection": ConnectionSpec("LAB!", SourceType.S3, allowed=("models",))}, "A name has lower-case"),
        ({"connection": ConnectionSpec("lab", SourceType.S3, "ftp://x", allowed=("models",))}, "ftp"),
    ],
    ids=["nameless", "model", "version", "uri", "root", "connection", "endpoint"],
)
def test_an_origin_that_somebody_wrote_by_hand_passes_the_same_checks(
    world: World, lost: str, actor: Actor, change: dict[str, Any], reason: str
) -> None:
    fields: dict[str, Any] = {
        "connection": ConnectionSpec("lab", SourceType.S3, region="eu-1", allowed=("models",)),
        "uri": "s3://models/llama", "size_bytes": 300 * MIB, "model": "llama", "version": "v1",
    }  # fmt: skip
    [(manifest, _)] = world.gateway.manifests()
    world.gateway.apply_manifest(manifest, Origin(**{**fields, **change}))
    found = adopt(world, actor)
    assert [item.digest for item in found.not_adopted] == [lost]
    assert reason in found.not_adopted[0].reason
    assert not ModelVersion.objects.exists() and not SourceConnection.objects.exists()
    assert CacheEntry.objects.filter(state="Ready").count() == 2, "its copies are known all the same"
    assert labels(world) == [True, True]


def test_a_name_that_means_something_else_here_is_not_overwritten(world: World, lost: str, actor: Actor) -> None:
    ours = version_of(10 * MIB, model="llama", version="v1")
    found = adopt(world, actor)
    assert "other content" in found.not_adopted[0].reason
    assert ModelVersion.objects.get() == ours


@pytest.mark.parametrize("state", ["Resolving", "Refused"])
def test_a_registration_under_way_is_left_alone_and_a_refused_one_is_healed(
    world: World, lost: str, actor: Actor, state: str
) -> None:
    row = factories.version(model="llama", version="v1", artifact=None, state=state, code="x", message="It failed.")
    found = adopt(world, actor)
    row.refresh_from_db()
    assert row.state == ("Resolving" if state == "Resolving" else "Available")
    assert bool(found.not_adopted) == (state == "Resolving")
    if state == "Refused":
        assert (row.code, row.message, row.artifact.digest) == ("", "", lost)  # type: ignore[union-attr]


def test_a_connection_of_that_name_must_be_the_same_store(world: World, lost: str, actor: Actor) -> None:
    factories.connection(name="lab", type="S3", allowed=["models"], region="us-2")
    found = adopt(world, actor)
    assert "its region is us-2, on the cluster it is eu-1" in found.not_adopted[0].reason
    assert not ModelVersion.objects.exists()


def test_a_manifest_whose_files_are_others_is_no_identity(world: World, actor: Actor) -> None:
    [file] = manifest_decode(bytes(version_of(MIB).artifact.manifest)).files
    lose_everything()
    world.gateway.apply_manifest(Manifest("sha256:" + "e" * 64, (file,)))
    found = adopt(world, actor)
    assert "damaged" in found.not_adopted[0].reason
    assert not Artifact.objects.exists()


def test_orphans_are_shown_with_their_nodes(world: World, lost: str, actor: Actor) -> None:
    world.report("n1", orphans=(Orphan("sha256-" + "d" * 64, 5, False), Orphan("junk", 7, True)))
    world.report("n2", orphans=(Orphan("junk", 8, True),))
    world.observe()
    found = adopt(world, actor)
    assert [(tree.name, tree.bytes, tree.nodes) for tree in found.orphans] == [
        ("junk", 15, ("n1", "n2")), ("sha256-" + "d" * 64, 5, ("n1",)),
    ]  # fmt: skip


def test_a_pool_that_is_deleted_is_emptied_without_adoption(world: World, lost: str, actor: Actor) -> None:
    """Somebody said that everything goes: lines of another control plane are no reason to wait for ever."""
    world.reconcile()
    pool_delete(actor=actor, pool_id=world.pool.pk)
    world.reconcile()
    assert told(world) == {"n1": {}, "n2": {}}


def test_a_cluster_that_does_not_answer_is_not_half_adopted_for_ever(world: World, lost: str, actor: Actor) -> None:
    with faulty(world) as gateway:
        gateway.fail("manifests", Unreachable("no answer"))
        with pytest.raises(Transient, match="does not answer"):
            adopt(world, actor)
    assert not UnknownCopy.objects.filter(released=True).exists(), "what was not looked at is still waited for"
    assert adopt(world, actor).versions == ["llama v1"]


def test_a_cluster_that_is_not_there(db: None, actor: Actor) -> None:
    with pytest.raises(Missing):
        cluster_adopt(actor=actor, cluster_id=factories.pool().pk)


def test_a_copy_that_a_pod_fetched_becomes_known_when_its_version_is_registered(world: World, actor: Actor) -> None:
    version = version_of(100 * MIB)
    digest, fields = version.artifact.digest, {"size_bytes": 100 * MIB, "manifest": bytes(version.artifact.manifest)}
    world.warm(version, "n1")
    lose_everything()
    world.observe()
    assert UnknownCopy.objects.get().digest == digest
    factories.version(artifact=factories.artifact(digest=digest, **fields))
    world.report("n1")
    world.observe()
    assert not UnknownCopy.objects.exists()
    assert CacheEntry.objects.get().state == "Ready"


def test_the_command_says_what_it_took_and_what_it_left(
    world: World, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.report("n1", orphans=(Orphan("junk", 7, True),))
    world.observe()
    call_command("adopt", world.cluster.name, "--dry-run")
    assert "Would adopt 1 version, 1 source connection and 2 copies" in capsys.readouterr().out
    call_command("adopt", world.cluster.name)
    said = capsys.readouterr().out
    assert "Adopted 1 version" in said and "  llama v1\n" in said and "manage.py secret set" in said
    assert "Orphaned tree junk: 7 bytes on 1 node." in said
    assert AuditEvent.objects.get(action="cluster.adopt").actor.endswith("(manage.py)")

    world.gateway.delete_manifest(lost)
    lose_everything()
    world.observe()
    call_command("adopt", world.cluster.name)
    assert f"Not adopted: {lost[:19]}: {NO_MANIFEST}" in capsys.readouterr().out
    with pytest.raises(CommandError, match=f"Clusters: {world.cluster.name}"):
        call_command("adopt", "nowhere")
