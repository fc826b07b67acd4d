"""Whatever is refused is counted among the requests of the endpoint that it was for, as far as it says that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.dataplane.router import Shared
from tests.dataplane.test_models import endpoint
from tests.dataplane.world import World, chat, request, run, world

TENANT, VARIANT = "X-Amzn-SageMaker-Prefix-Aware-Id: " + "x" * 65, "X-Amzn-SageMaker-Target-Variant: other"
CHUNKED = "Transfer-Encoding: chunked"
BIG, PATH = b"x" * 3000, "/endpoints/chat/invocations"
# What is sent, and the code that it is refused with.
REFUSED: list[tuple[bytes, str]] = [
    (request("POST", PATH, BIG), "too-large"),
    (request("POST", "/v1/chat/completions", BIG), "too-large"),
    (request("POST", PATH, b"", CHUNKED) + b"bb8\r\n" + BIG, "too-large"),
    (request("POST", PATH, b"", CHUNKED) + b"not a size\r\n", "malformed"),
    (request("POST", PATH, b"{}", TENANT), "bad-tenant"),
    (request("POST", PATH, b"{}", VARIANT), "unknown-variant"),
    (request("POST", "/endpoints/chat"), "no-path"),
    (request("POST", PATH, b"{}", "Expect: tea"), "expectation"),
]


def counted(here: World, name: str = "chat") -> dict[str, int]:
    (variant,) = here.shared.fleet.endpoints[name].variants.values()
    return {code.rpartition(":")[2]: count for code, count in variant.figures.refusals.items()}


@pytest.mark.parametrize(("sent", "code"), REFUSED, ids=[f"{n} {code}" for n, (_, code) in enumerate(REFUSED)])
def test_a_refused_request_is_counted_where_it_was_for(sent: bytes, code: str) -> None:
    @run
    async def told() -> None:
        async with world(shared=Shared(body_bytes=2000)) as here:
            wire = await here.wire()
            assert (await wire.ask("GET", "/v1/models")).status == 200
            await wire.send(sent)
            reply = await wire.reply()
            assert json.loads(reply.body)["error"]["code"] == f"routing:request:{code}" and 400 <= reply.status < 500
            assert counted(here) == {code: 1} and here.shared.counters.refusals == {f"routing:request:{code}": 1}

    told()


@run
async def test_behind_an_answer_that_it_waits_for_it_is_counted_as_well() -> None:
    async with world(shared=Shared(body_bytes=2000)) as here:
        wire = await here.wire()
        await wire.send(request("GET", "/v1/models") + request("POST", PATH, BIG))
        assert [(await wire.reply()).status for _ in range(2)] == [200, 413] and counted(here) == {"too-large": 1}


@run
async def test_what_says_no_endpoint_counts_for_none() -> None:
    async with world(shared=Shared(body_bytes=2000)) as here:
        several: list[dict[str, Any]] = [endpoint("one"), endpoint("two")]
        here.version += 1
        here.publish_endpoints(several)
        sent = [
            request("POST", "/v1/chat/completions", BIG),  # its body names one, and is not read
            request("POST", "/v1/chat/completions", chat("x")),
            request("POST", "/endpoints/chat/invocations", b"{}"),
            request("GET", "/nothing"),
            b"nonsense\r\n\r\n",
        ]
        for one in sent:
            wire = await here.wire()
            await wire.send(one)
            assert 400 <= (await wire.reply()).status < 500
        assert sum(here.shared.counters.refusals.values()) == len(sent)
        assert counted(here, "one") == counted(here, "two") == {}
        wire = await here.wire()
        await wire.send(request("POST", "/endpoints/two/invocations", BIG))
        assert (await wire.reply()).status == 413 and counted(here, "two") == {"too-large": 1}
