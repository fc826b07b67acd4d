"""What the beginnings of model files say: parameters and context length. Pure; anything unexpected gives nothing."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_HEADER_BYTES = 16 * 1024 * 1024
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
_GGUF_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_MAX_DIMENSIONS = 16  # a file that names millions would keep a worker multiplying for hours
_MAX_COUNT = 2**53  # what JSON readers can hold


def safetensors_header_bytes(start: bytes) -> int | None:
    """How many bytes of the file its header needs, length field included; None when this is no safetensors file."""
    if len(start) < 8:
        return None
    size = int.from_bytes(start[:8], "little")
    return size + 8 if 2 <= size <= MAX_HEADER_BYTES else None


def safetensors_parameters(header: bytes) -> int | None:
    """The number of parameters in a whole header (length field included)."""
    try:
        tensors = json.loads(header[8:])
        shapes = [tensor["shape"] for name, tensor in tensors.items() if name != "__metadata__"]
        return _counted(sum(_volume(shape) for shape in shapes))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def config_context_length(content: bytes) -> int | None:
    """The context length in a transformers config.json, also of its text part."""
    try:
        config = json.loads(content)
        inner = config.get("text_config")
        for part in (config, inner if isinstance(inner, dict) else {}):
            for key in _CONTEXT_KEYS:
                if type(part.get(key)) is int and 0 < part[key] <= _MAX_COUNT:
                    return int(part[key])
    except (ValueError, AttributeError, RecursionError):
        pass
    return None


def gguf_facts(start: bytes) -> Mapping[str, int]:
    """``context_length`` and, when ``start`` reaches over all tensor infos, ``parameters`` of a GGUF file."""
    facts: dict[str, int] = {}
    reader = _Reader(start)
    try:
        if reader.take(4) != b"GGUF" or reader.number("<I") not in (2, 3):
            return {}
        tensors, pairs = reader.number("<Q"), reader.number("<Q")
        for _ in range(pairs):
            key = reader.text()
            value = reader.value(reader.number("<I"))
            if key.endswith(".context_length") and type(value) is int and 0 < value <= _MAX_COUNT:
                facts["context_length"] = value
        parameters = 0
        for _ in range(tensors):
            reader.text()
            dimensions = reader.number("<I")
            parameters += _volume([reader.number("<Q") for _ in range(min(dimensions, _MAX_DIMENSIONS + 1))])
            reader.take(12)  # type and offset
        facts["parameters"] = _counted(parameters)
    except (_Short, ValueError, KeyError, UnicodeDecodeError, RecursionError):
        pass  # what was read before counts
    return facts


def _volume(shape: Sequence[object]) -> int:
    """ValueError for what no tensor's shape can be."""
    sizes = [size for size in shape if type(size) is int and 0 <= size <= _MAX_COUNT]
    if len(sizes) != len(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError("not a shape")
    return math.prod(sizes)


def _counted(parameters: int) -> int:
    if parameters > _MAX_COUNT:
        raise ValueError("more parameters than any model has")
    return parameters


class _Short(Exception):
    """The bytes end here."""


@dataclass(slots=True)
class _Reader:
    data: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise _Short
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def text(self) -> str:
        return self.take(self.number("<Q")).decode()

    def value(self, kind: int) -> Any:
        """A scalar; None for texts and arrays, which are only skipped."""
        if kind == _GGUF_STRING:
            self.take(self.number("<Q"))
        elif kind == _GGUF_ARRAY:
            inner, count = self.number("<I"), self.number("<Q")
            if inner in _GGUF_SCALARS:
                self.take(count * struct.calcsize(_GGUF_SCALARS[inner]))
            else:
                for _ in range(count):
                    self.value(inner)
        elif kind in (6, 12):
            self.take(struct.calcsize(_GGUF_SCALARS[kind]))
        else:
            return self.number(_GGUF_SCALARS[kind])
        return None
