"""A client of the OpenAI API asks which models there are: of several endpoints the router says so itself."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from routing.dataplane.config import read_config
from routing.dataplane.fleet import Fleet
from routing.dataplane.routes import Models, Refusal, Request, Route, route
from tests.dataplane.world import SECRET, Wire, World, chat, run, world


def endpoint(name: str, *models: str, port: int = 9) -> dict[str, Any]:
    instances = [{"id": f"of-{name}", "address": f"127.0.0.1:{port}"}]
    return {"name": name, "secret": SECRET, "models": models, "variants": [{"name": "default", "instances": instances}]}


def fleet(*endpoints: dict[str, Any], version: int = 1) -> Fleet:
    made = Fleet()
    made.apply(read_config(json.dumps({"version": version, "endpoints": endpoints}).encode()))
    return made


def asked(of: Fleet, path: str, body: bytes = b"", method: bytes = b"GET") -> Route | Refusal | Models:
    return route(of, Request(method, path.encode(), [], body))


def listed(of: Fleet) -> list[tuple[str, str]]:
    found = asked(of, "/v1/models")
    assert isinstance(found, Models)
    return [(one["id"], one["endpoint"]) for one in json.loads(found.body())["data"]]


def entry(name: str, endpoint: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hearth", "endpoint": endpoint}


TWO = (endpoint("one", "org/llama"), endpoint("two", "qwen"))
NAMED: list[tuple[list[dict[str, Any]], list[tuple[str, str]]]] = [
    ([*TWO], [("one", "one"), ("org/llama", "one"), ("qwen", "two"), ("two", "two")]),
    # Nobody is meant by a name that two claim, and an endpoint by its own whatever another serves.
    ([endpoint("one", "llama", "a"), endpoint("two", "llama", "b")],
     [("a", "one"), ("b", "two"), ("one", "one"), ("two", "two")]),
    ([endpoint("one", "two"), endpoint("two", "two", "")], [("one", "one"), ("two", "two")]),
    ([], []),
]  # fmt: skip


@pytest.mark.parametrize(("endpoints", "expected"), NAMED, ids=["two", "claimed twice", "by its own name", "none"])
def test_it_lists_whatever_a_request_can_name(endpoints: list[dict[str, Any]], expected: list[tuple[str, str]]) -> None:
    assert listed(fleet(*endpoints)) == expected


UNREAD: list[tuple[bytes, str]] = [
    (b'{"model": "one", "n": %b}' % (b"1" * 100_000), "more than 4,300 digits"),
    (b'{"model": "one", "n": %b%b}' % (b"[" * 50_000, b"]" * 50_000), "nested too deeply"),
    (b'{"model": "one", "text": "secret \xff"}', "not in UTF-8 (at byte 33)"),
    (b'{"model": "one", "text": "secret', "no JSON: line 1, column 26"),
    (b"--x\r\nsecret", "no JSON: line 1, column 1"),
    (b'["one"]', "JSON, but no object"),
    (b'{"model": 1, "text": "secret"}', "no text, or empty"),
    (b'{"model": ""}', "no text, or empty"),
]


@pytest.mark.parametrize(("body", "said"), UNREAD, ids=[said for _, said in UNREAD])
def test_a_body_that_cannot_name_a_model_is_told_why_and_never_quoted(body: bytes, said: str) -> None:
    found = asked(fleet(*TWO), "/v1/chat/completions", body, b"POST")
    assert isinstance(found, Refusal) and (found.status, found.param) == (400, "model")
    assert said in found.detail and found.code == "routing:request:bad-body" and "/endpoints/NAME/" in found.next_step
    assert b"secret" not in found.body()
    assert isinstance(asked(fleet(endpoint("one")), "/v1/chat/completions", body, b"POST"), Route), "the engine says it"
    assert isinstance(asked(fleet(*TWO), "/endpoints/one/v1/chat/completions", body, b"POST"), Route)


def test_a_body_that_could_name_a_model_and_does_not_is_told_which_there_are() -> None:
    for body in (b"", b"{}", b'{"model": null}', b'{"model": "three"}'):
        found = asked(fleet(*TWO), "/v1/chat/completions", body, b"POST")
        assert isinstance(found, Refusal) and (found.status, found.next_step) == (404, "Use one of: one, two.")
    found = asked(fleet(), "/v1/chat/completions", b"{", b"POST")
    assert isinstance(found, Refusal) and found.status == 503


def test_what_it_lists_is_what_it_routes_by() -> None:
    draws, names = random.Random(3), [*"abcde"]
    for _ in range(100):
        drawn = draws.sample(names, draws.randrange(2, 5))
        of = fleet(*(endpoint(name, *draws.sample(names, draws.randrange(3))) for name in drawn))
        said = dict(listed(of))
        for name in names:
            found = asked(of, "/v1/completions", json.dumps({"model": name}).encode(), b"POST")
            assert (found.endpoint.config.name if isinstance(found, Route) else None) == said.get(name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/models/two", "two"),
        ("/v1/models/org/llama", "org/llama"),
        ("/v1/models/org%2Fllama?x=1", "org/llama"),
        ("http://router/v1/models/qwen", "qwen"),
    ],
)
def test_it_says_one(path: str, name: str) -> None:
    found = asked(fleet(*TWO), path)
    assert isinstance(found, Models)
    assert json.loads(found.body()) == entry(name, dict(listed(fleet(*TWO)))[name])


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/v1/models?limit=2"])
def test_it_says_all_however_it_is_asked(path: str) -> None:
    found = asked(fleet(*TWO), path)
    assert isinstance(found, Models) and len(json.loads(found.body())["data"]) == 4


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models/llama"),
        ("GET", "/v1/models/ONE"),
        ("GET", "/v1/models/%ff"),
        ("GET", "/v1/modelsone"),
        ("POST", "/v1/models"),
        ("DELETE", "/v1/models/one"),
    ],
)
def test_it_knows_no_other(method: str, path: str) -> None:
    found = asked(fleet(*TWO), path, b"", method.encode())
    assert isinstance(found, Refusal) and (found.status, found.param) == (404, "model")
    error = json.loads(found.body())["error"]
    assert {"message", "type", "param", "code"} < set(error) and error["next_step"] == "Use one of: one, two."


def test_before_the_first_configuration_nobody_knows() -> None:
    for path in ("/v1/models", "/v1/models/one"):
        found = asked(Fleet(), path)
        assert isinstance(found, Refusal) and (found.status, found.retry_after, found.param) == (503, 2, None)


def test_a_request_that_names_its_model_goes_there_as_any_other() -> None:
    found = asked(fleet(*TWO), "/v1/models", chat("x", model="qwen"))
    assert isinstance(found, Route) and found.endpoint.config.name == "two"


def several(here: World) -> None:
    here.version += 1
    here.publish_endpoints([
        endpoint(name, model, port=engine.port)
        for name, model, engine in zip(("one", "two"), ("llama", "qwen"), here.engines, strict=True)
    ])  # fmt: skip


@run
async def test_it_is_answered_over_the_wire_without_any_instance() -> None:
    async with world(*[_names_itself] * 2) as here:
        several(here)
        wire: Wire = await here.wire()
        for _ in range(3):  # the same head again is known by then
            reply = await wire.ask("GET", "/v1/models")
            assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
            assert [one["id"] for one in json.loads(reply.body)["data"]] == ["llama", "one", "qwen", "two"]
        head = await wire.ask("HEAD", "/v1/models")
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(reply.body)))
        assert json.loads((await wire.ask("GET", "/v1/models/qwen")).body) == entry("qwen", "two")
        assert (await wire.ask("HEAD", "/v1/models/nobody")).status == 404
        missing = await wire.ask("GET", "/v1/models/nobody")
        assert json.loads(missing.body)["error"]["code"] == "routing:request:unknown-endpoint"
        assert [engine.calls for engine in here.engines] == [[], []]
        assert sum(here.shared.counters.refusals.values()) == 2, "of which none was an answer to what is there"
        assert SECRET.encode() not in reply.body
        # An endpoint of its own says itself what it serves, as the only one does.
        assert (await wire.ask("GET", "/endpoints/two/v1/models")).body == b"of an engine"
        here.publish()
        assert (await wire.ask("GET", "/v1/models")).body == b"of an engine"


async def _names_itself(call: Any) -> None:
    await call.answer(b"of an engine")
