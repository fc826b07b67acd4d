"""Every collection by every field it says it can be sorted by, whole and page by page."""

from __future__ import annotations

from typing import Any

import pytest

from tests import factories
from tests.api.conftest import Api
from tests.api.rows import description, dig, filled, lists, parameters, walk

pytestmark = pytest.mark.thorough

# Path → the names that ?ordering= takes, each with the field of an item that it goes by.
ORDERINGS: dict[str, dict[str, str]] = {
    "audit-events": {"at": "at", "actor": "actor", "action": "action"},
    "cache-entries": {
        "node": "node",
        "state": "state",
        "created_at": "created_at",
        "bytes_total": "bytes_total",
        "last_used_at": "last_used_at",
    },
    "clusters": {"name": "name", "created_at": "created_at"},
    "endpoints": {"name": "name", "namespace": "namespace", "created_at": "created_at"},
    "images": {"reference": "reference", "created_at": "created_at", "size_bytes": "size_bytes"},
    "instances": {"name": "name", "created_at": "created_at"},
    "launches": {"began_at": "began_at", "ready_seconds": "ready_seconds", "total_seconds": "total_seconds"},
    "models": {"name": "name", "created_at": "created_at", "latest_at": "latest_at"},
    "models/{model}/versions": {"version": "version", "created_at": "created_at", "size_bytes": "size_bytes"},
    "node-pools": {"name": "name", "cluster": "cluster", "created_at": "created_at"},
    "nodes": {
        "name": "name",
        "pool": "pool",
        "state": "state",
        "capacity_bytes": "capacity_bytes",
        "joined_at": "joined_at",
    },
    "nodes/{node_id}/cache-entries": {"created_at": "created_at", "state": "state", "bytes_total": "bytes_total"},
    "operations": {"created_at": "created_at", "ended_at": "ended_at", "state": "state", "kind": "kind"},
    "pins": {"created_at": "created_at", "priority": "priority", "model": "model"},
    "rollouts": {"created_at": "created_at", "state": "state", "number": "number"},
    "routers": {"name": "name", "host": "host", "seen_at": "seen_at"},
    "routing-policies": {"created_at": "created_at", "version": "version", "strategy": "strategy"},
    "source-connections": {"name": "name", "created_at": "created_at", "state": "state"},
    "tokens": {"created_at": "created_at", "name": "name", "expires_at": "expires_at", "last_used_at": "last_used_at"},
    "webhooks": {"name": "name", "created_at": "created_at"},
}


def test_it_describes_the_orderings_that_this_table_tries_out() -> None:
    described = {path: {name.removeprefix("-") for name in parameters(path)["ordering"]["enum"]} for path in lists()}

    assert described == {path: set(names) for path, names in ORDERINGS.items()}
    for path in lists():
        assert parameters(path)["ordering"]["default"] in parameters(path)["ordering"]["enum"]
        assert "text/csv" in description()[path]["get"]["responses"]["200"]["content"]


# Whatever only asks does so of one stock of rows: it costs more than what is asked.
EVERY = [(path, name) for path, names in ORDERINGS.items() for name in names]


@pytest.mark.parametrize("sign", ["", "-"])
def test_it_sorts_by_what_the_field_shows_with_the_unknown_last(
    admin_api: Api, sign: str, populated: dict[str, str]
) -> None:
    for path, name in EVERY:
        items = admin_api.get(f"{filled(path, populated)}?ordering={sign}{name}").json()["items"]
        shown = [dig(item, ORDERINGS[path][name]) for item in items]
        known: list[Any] = [value for value in shown if value is not None]
        assert len(set(map(str, shown))) > 1, f"{path}: {name} is the same everywhere and proves nothing"
        assert known == sorted(known, reverse=bool(sign)), (path, name, sign)
        assert shown == known + [None] * (len(shown) - len(known)), (path, name, sign)


@pytest.mark.parametrize("sign", ["", "-"])
def test_it_gives_page_by_page_what_it_gives_at_once(admin_api: Api, sign: str, populated: dict[str, str]) -> None:
    for path, name in EVERY:
        place = filled(path, populated)
        whole = [item["id"] for item in admin_api.get(f"{place}?ordering={sign}{name}").json()["items"]]
        paged = [item["id"] for item in walk(admin_api, place, ordering=f"{sign}{name}", page_size=2)]
        assert paged == whole and len(set(whole)) == len(whole) >= 3, (path, name, sign)


@pytest.mark.parametrize("path", [path for path in ORDERINGS if "{" not in path])
def test_it_shows_each_row_once_while_others_are_inserted(admin_api: Api, path: str, populated: dict[str, str]) -> None:
    before = {item["id"] for item in walk(admin_api, path)}
    seen: list[str] = []
    for number, item in enumerate(walk(admin_api, path, page_size=1)):
        seen.append(item["id"])
        if number == 1:
            # New rows of every kind, before and behind the cursor.
            pool = factories.pool(of=factories.cluster(name="ab"), name="zz")
            entry = factories.entry(on=factories.node(of=pool, name="aa-new"))
            factories.pin(of=factories.version(model="a-new", artifact=entry.artifact), pools=(pool,))

    assert len(seen) == len(set(seen))
    assert before <= set(seen)


def test_it_goes_on_when_the_row_of_the_cursor_is_gone(viewer_api: Api) -> None:
    pool = factories.pool()
    nodes = [factories.node(of=pool, name=name) for name in ("a", "b", "c")]
    first = viewer_api.get("nodes?page_size=2").json()
    nodes[1].delete()

    rest = viewer_api.get("nodes", query_params={"page_size": 2, "cursor": first["next"]}).json()

    assert [item["name"] for item in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["next"] is None


def test_it_takes_a_cursor_only_where_it_was_given_out(admin_api: Api, populated: dict[str, str]) -> None:
    cursor = admin_api.get("clusters?page_size=1").json()["next"]

    for path in ("models", "webhooks", "source-connections"):  # sorted by name as well
        answer = admin_api.get(path, query_params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (400, "paging:user:cursor"), path
    # The same list in its other dress is the same list.
    assert admin_api.get("clusters.csv", query_params={"cursor": cursor}).status_code == 200
    entries = admin_api.get(f"nodes/{populated['node_id']}/cache-entries?page_size=1&ordering=state").json()["next"]
    answer = admin_api.get("cache-entries", query_params={"cursor": entries, "ordering": "state"})
    assert answer.status_code == 400


@pytest.mark.parametrize(("size", "rows", "more"), [(1, 1, True), (2, 2, True), (3, 3, False), (500, 3, False)])
def test_it_says_whether_there_is_more(viewer_api: Api, size: int, rows: int, more: bool) -> None:
    for _ in range(3):
        factories.cluster()

    answer = viewer_api.get(f"clusters?page_size={size}")

    assert len(answer.json()["items"]) == rows
    assert (answer.json()["next"] is not None) is answer.has_header("Link") is more


@pytest.mark.parametrize("size", ["0", "501", "1000", "-1", "1.0", "1e1", " 1", "+1", "0x1", "", "null", "9" * 400])
def test_it_refuses_a_page_size_that_is_no_number_between_1_and_500(viewer_api: Api, size: str) -> None:
    answer = viewer_api.get("clusters", query_params={"page_size": size})

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "page_size")


@pytest.mark.parametrize("cursor", ["", "null", "None", "%", "a:b:c", "A" * 5000, "é", "WyJuYW1lIl0:1xXmHN:M0"])
def test_it_refuses_a_cursor_that_it_never_gave_out(viewer_api: Api, cursor: str) -> None:
    # An empty one too: a loop that takes "no more" for a cursor would begin again and never end.
    answer = viewer_api.get("clusters", query_params={"cursor": cursor})

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "cursor")


@pytest.mark.parametrize(
    "ordering", ["", "-", "--name", "+name", "name,created_at", "NAME", "pk", "id", "name__x", "?"]
)
def test_it_refuses_an_ordering_that_it_does_not_describe(viewer_api: Api, ordering: str) -> None:
    answer = viewer_api.get("clusters", query_params={"ordering": ordering})

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "ordering")
