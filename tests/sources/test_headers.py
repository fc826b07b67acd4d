"""Facts from the beginnings of model files, whole, cut off and nonsense."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.sources import headers, metadata, open_source
from caches.sources.headers import (
    config_context_length,
    gguf_facts,
    safetensors_header_bytes,
    safetensors_parameters,
)
from controlplane.clusters.documents import ConnectionSpec, SourceType


def safetensors(tensors: dict[str, object]) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


def gguf(version: int = 3) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.scale") + struct.pack("<If", 6, 1.5),
        text("llama.context_length") + struct.pack("<II", 4, 32768),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("bc") + text(""),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ3f", 9, 6, 3, 0.0, 1.0, 2.0),
    ]
    tensors = [
        text("w") + struct.pack("<IQQIQ", 2, 30, 40, 0, 0),
        text("b") + struct.pack("<IQIQ", 1, 7, 0, 4800),
    ]
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs + tensors)


def test_it_counts_the_parameters_of_a_safetensors_header() -> None:
    data = safetensors({"__metadata__": {"format": "pt"}, "w": {"shape": [30, 40]}, "s": {"shape": []}})
    assert safetensors_header_bytes(data[:8]) == len(data)
    assert safetensors_parameters(data) == 1201


@pytest.mark.parametrize("start", [b"", b"1234567", b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 2**30)])
def test_it_takes_other_files_for_no_safetensors(start: bytes) -> None:
    assert safetensors_header_bytes(start) is None


@pytest.mark.parametrize("tensors", [[], {"w": {}}, {"w": 1}, {"w": {"shape": "ab"}}, {"w": {"shape": [None]}}])
def test_it_counts_nothing_in_a_broken_header(tensors: object) -> None:
    assert safetensors_parameters(safetensors(tensors)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"text_config": {"max_position_embeddings": 131072}}, 131072),
        ({"n_positions": 1024, "text_config": None}, 1024),
        ({"max_position_embeddings": "many"}, None),
        ({"max_position_embeddings": True}, None),
        ({}, None),
        ([], None),
    ],
)
def test_it_reads_the_context_length_of_a_config(config: object, length: int | None) -> None:
    assert config_context_length(json.dumps(config).encode()) == length


def test_it_reads_gguf_as_far_as_it_goes() -> None:
    data = gguf()
    assert gguf_facts(data) == {"context_length": 32768, "parameters": 1207}
    assert gguf_facts(data[:-1]) == {"context_length": 32768}
    assert gguf_facts(data[:40]) == {}
    assert gguf_facts(gguf(version=1)) == gguf_facts(b"GGML" + data[4:]) == {}


@given(st.binary(max_size=200), st.integers(0, 400))
def test_nonsense_never_raises(noise: bytes, cut: int) -> None:
    safetensors_parameters(noise)
    config_context_length(noise)
    data = gguf()
    gguf_facts(data[: cut % len(data)] + noise)


def test_it_reads_a_header_that_is_longer_than_the_first_read_and_sums_only_whole_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "FIRST_BYTES", 16)
    for number in (1, 2):
        data = safetensors({f"layer-{n}": {"shape": [number, 10]} for n in range(50)})
        (tmp_path / f"model-{number}.safetensors").write_bytes(data + b"\0" * 100)
    (tmp_path / "config.json").write_text('{"n_ctx": 99}')
    source = open_source(ConnectionSpec("disk", SourceType.FILESYSTEM, allowed=(str(tmp_path),)), {})
    uri = tmp_path.as_uri()
    files = [source.describe(uri, file.path) for file in source.list_page(uri).files]
    facts = {"context_length": 99, "parameters": 1500}
    assert metadata.read_metadata(source, uri, files, seconds=5) == facts
    assert metadata.read_metadata(source, uri, files, seconds=-1) == {"context_length": 99}
    monkeypatch.setattr(headers, "MAX_HEADER_BYTES", 100)
    assert metadata.read_metadata(source, uri, files, seconds=5) == {"context_length": 99}
    (tmp_path / "config.json").unlink()
    assert metadata.read_metadata(source, uri, files, seconds=5) == {}


@pytest.mark.parametrize(
    "shape",
    [[2] * 17, [2**54], [-1], [2**40, 2**40], [1.5], ["2"], [True, None], [[1]]],
)
def test_it_counts_no_tensor_of_an_impossible_shape(shape: list[object]) -> None:
    assert safetensors_parameters(safetensors({"w": {"shape": shape}})) is None


def test_it_does_not_multiply_for_hours() -> None:
    """A tensor with a million dimensions is a file made to keep the worker busy."""
    dimensions = 500_000
    name = struct.pack("<Q", 1) + b"w"
    tensor = name + struct.pack("<I", dimensions) + struct.pack("<Q", 2**64 - 1) * dimensions + bytes(12)
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor
    began = time.process_time()
    assert gguf_facts(data) == {}
    assert safetensors_parameters(safetensors({"w": {"shape": [2**40] * 200_000}})) is None
    assert time.process_time() - began < 2


@pytest.mark.parametrize(("length", "found"), [(0, None), (-1, None), (True, None), (2**60, None), (131072, 131072)])
def test_it_takes_only_a_context_length_that_can_be_one(length: object, found: int | None) -> None:
    assert config_context_length(json.dumps({"max_position_embeddings": length}).encode()) == found


@given(st.binary(max_size=200), st.integers(0, 300))
def test_it_survives_any_bytes(noise: bytes, cut: int) -> None:
    whole = gguf()
    for data in (noise, b"GGUF" + noise, whole[:cut] + noise, whole[: len(whole) - cut]):
        facts = gguf_facts(data)
        assert all(type(value) is int and value >= 0 for value in facts.values())
        size = safetensors_header_bytes(data)
        assert size is None or size >= 10
        safetensors_parameters(data)
        config_context_length(data)
