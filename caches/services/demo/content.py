"""The demo's models: real file layouts with made-up weights, the same bytes on every machine and at every start."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from caches.services.demo.gguf import gguf_bytes

MIB = 1024 * 1024
_BLOCK = 4 * MIB


@dataclass(frozen=True, slots=True)
class DemoModel:
    """``shard_mib``: the size of each safetensors file. ``pools`` is where it is pinned; () leaves that to a person.

    ``endpoint``: the model is one GGUF file, small enough for a CPU, and the local fleet serves it under this name.
    """

    model: str
    version: str
    store: str  # "S3" or "Filesystem"
    shard_mib: tuple[int, ...]
    pools: tuple[str, ...]
    priority: int = 500
    endpoint: str = ""

    @property
    def folder(self) -> str:
        return f"{self.model}/{self.version}"


DEMO_MODELS = (
    DemoModel("ember-150m", "v1", "S3", (60, 60, 60, 60, 60), ("pool-a",), 700),
    DemoModel("kindling-60m", "v1", "S3", (60, 60), ("pool-a", "pool-b"), 600),
    DemoModel("spark-20m", "v1", "Filesystem", (40,), ("pool-b",)),
    DemoModel("spark-20m", "v2", "Filesystem", (40,), ()),
    DemoModel("flicker-3m", "v1", "Filesystem", (), ("pool-a",), 800, endpoint="chat"),
)
ENGINES = 2  # of an endpoint


def demo_files(model: DemoModel) -> Iterator[tuple[str, int, bytes | None]]:
    """(path, size, content) of every file; None for a shard, whose content ``shard_bytes`` makes when it is needed."""
    if model.endpoint:
        weights_file = gguf_bytes(model.model)
        yield f"{model.model}.gguf", len(weights_file), weights_file
        return
    count = len(model.shard_mib)
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    weights = {f"model.layers.{number}.mlp.weight": name for number, name in enumerate(names)}
    total = sum(mib * MIB for mib in model.shard_mib)
    texts = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "max_position_embeddings": 8192,
            "num_hidden_layers": count,
            "torch_dtype": "bfloat16",
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "do_sample": True, "temperature": 0.6},
        "model.safetensors.index.json": {"metadata": {"total_size": total}, "weight_map": weights},
        "tokenizer.json": {
            "version": "1.0",
            "model": {"type": "BPE", "vocab": {f"token{n}": n for n in range(2000)}, "merges": []},
        },
        "tokenizer_config.json": {"model_max_length": 8192, "tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for path, document in texts.items():
        content = json.dumps(document, indent=1).encode()
        yield path, len(content), content
    for name, mib in zip(names, model.shard_mib, strict=True):
        yield name, mib * MIB, None


def shard_bytes(model: DemoModel, path: str) -> bytes:
    """A whole safetensors file of exactly the announced size: valid header, one bfloat16 tensor of noise.

    One block of noise is made and numbered again and again: fast, and still no two blocks are equal.
    """
    number = int(path.removeprefix("model-").split("-")[0]) - 1
    size = model.shard_mib[number] * MIB
    noise = random.Random(f"{model.folder}/{path}").randbytes(_BLOCK)
    data = bytearray()
    for block in range(-(-size // _BLOCK)):
        data += struct.pack("<Q", block) + noise[8:]
    # A header of 4096 bytes, padded with spaces as the format allows, keeps the tensor aligned.
    body = size - 4096
    tensor = {"dtype": "BF16", "shape": [body // 2], "data_offsets": [0, body]}
    header = json.dumps({f"model.layers.{number}.mlp.weight": tensor}).encode().ljust(4096 - 8)
    data[:4096] = struct.pack("<Q", len(header)) + header
    del data[size:]
    return bytes(data)
