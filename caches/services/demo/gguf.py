"""A small language model of random weights in the GGUF format, version 3: the same bytes from the same seed.

Its vocabulary is bytes, so every text is a prompt. What it writes is printable and means nothing; how long a prompt
takes it, and what a prefix cache saves it, are real. Weights are random numbers in blocks of 32 with one scale (Q8_0).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9  # types of metadata values
_TENSOR_F32, _TENSOR_Q8_0 = 0, 8
_ALIGNMENT, _BLOCK = 32, 32
_SPREAD = 74.0  # standard deviation of a random signed byte
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # types of tokens
_FIRST_BYTE = 3  # tokens before it: unknown, beginning, end
_SPACE = _FIRST_BYTE + 256  # such a tokenizer writes spaces as a character of three bytes: it needs a token of its own
VOCABULARY = _SPACE + 1
# How much likelier the likeliest token is than others: high, so that what cannot be printed is never drawn.
_CONTRAST = 10.0
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """``width`` and ``hidden`` are multiples of 32, ``width`` one of ``heads``. ``context`` in tokens (bytes)."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    hidden: int = 704
    context: int = 8192


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    columns: int
    rows: int
    type: int
    data: bytes


def gguf_bytes(name: str, shape: ModelShape | None = None, seed: int = 1) -> bytes:
    """A whole file, 3.6 MB in the usual shape, made in a tenth of a second."""
    shape = shape or ModelShape()
    metadata, tensors = list(_metadata(name, shape)), list(_tensors(shape, random.Random(seed)))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + b"".join(metadata)
    offset, data = 0, bytearray()
    for tensor in tensors:
        dimensions = (tensor.columns, tensor.rows) if tensor.rows else (tensor.columns,)
        head += _text(tensor.name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        head += struct.pack("<IQ", tensor.type, offset)
        data += tensor.data + bytes(-len(tensor.data) % _ALIGNMENT)
        offset = len(data)
    return head + bytes(-len(head) % _ALIGNMENT) + bytes(data)


def _metadata(name: str, shape: ModelShape) -> Iterator[bytes]:
    yield _string("general.architecture", "llama")
    yield _string("general.name", name)
    for key, number in (
        ("general.file_type", 7),
        ("llama.block_count", shape.layers),
        ("llama.context_length", shape.context),
        ("llama.embedding_length", shape.width),
        ("llama.feed_forward_length", shape.hidden),
        ("llama.attention.head_count", shape.heads),
        ("llama.attention.head_count_kv", shape.heads),
        ("llama.rope.dimension_count", shape.width // shape.heads),
        ("llama.vocab_size", VOCABULARY),
        ("tokenizer.ggml.unknown_token_id", 0),
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.eos_token_id", 2),
    ):
        yield _key(key, _U32) + struct.pack("<I", number)
    yield _key("llama.attention.layer_norm_rms_epsilon", _F32) + struct.pack("<f", 1e-5)
    yield _key("tokenizer.ggml.add_bos_token", _BOOL) + b"\x01"
    yield _key("tokenizer.ggml.add_space_prefix", _BOOL) + b"\x00"
    yield _string("tokenizer.ggml.model", "llama")
    yield _string("tokenizer.chat_template", TEMPLATE)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, _NORMAL]
    yield _array("tokenizer.ggml.tokens", _STRING, [_text(token) for token in tokens])
    yield _array("tokenizer.ggml.scores", _F32, [struct.pack("<f", 0.0)] * VOCABULARY)
    yield _array("tokenizer.ggml.token_type", _I32, [struct.pack("<i", one) for one in types])


def _tensors(shape: ModelShape, draws: random.Random) -> Iterator[_Tensor]:
    width, hidden = shape.width, shape.hidden

    def matrix(
        name: str, columns: int, rows: int, spread: float, silent: Callable[[int], bool] | None = None
    ) -> _Tensor:
        return _Tensor(f"{name}.weight", columns, rows, _TENSOR_Q8_0, _q8(draws, columns, rows, spread, silent))

    def ones(name: str) -> _Tensor:
        return _Tensor(f"{name}.weight", width, 0, _TENSOR_F32, struct.pack(f"<{width}f", *[1.0] * width))

    yield matrix("token_embd", width, VOCABULARY, 1.0)
    for number in range(shape.layers):
        layer = f"blk.{number}"
        yield ones(f"{layer}.attn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield matrix(f"{layer}.{part}", width, width, width**-0.5)
        yield ones(f"{layer}.ffn_norm")
        yield matrix(f"{layer}.ffn_gate", width, hidden, width**-0.5)
        yield matrix(f"{layer}.ffn_up", width, hidden, width**-0.5)
        yield matrix(f"{layer}.ffn_down", hidden, width, hidden**-0.5)
    yield ones("output_norm")
    yield matrix("output", width, VOCABULARY, _CONTRAST * width**-0.5, lambda token: not _printable(token))


def _printable(token: int) -> bool:
    return token == _SPACE or 0x20 < token - _FIRST_BYTE < 0x7F


def _q8(
    draws: random.Random, columns: int, rows: int, spread: float, silent: Callable[[int], bool] | None = None
) -> bytes:
    """Rows of blocks: a half-precision scale and 32 signed bytes. ``silent`` rows are 0."""
    scale, blocks = struct.pack("<e", spread / _SPREAD), columns // _BLOCK
    out = bytearray()
    for row in range(rows):
        numbers = draws.randbytes(columns)
        if silent is not None and silent(row):
            out += bytes(blocks * (2 + _BLOCK))
            continue
        for start in range(0, columns, _BLOCK):
            out += scale + numbers[start : start + _BLOCK]
    return bytes(out)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _key(name: str, type_: int) -> bytes:
    return _text(name) + struct.pack("<I", type_)


def _string(name: str, value: str) -> bytes:
    return _key(name, _STRING) + _text(value)


def _array(name: str, type_: int, items: list[bytes]) -> bytes:
    return _key(name, _ARRAY) + struct.pack("<IQ", type_, len(items)) + b"".join(items)
