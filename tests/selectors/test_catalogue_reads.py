"""Connections, models, versions, where bytes come from, operations, audit: found, missing, shared, many."""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from caches.domain.manifests import manifest_build, manifest_encode
from caches.models import Model
from caches.selectors.artifact_facts import artifact_origins
from caches.selectors.audit import audit_list
from caches.selectors.catalogue import connections_list, manifest_files, models_list, version_get, versions_list
from caches.selectors.operations import operation_get, operation_pools, operations_list
from caches.selectors.token_targets import token_targets_check
from controlplane.audit.models import Via
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import Algorithm, FileRecord
from controlplane.clusters.models import Node
from controlplane.errors import Invalid, Missing
from controlplane.operations.models import Operation, OperationKind, OperationTarget
from tests import factories

pytestmark = pytest.mark.django_db


def test_connections_and_models_count_their_versions() -> None:
    lake, attic = factories.connection(name="lake"), factories.connection(name="attic")
    for _ in range(3):
        last = factories.version(model="llama", connection=lake)
    empty = Model.objects.create(name="empty")
    counts = {row.name: row.versions_count for row in connections_list()}  # type: ignore[attr-defined]
    assert counts == {lake.name: 3, attic.name: 0}
    models: dict[str, Any] = {row.name: row for row in models_list()}
    assert (models["llama"].versions_count, models["llama"].latest_at) == (3, last.created_at)
    assert (models[empty.name].versions_count, models[empty.name].latest_at) == (0, None)


def test_versions_are_listed_by_model_and_name_without_their_manifests(django_assert_num_queries: Any) -> None:
    for model, name in (("b", "v2"), ("a", "v1"), ("b", "v1")):
        factories.version(model=model, version=name)
    with django_assert_num_queries(1):
        rows = list(versions_list())
        names = [(row.full_name, row.connection.name, row.artifact.digest if row.artifact else "") for row in rows]
    assert [name for name, *_ in names] == ["a v1", "b v1", "b v2"]
    assert "manifest" in rows[0].artifact.get_deferred_fields()  # type: ignore[union-attr]
    assert [row.version for row in versions_list(model="b")] == ["v1", "v2"]
    assert not versions_list(model="c").exists()


@pytest.mark.parametrize(("model", "version"), [("llama", "v2"), ("qwen", "v1"), ("", ""), ("llama", "V1")])
def test_a_version_that_is_not_there_is_missing(model: str, version: str) -> None:
    factories.version(model="llama", version="v1")
    assert version_get(model="llama", version="v1").full_name == "llama v1"
    with pytest.raises(Missing) as refused:
        version_get(model=model, version=version)
    assert (refused.value.code, refused.value.status) == ("version:user:not-found", 404)


def test_a_version_is_found_whatever_its_name_is_made_of() -> None:
    factories.version(model="llama", version="v1/ü 😀 'x' %s")
    assert version_get(model="llama", version="v1/ü 😀 'x' %s").model.name == "llama"


def test_a_manifest_lists_files_in_path_order_with_exact_sizes() -> None:
    files = [
        FileRecord("weights/ü.bin", 2**50, Algorithm.SHA256, "b" * 64, "e2"),
        FileRecord("config.json", 0, Algorithm.SHA256, "a" * 64, "e1"),
    ]
    manifest = manifest_build(files)
    artifact = factories.artifact(digest=manifest.digest, manifest=manifest_encode(manifest))
    found = manifest_files(versions_list().get(pk=factories.version(artifact=artifact).pk))
    assert [(file.path, file.size_bytes) for file in found] == [("config.json", 0), ("weights/ü.bin", 2**50)]


@pytest.mark.parametrize("state", ["Resolving", "Refused"])
def test_a_version_without_bytes_has_no_manifest_and_says_in_which_state_it_is(state: str) -> None:
    with pytest.raises(Missing) as refused:
        manifest_files(factories.version(artifact=None, state=state))
    assert refused.value.code == "version:user:no-manifest"
    assert state in refused.value.detail


def origin(digest: str) -> Any:
    return artifact_origins([digest]).get(digest)


def test_nothing_asked_is_nothing_found(django_assert_max_num_queries: Any) -> None:
    with django_assert_max_num_queries(1):
        assert artifact_origins([]) == {}
    assert artifact_origins(["sha256:none"]) == {}


def test_bytes_come_through_the_pinned_version_then_the_oldest(now: datetime) -> None:
    shared = factories.artifact(witness="w1")
    old, pinned, young = [factories.version(artifact=shared) for _ in range(3)]
    assert origin(shared.digest).version_id == old.pk
    pin = factories.pin(of=pinned)
    assert origin(shared.digest).version_id == pinned.pk
    pin.removed_at = now
    pin.save()
    assert origin(shared.digest).version_id == old.pk
    factories.pin(of=young)
    found = origin(shared.digest)
    assert (found.version_id, found.connection.pk, found.artifact_id) == (young.pk, young.connection_id, shared.pk)
    assert (found.facts.name, found.facts.uri, found.facts.witness) == (young.full_name, young.uri, "w1")


def test_a_version_that_was_refused_is_no_origin() -> None:
    assert artifact_origins([factories.artifact().digest]) == {}
    factories.version(artifact=None, state="Refused")
    assert artifact_origins([factories.artifact().digest]) == {}


def test_origins_of_many_artifacts_cost_one_query(django_assert_num_queries: Any) -> None:
    digests = [version.artifact.digest for version in (factories.version() for _ in range(8)) if version.artifact]
    with django_assert_num_queries(1):
        found = artifact_origins(digests)
        assert {one.connection.name for one in found.values()} and set(found) == set(digests)


def operation(kind: OperationKind, subject_id: object) -> Operation:
    return Operation.objects.create(
        kind=kind, subject_type="x", subject_id=str(subject_id), subject_name="x", started_by="ada"
    )


def test_operations_are_listed_newest_first_and_found_with_their_targets(django_assert_num_queries: Any) -> None:
    first, second = (operation(OperationKind.MODEL_RECHECK, uuid4()) for _ in range(2))
    OperationTarget.objects.bulk_create(OperationTarget(operation=first, key=key, name=key) for key in "bca")
    assert [row.pk for row in operations_list()] == [second.pk, first.pk]
    with django_assert_num_queries(2):
        assert [target.name for target in operation_get(operation_id=first.pk).targets.all()] == ["a", "b", "c"]
    with pytest.raises(Missing) as refused:
        operation_get(operation_id=uuid4())
    assert refused.value.code == "operation:user:not-found"


@pytest.mark.parametrize("kind", [OperationKind.PIN_WARM, OperationKind.PIN_REMOVE])
def test_an_operation_of_a_pin_touches_its_pools_also_once_it_is_removed(kind: OperationKind, now: datetime) -> None:
    lab = factories.cluster(name="lab")
    pools = tuple(factories.pool(of=lab, name=name) for name in ("a", "b"))
    pin = factories.pin(pools=pools, removed_at=now)
    assert sorted(operation_pools(operation(kind, pin.pk))) == ["lab.a", "lab.b"]
    assert list(operation_pools(operation(kind, uuid4()))) == []


@pytest.mark.parametrize("kind", [OperationKind.ENTRY_EVICT, OperationKind.ENTRY_SCRUB])
def test_an_operation_of_a_copy_touches_its_pool_or_its_cluster(kind: OperationKind) -> None:
    entry = factories.entry(on=factories.node(of=factories.pool(of=factories.cluster(name="lab"), name="gpu")))
    assert list(operation_pools(operation(kind, entry.pk))) == ["lab.gpu"]
    Node.objects.update(pool=None)
    assert list(operation_pools(operation(kind, entry.pk))) == ["lab"]
    entry.delete()
    assert list(operation_pools(operation(kind, uuid4()))) == []


def test_work_on_the_catalogue_touches_no_pool() -> None:
    assert list(operation_pools(operation(OperationKind.MODEL_REGISTER, "no uuid at all"))) == []


def test_the_audit_trail_is_newest_first() -> None:
    for number in range(3):
        audit_write(
            actor=Actor("ada", Via.BROWSER), action=f"a{number}", object_type="x", object_id="1", object_name="x"
        )
    assert [event.action for event in audit_list()] == ["a2", "a1", "a0"]


def check(targets: list[str]) -> list[tuple[str, str]]:
    """The wrong fields, empty where every target exists."""
    person = factories.user(role="Admin")
    try:
        token_targets_check(person=person, targets=targets)
    except Invalid as error:
        assert error.code == "token:user:invalid"
        return [(one.field, one.detail) for one in error.errors]
    return []


def test_targets_of_a_token_exist_or_are_named_one_by_one() -> None:
    factories.pool(of=factories.cluster(name="lab"), name="gpu")
    factories.cluster(name="bare")
    assert check([]) == check(["lab", "lab.gpu", "bare"]) == []
    assert check(["lab.cpu", "lab", "bare.gpu", "LAB", "gpu"]) == [
        ("targets.0", "There is no cluster or pool lab.cpu."),
        ("targets.2", "There is no cluster or pool bare.gpu."),
        ("targets.3", "There is no cluster or pool LAB."),
        ("targets.4", "There is no cluster or pool gpu."),
    ]


def test_what_is_beyond_a_persons_roles_is_not_told_to_exist_or_not() -> None:
    factories.pool(of=factories.cluster(name="lab"), name="gpu")
    person = factories.user(role="Viewer", target="lab.gpu")
    token_targets_check(person=person, targets=["elsewhere", "lab.secret"])


def test_a_damaged_manifest_is_not_read_as_an_empty_one() -> None:
    version = factories.version(artifact=factories.artifact(manifest=zlib.compress(b'{"files":')))
    with pytest.raises(ValueError):
        manifest_files(version)
