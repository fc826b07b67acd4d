"""Every filter of every collection: it gives the rows that show the value, all of them, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.utils import timezone

from caches.models import CacheEntry
from controlplane.accounts.models import Scope
from tests import factories
from tests.api.conftest import Api, api_for
from tests.api.rows import NOWHERE, PAGING, dig, filled, lists, parameters, walk

pytestmark = pytest.mark.thorough

# Path → the filters that go by what an item shows, each with that field; a list means that the value is one of it.
SHOWN: dict[str, dict[str, str]] = {
    "audit-events": {
        "actor": "actor",
        "action": "action",
        "object_type": "object.type",
        "object_id": "object.id",
        "object_name": "object.name",
        "via": "via",
        "request_id": "request_id",
        "operation_id": "operation_id",
    },
    "cache-entries": {
        "cluster": "cluster",
        "pool": "pool",
        "node": "node",
        "node_id": "node_id",
        "digest": "artifact.digest",
        "kind": "artifact.kind",
        "desired": "desired",
        "state": "state",
        "reason": "reason",
    },
    "clusters": {"name": "name", "type": "type"},
    "endpoints": {"cluster": "cluster", "namespace": "namespace", "name": "name", "kind": "kind"},
    "images": {"reference": "reference", "repository": "repository", "digest": "digest", "state": "state"},
    "instances": {
        "endpoint_id": "endpoint_id",
        "cluster": "cluster",
        "endpoint": "endpoint",
        "uid": "uid",
        "digest": "digest",
    },
    "launches": {
        "cluster": "cluster",
        "pool": "pool",
        "node": "node",
        "pod_uid": "pod_uid",
        "endpoint": "endpoint",
        "version": "version",
        "digest": "digest",
        "state": "state",
        "event_class": "event_class",
        "weights": "weights",
        "image": "image",
    },
    "models": {"name": "name"},
    "models/{model}/versions": {
        "model": "model",
        "version": "version",
        "state": "state",
        "drift": "drift.state",
        "connection": "source.connection",
        "digest": "digest",
    },
    "node-pools": {"cluster": "cluster", "name": "name"},
    "nodes": {"cluster": "cluster", "pool": "pool", "name": "name", "uid": "uid", "state": "state"},
    "nodes/{node_id}/cache-entries": {
        "node": "node",
        "node_id": "node_id",
        "pool": "pool",
        "cluster": "cluster",
        "digest": "artifact.digest",
        "kind": "artifact.kind",
        "desired": "desired",
        "state": "state",
        "reason": "reason",
    },
    "operations": {
        "kind": "kind",
        "state": "state",
        "subject_type": "subject.type",
        "subject_id": "subject.id",
        "started_by": "started_by",
    },
    "pins": {"model": "model", "version": "version", "pool": "pools", "suspended": "suspended"},
    "rollouts": {
        "cluster": "cluster",
        "namespace": "namespace",
        "endpoint": "endpoint",
        "endpoint_id": "endpoint_id",
        "state": "state",
    },
    "routers": {"name": "name", "host": "host"},
    "routing-policies": {
        "endpoint_id": "endpoint_id",
        "cluster": "cluster",
        "namespace": "namespace",
        "endpoint": "endpoint",
        "variant": "variant",
        "strategy": "strategy",
    },
    "source-connections": {"name": "name", "type": "type", "state": "state"},
    "tokens": {"name": "name", "owner": "owner"},
    "webhooks": {"name": "name", "enabled": "enabled"},
}
# What goes by more than one shown field; each is tried out below.
OTHERS = {
    "audit-events": {"after", "before"},
    "cache-entries": {"model", "version"},
    "images": {"moved", "revoked", "search"},
    "launches": {"began_after", "began_before", "trial"},
    "models": {"search"},
    "nodes/{node_id}/cache-entries": {"model", "version"},
    "operations": {"created_after", "created_before"},
}


def ids(api: Api, path: str, **query: Any) -> set[str]:
    return {item["id"] for item in walk(api, path, **query)}


def test_it_describes_the_filters_that_this_table_tries_out() -> None:
    described = {path: set(parameters(path)) - PAGING for path in lists()}

    assert described == {path: set(names) | OTHERS.get(path, set()) for path, names in SHOWN.items()}


def _holds(item: Any, field: str, value: Any) -> bool:
    shown = dig(item, field)
    return value in shown if isinstance(shown, list) else shown == value


@pytest.mark.parametrize("path", SHOWN)
def test_it_gives_the_rows_that_show_the_value_and_no_others(
    admin_api: Api, path: str, populated: dict[str, str]
) -> None:
    place = filled(path, populated)
    items = list(walk(admin_api, place))
    for name, field in SHOWN[path].items():
        _check_filter(admin_api, place, items, name, field)


def _check_filter(api: Api, place: str, items: Sequence[Any], name: str, field: str) -> None:
    values = {str(one): one for item in items for one in _each(dig(item, field)) if one not in (None, "")}
    assert values, f"no row shows anything to filter {name} by"

    for text, value in values.items():
        wanted = {item["id"] for item in items if _holds(item, field, value)}
        found = ids(api, place, **{name: text.lower() if isinstance(value, bool) else text})
        if name == "object_name":  # a part of the name is enough
            assert found >= wanted and all(text in dig(item, field) for item in items if item["id"] in found)
        else:
            assert found == wanted, (name, value)


def _each(shown: Any) -> list[Any]:
    return shown if isinstance(shown, list) else [shown]


@pytest.mark.parametrize("path", SHOWN)
def test_it_gives_nothing_for_a_value_that_no_row_has(admin_api: Api, path: str, populated: dict[str, str]) -> None:
    place = filled(path, populated)

    for name in SHOWN[path]:
        value = NOWHERE if name.endswith("_id") else "nowhere"
        answer = admin_api.get(place, query_params={name: value})
        if answer.status_code == 200:
            assert answer.json()["items"] == []
        else:
            # A closed set of words refuses a word that it does not have; it never means "all".
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, name)


@pytest.mark.parametrize("path", SHOWN)
def test_it_refuses_an_empty_filter_instead_of_showing_everything(admin_api: Api, path: str) -> None:
    known = dict.fromkeys(("model", "node_id"), NOWHERE)

    for name in SHOWN[path]:
        answer = admin_api.get(f"{filled(path, known)}?{name}=")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, name)


def test_it_takes_several_values_where_they_mean_one_of_them(admin_api: Api, populated: dict[str, str]) -> None:
    for path, name in (
        ("nodes", "state"),
        ("cache-entries", "state"),
        ("cache-entries", "reason"),
        ("operations", "kind"),
    ):
        values = [item for item in {dig(item, name) for item in walk(admin_api, path)} if item]
        both = ids(admin_api, path, **{name: values})
        assert both == set().union(*(ids(admin_api, path, **{name: value}) for value in values)), (path, name)


@pytest.mark.parametrize("query", ["pool=a&pool=b", "node=a&node=a", "page_size=1&page_size=2", "cursor=a&cursor=b"])
def test_it_refuses_two_values_where_only_one_would_count(viewer_api: Api, query: str) -> None:
    answer = viewer_api.get(f"cache-entries?{query}")

    assert answer.status_code == 400
    assert answer.json()["errors"][0] == {
        "field": query.split("=")[0],
        "code": "invalid",
        "detail": "May be given only once.",
    }


def test_it_finds_entries_by_what_shares_their_bytes(admin_api: Api, populated: dict[str, str]) -> None:
    one = CacheEntry.objects.get(pk=populated["entry_id"])
    twin = factories.version(model="alias", version="x", artifact=one.artifact)
    everywhere = {str(pk) for pk in CacheEntry.objects.filter(artifact=one.artifact).values_list("pk", flat=True)}

    for query in ({"model": "alias"}, {"version": "x"}, {"version": "v3"}, {"model": "alias", "version": "x"}):
        assert ids(admin_api, "cache-entries", **query) == everywhere, query
    assert ids(admin_api, f"nodes/{populated['node_id']}/cache-entries", model="alias") == {str(one.pk)}
    # Both conditions are about one version, not about any two of the artifact.
    assert ids(admin_api, "cache-entries", model="alias", version="v3") == set(), twin


def test_it_finds_models_by_a_part_of_their_name_taken_literally(viewer_api: Api) -> None:
    for name in ("llama-2", "LLaMA_3", "gemma"):
        factories.version(model=name)

    def names(search: str) -> set[str]:
        return {item["name"] for item in walk(viewer_api, "models", search=search)}

    assert names("llama") == {"llama-2", "LLaMA_3"}
    assert names("a_3") == {"LLaMA_3"}
    assert names("%") == names("\\") == names("'; --") == set()


@pytest.mark.parametrize(
    ("path", "after", "before", "field"),
    [
        ("audit-events", "after", "before", "at"),
        ("operations", "created_after", "created_before", "created_at"),
    ],
)
def test_it_takes_the_moment_itself_into_after_and_not_into_before(
    admin_api: Api, path: str, after: str, before: str, field: str, populated: dict[str, str]
) -> None:
    items = sorted(walk(admin_api, path), key=lambda item: item[field])
    middle = items[1]

    late = ids(admin_api, path, **{after: middle[field]})
    early = ids(admin_api, path, **{before: middle[field]})

    assert middle["id"] in late and middle["id"] not in early
    assert late.isdisjoint(early) and late | early == {item["id"] for item in items}


@pytest.mark.parametrize(
    ("moment", "status"),
    [
        ("2026-01-31T08:00:00Z", 200),
        ("2026-01-31T08:00:00.123456+05:30", 200),
        ("2026-01-31", 200),
        ("0001-01-01T00:00:00+16:00", 400),
        ("9999-12-31T23:59:59-16:00", 400),
        ("2026-02-30T00:00:00Z", 400),
        ("2026-01-31T08:00:00 05:30", 400),  # a plus that was not escaped
        ("yesterday", 400),
        ("1767225600", 400),
    ],
)
def test_it_reads_moments_in_any_offset(admin_api: Api, moment: str, status: int) -> None:
    assert admin_api.get("audit-events", query_params={"after": moment}).status_code == status


@pytest.mark.parametrize("word", ["yes", "1", "on", "null", "unknown", "truee"])
def test_it_takes_no_other_word_for_true_or_false(admin_api: Api, word: str) -> None:
    for path, name in (("pins", "suspended"), ("webhooks", "enabled")):
        answer = admin_api.get(path, query_params={name: word})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, name)


def test_it_finds_a_pool_by_the_name_it_shows_and_by_its_short_one(viewer_api: Api) -> None:
    one = factories.pool(of=factories.cluster(name="one"), name="gpu")
    factories.pool(of=factories.cluster(name="two"), name="gpu")

    assert ids(viewer_api, "node-pools", name="one.gpu") == {str(one.pk)}
    assert len(ids(viewer_api, "node-pools", name="gpu")) == 2
    assert ids(viewer_api, "node-pools", name="gpu", cluster="one") == {str(one.pk)}
    assert ids(viewer_api, "node-pools", name="one.gpu.x") == ids(viewer_api, "node-pools", name=".gpu") == set()


def test_it_shows_what_a_lost_node_held_to_whoever_asks_for_that_node(viewer_api: Api) -> None:
    gone = factories.node(lost_at=timezone.now())
    held = factories.entry(on=gone, state="Lost")

    assert ids(viewer_api, f"nodes/{gone.pk}/cache-entries") == {str(held.pk)}
    assert ids(viewer_api, "cache-entries") == ids(viewer_api, "nodes") == set()
    assert ids(viewer_api, "cache-entries", node_id=gone.pk) == {str(held.pk)}
    assert ids(viewer_api, "nodes", uid=gone.uid) == ids(viewer_api, "nodes", state="Lost") == {str(gone.pk)}


def test_it_never_filters_past_what_the_caller_may_see(viewer_api: Api) -> None:
    mine, other = factories.pool(), factories.pool()
    foreign = factories.entry(on=factories.node(of=other))
    local = api_for(factories.user(role="Viewer", target=mine.full_name), Scope.READ)

    assert ids(viewer_api, "cache-entries", digest=foreign.artifact.digest) == {str(foreign.pk)}
    for path, query in (
        ("cache-entries", {"digest": foreign.artifact.digest}),
        ("cache-entries", {"node_id": foreign.node_id}),
        ("cache-entries", {"pool": other.full_name}),
        ("nodes", {"uid": foreign.node.uid}),
        ("node-pools", {"name": other.full_name}),
        ("clusters", {"name": other.cluster.name}),
    ):
        assert ids(local, path, **query) == set(), (path, query)
    assert local.get(f"nodes/{foreign.node_id}/cache-entries").status_code == 404
