"""The real engine: llama.cpp on a model of random weights, as its clients and the readers of its dialect see it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from caches.services.demo.gguf import ModelShape, gguf_bytes
from routing.domain.dialects import Dialect, read_metrics
from routing.domain.dialects_usage import use_of_body, use_of_stream
from routing.engines.llamacpp import Unfit, weights_file
from tests.dataplane.world import Reply, Wire, request, run, until

SMALL = ModelShape(layers=2, width=64, heads=2, hidden=96)
LONG = "words that many prompts begin with, " * 30


def chat(text: str, **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}).encode()


@asynccontextmanager
async def engine(folder: Path, *options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    address = folder.parent / "address"
    command = [sys.executable, "-m", "routing.engines.llamacpp", "--weights", str(folder), "--name", "ember"]
    made = await asyncio.create_subprocess_exec(
        *command, "--address-file", str(address), *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield made, address
    finally:
        if made.returncode is None:
            made.terminate()
        await made.communicate()


async def asked(place: str, method: str, path: str, body: bytes = b"") -> Reply:
    """Each on its own connection: llama.cpp closes one after a stream."""
    host, port = place.split(":")
    wire = Wire(*await asyncio.open_connection(host, int(port)))
    try:
        return await wire.ask(method, path, body)
    finally:
        wire.leave()


def written(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.gguf").write_bytes(gguf_bytes("ember", SMALL))
    return folder


@pytest.mark.e2e
def test_it_serves_counts_what_it_holds_and_ends_when_asked(tmp_path: Path) -> None:
    @run
    async def test() -> None:
        async with engine(written(tmp_path / "weights")) as (process, address):
            await until(lambda: address.exists() or process.returncode is not None, "it serves")
            place = address.read_text()
            models = json.loads((await asked(place, "GET", "/v1/models")).body)
            assert [(one["id"], one["owned_by"]) for one in models["data"]] == [("ember", "llamacpp")]
            first, again = [
                (await asked(place, "POST", "/v1/chat/completions", chat(LONG + text))).body for text in "ab"
            ]
            cold, warm = use_of_body(first), use_of_body(again)
            assert cold is not None and warm is not None and cold.cached_tokens == 0
            assert warm.prompt_tokens * 0.9 < (warm.cached_tokens or 0) < warm.prompt_tokens
            assert warm.prompt_tokens < len(LONG) + 60, "a character is a token, spaces too"
            text = json.loads(again)["choices"][0]["message"]["content"]
            assert 0 < len(text) <= 8 and text.isascii() and text.isprintable()
            body = chat(LONG + "c", stream=True, stream_options={"include_usage": True})
            use = use_of_stream((await asked(place, "POST", "/v1/chat/completions", body)).body)
            assert use is not None and use.cached_tokens == warm.cached_tokens
            reading = read_metrics((await asked(place, "GET", "/metrics")).body.decode())
            assert (reading.dialect, reading.stand_in, reading.running) == (Dialect.LLAMA_CPP, False, 0)
            assert reading.hit_tokens == 2 * (warm.cached_tokens or 0)
            assert reading.queried_tokens == sum(one.prompt_tokens for one in (cold, warm, use))
            host, port = place.split(":")
            wire = Wire(*await asyncio.open_connection(host, int(port)))
            body = chat("on and on", stream=True, max_tokens=1500, ignore_eos=True)
            await wire.send(request("POST", "/v1/chat/completions", body))
            begun = await wire.reader.readuntil(b"data: ")
            process.terminate()
            begun += await wire.reader.read()
            wire.leave()
            assert b"[DONE]" in begun and begun.count(b"data: ") > 1000, "what it answers when it is to end is whole"
            assert await process.wait() == 0

    test()


@pytest.mark.e2e
def test_what_it_cannot_serve_it_says_and_ends(tmp_path: Path) -> None:
    @run
    async def test() -> None:
        folder = tmp_path / "weights"
        folder.mkdir()
        async with engine(folder) as (process, address):
            _, said = await process.communicate()
            assert process.returncode == 3 and b"has 0 files of type GGUF" in said and not address.exists()

    test()


def test_a_model_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "one.gguf").touch()
    assert weights_file(tmp_path).name == "one.gguf"
    (tmp_path / "two.gguf").touch()
    with pytest.raises(Unfit, match="2 files"):
        weights_file(tmp_path)


def test_the_same_bytes_come_from_the_same_seed_on_every_machine() -> None:
    made = gguf_bytes("ember")
    assert made == gguf_bytes("ember") and made[:8] == b"GGUF\x03\x00\x00\x00" and len(made) % 32 == 0
    assert made != gguf_bytes("ember", seed=2) and len(gguf_bytes("ember", seed=2)) == len(made)
    assert hashlib.sha256(gguf_bytes("ember", SMALL)).hexdigest() == GOLDEN


GOLDEN = "ac51dc14da0371ad3e53af5c2b582dd2dd6a868d1485db90e9db85053fa29097"
