"""No word of any request is kept: a router with everything around it, and a search of everything that it leaves."""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client

from controlplane.accounts.models import Scope, User
from controlplane.audit.models import AuditEvent
from controlplane.serving.models import STATIC_KIND, Variant
from routing.models import RouterProcess, RoutingWindow
from routing.services.intake import figures_take
from routing.services.policies import policy_set
from routing.services.publishing import configuration_publish
from tests import factories
from tests.api.conftest import api_for
from tests.dataplane.planted import Plants, digests, files, forms, keys, tables
from tests.dataplane.threaded import threaded_engine
from tests.services.test_routing_policies import ADA
from tests.waiting import until

PREFIX = {"PrefixLength": 4096, "ConcurrencyThreshold": 1}
KEPT: dict[str, Any] = {"key_header": "x-session-id", "record_keys": True}


@pytest.mark.parametrize("form", [form for form, _ in forms("zqwordÄ")])
def test_the_search_finds_a_word_in_every_form(form: str) -> None:
    plants = Plants()
    needle = dict(forms(plants.word("prompt")))[form]
    assert plants.found({"log": b"some " + needle + b" more"}), form


def test_the_search_finds_a_word_wherever_it_stood_in_what_was_encoded() -> None:
    plants = Plants()
    for before in ("", "x", "xy", "xyz"):
        text = f'{before}{{"content": "{plants.word("prompt")}"}}'.encode()
        assert plants.found({"a": base64.b64encode(text)}) and not plants.found({"a": base64.b64encode(b"other")})
        assert plants.found({"a": json.dumps(json.dumps(text.decode())).encode()})


def test_the_search_finds_the_unkeyed_digest_of_a_text() -> None:
    plants = Plants()
    for _, digest in digests(b"the whole prompt"):
        assert plants.found({"a": b"x" + digest}, [b"the whole prompt"]) and not plants.found({"a": b"x" + digest})


@contextmanager
def router(folder: Path, redis_url: str) -> Iterator[tuple[int, str]]:
    """A router that keeps everything below ``folder``, with its logs; its port, and where its numbers are."""
    (folder / "state").mkdir()
    command = [sys.executable, "-X", "dev", "-m", "routing.dataplane", "--follow", "--port", "0", "--metrics-port", "0"]
    with (folder / "router.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--config", str(folder / "state" / "router.json")], cwd=Path.cwd(), stderr=log,
            stdout=subprocess.PIPE, env={**os.environ, "REDIS_URL": redis_url, "PYTHONASYNCIODEBUG": "1"}, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            port, page = (int(process.stdout.readline().rpartition(" ")[2]) for _ in range(2))
            yield port, f"http://127.0.0.1:{page}/metrics"
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def exchanged(port: int, data: bytes) -> bytes:
    """What comes back until the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
        wire.sendall(data)
        parts = []
        with suppress(ConnectionError):
            while part := wire.recv(65536):
                parts.append(part)
    return b"".join(parts)


def request(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: router", "Connection: close", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chat(plants: Plants, **fields: Any) -> bytes:
    """Planted in all that a client can say; long enough for some boundaries."""
    word = plants.word
    messages = [
        {"role": "system", "content": f"{word('system prompt')} {'You are kind. ' * 200}"},
        {"role": "developer", "content": [{"type": "text", "text": word("developer")}]},
        {"role": "user", "name": word("name"), "content": [
            {"type": "text", "text": f"{word('user')} {'Please. ' * 300}"},
            {"type": "image_url", "image_url": {"url": f"https://x/{plants.ascii('image')}"}},
        ]},
        {"role": "assistant", "content": word("assistant"), "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": f'{{"a": "{word("arguments")}"}}'}}
        ]},
        {"role": "tool", "tool_call_id": "1", "content": word("tool result")},
    ]  # fmt: skip
    tool = {"name": word("tool name"), "description": word("tool"), "parameters": {"x": word("parameter")}}
    body = {"model": "llama", "messages": messages, "tools": [{"type": "function", "function": tool}]}
    extra = {"user": word("end user"), "metadata": {"m": word("metadata")}, "stop": [word("stop")]}
    return json.dumps({**body, **extra, **fields}, ensure_ascii=False).encode()


def headers(plants: Plants) -> list[str]:
    names = ("Authorization", "X-Api-Key", "Cookie", "X-Session-Id", "X-Amzn-SageMaker-Prefix-Aware-Id", "X-Request-Id")
    return [f"{name}: {plants.ascii(f'header {name}')}" for name in names]


def ask_everything(port: int, plants: Plants) -> list[bytes]:
    """Whatever a client can send and a router could be moved to write down; the bodies."""
    own, sent = headers(plants), []
    bodies = (
        ("/v1/chat/completions", chat(plants)),
        ("/v1/chat/completions", chat(plants, prompt_cache_key=plants.word("cache key"), stream=True)),
        ("/endpoints/chat/v1/completions", json.dumps({"prompt": [plants.word("completion"), "x" * 3000]}).encode()),
        (
            "/endpoints/chat/v1/responses",
            json.dumps({"instructions": plants.word("instructions"), "input": plants.word("in")}).encode(),
        ),
        ("/endpoints/chat/v1/embeddings", json.dumps({"input": [plants.word("embedded")] * 20}).encode()),
        ("/endpoints/chat/invocations", plants.word("raw").encode() * 300),
        ("/endpoints/chat/invocations-response-stream", plants.word("raw stream").encode("utf-16-le") * 300),
        (f"/endpoints/chat/any?q={plants.ascii('query')}", chat(plants)),
        ("/endpoints/chat/v1/chat/completions", b'{"messages": [{"content": "' + plants.word("broken JSON").encode()),
        ("/endpoints/chat/v1/chat/completions", b"\xff\xfe" + plants.word("no UTF-8").encode("latin-1")),
    )
    for path, body in bodies:
        sent.append(body)
        assert b" 200 " in exchanged(port, request(path, body, *own))[:20], path
    assert b" 502 " in exchanged(port, request("/endpoints/dead/x", chat(plants), *own))[:20]
    for refused in (
        request(f"/endpoints/{plants.ascii('unknown endpoint')}/x", chat(plants), *own),
        request(f"/{plants.ascii('unknown path')}", chat(plants), *own),
        request("/v1/chat/completions", chat(plants), f"X-Amzn-SageMaker-Target-Variant: {plants.ascii('variant')}"),
        request("/v1/chat/completions", chat(plants), f"X-Amzn-SageMaker-Prefix-Aware-Id: {plants.ascii('long') * 9}"),
        request("/v1/chat/completions", b"x", f"Transfer-Encoding: {plants.ascii('smuggled')}"),
        f"{plants.ascii('method')} / HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\n{plants.ascii('header line')}\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost: x\r\nX: {plants.ascii('large header') * 9000}\r\n\r\n".encode(),
    ):
        assert exchanged(port, refused)[9:10] == b"4"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:  # who leaves in the middle
        wire.sendall(request("/v1/chat/completions", plants.word("cut off").encode(), *own)[:-4])
    return sent


@pytest.fixture
def variant(db: None, settings: Any, valkey_url: str) -> Iterator[Variant]:
    settings.REDIS_URL = valkey_url
    words = Plants().word("answer")
    with threaded_engine(json.dumps({"choices": [{"message": {"content": words}}]}).encode()) as port:
        chat_endpoint = factories.endpoint(name="chat", document={"modelName": "llama"})
        made = factories.variant(of=chat_endpoint)
        for _ in range(2):
            factories.instance(of=chat_endpoint, address=f"127.0.0.1:{port}")
        dead = factories.endpoint(name="dead", kind=STATIC_KIND)  # a person gave its address: nobody waits for another
        factories.variant(of=dead)
        with socket.socket() as held:  # nobody listens there, and nobody can begin to
            held.bind(("127.0.0.1", 0))
            factories.instance(of=dead, address=f"127.0.0.1:{held.getsockname()[1]}")
            yield made


def shown_to_people(variant: Variant, plants: Plants, operator: User) -> dict[str, bytes]:
    """Explanations, pages and their exports: what is read of a request is said of it nowhere."""
    api = api_for(operator, Scope.READ, Scope.ROUTING_WRITE)
    place = f"endpoints/{variant.endpoint_id}/variants/default"
    asked = {
        "path": f"/v1/chat/completions?q={plants.ascii('query')}",
        "body": chat(plants).decode(),
        "tenant": plants.ascii("tenant"),
        "headers": {"authorization": plants.ascii("header Authorization")},
    }
    found = {}
    for number, key in enumerate(("one", "one", "two")):
        answer = api.call("POST", f"{place}/explain", asked, headers={"Idempotency-Key": key})
        assert answer.status_code == 200, answer.content
        found[f"explanation {number}"] = answer.content
    found["telemetry"] = api.get(f"{place}/routing-telemetry").content
    for path in ("routers", "routers.csv", "instances", "routing-policies", "audit-events"):
        found[path] = api.get(path).content
    browser = Client()
    browser.force_login(operator)
    for suffix in ("", ".csv", ".json"):
        answer = browser.get(f"/endpoints/{variant.endpoint_id}/routing{suffix}")
        assert answer.status_code == 200
        found[f"page{suffix}"] = answer.content
    return found


def test_no_word_of_a_request_is_kept_anywhere(
    variant: Variant, operator: User, valkey_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    plants, sent = Plants(), list[bytes]()
    plants.word("answer")
    broker = redis.Redis.from_url(valkey_url)
    with router(tmp_path, valkey_url) as (port, page):
        for policy in (
            {"RoutingStrategy": "PREFIX_AWARE", "PrefixAwareRoutingConfig": PREFIX, "RoutingExtensions": KEPT},
            {"RoutingStrategy": "PREFIX_AWARE", "PrefixAwareRoutingConfig": PREFIX},
            {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
        ):
            policy_set(actor=ADA, variant_id=variant.pk, document=policy)
            version = configuration_publish()
            until(lambda version=version: f"hearth_routing_config_version {version}" in numbers(page))  # type: ignore[misc]
            sent += ask_everything(port, plants)
            _arrive(len(sent))
        metrics = numbers(page)
        shown = shown_to_people(variant, plants, operator)
        stores = {
            "redis": keys(broker),
            "postgresql": tables(),
            "metrics": metrics.encode(),
            "log": caplog.text.encode(),
        }
    stores |= shown | files(tmp_path)
    assert {"router.log", "state/router.json"} <= stores.keys() and b"routing:recorded" in stores["redis"]
    assert b"configuration" in stores["router.log"], "the log was written"
    assert AuditEvent.objects.filter(action="routing.policy").count() == 3, "looking into requests is audited"
    assert plants.found(stores, sent) == []
    broker.close()


def numbers(page: str) -> str:
    with urllib.request.urlopen(page, timeout=60) as answer:
        return str(answer.read().decode())


def _arrive(requests: int) -> None:
    """Wait until the windows have that many requests."""

    def arrived() -> bool:
        figures_take()
        rows = RoutingWindow.objects.filter(seconds=3600, variant__endpoint__name="chat")
        return RouterProcess.objects.exists() and sum(row.figures.get("requests", 0) for row in rows) >= requests

    until(arrived, "the figures arrive")


def test_words_in_addresses_are_no_longer_than_a_router_takes() -> None:
    """The plants themselves are fit for what they are planted in."""
    plants = Plants()
    assert urllib.parse.quote(plants.ascii("query")) == plants.ascii("query")
    assert len(plants.ascii("tenant")) <= 64 < len(plants.ascii("long") * 9)
