"""Documents to JSON and back, for every gateway. Strict: a wrong, missing or unknown field is an error with its path.

Field names travel in camelCase, times as RFC 3339 in UTC with microseconds, enums as their values, tuples and frozen
sets as arrays (sets sorted), mappings with their keys untouched. An optional field that is None is left out.
Imports no Django.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin

T = TypeVar("T")
Decoder = Callable[[Any, str, bool], Any]
_SURROGATE = re.compile("[\ud800-\udfff]")


class DecodeError(ValueError):
    """The data is not such a document; the message starts with the path of the wrong field."""


def encode(value: Any) -> Any:
    """A document as JSON-ready data. TypeError for what no document may hold; ValueError for NaN and naive times."""
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, int | float):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} has no place in a document")
        return value
    if isinstance(value, datetime):
        return _encode_time(value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            wire: encode(item) for name, wire in _wire_names(type(value)) if (item := getattr(value, name)) is not None
        }
    raise TypeError(f"{type(value).__name__} cannot travel")


def decode(document: type[T], data: Any, *, ignore_unknown: bool = False) -> T:
    """Data as a document; DecodeError otherwise. ``ignore_unknown`` is for readers older than the writer."""
    rule: Decoder = _decoder(typing.cast(Any, document))
    result: T = rule(data, document.__name__, ignore_unknown)
    return result


def dumps(value: Any) -> str:
    """The canonical text: equal documents have equal texts, so that "nothing changed" is a comparison of strings."""
    text = json.dumps(encode(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # A file name that is not UTF-8 reaches us with lone surrogates, which no text in UTF-8 may hold.
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def loads(document: type[T], text: str | bytes, *, ignore_unknown: bool = False) -> T:
    """The reverse of dumps."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{document.__name__}: not JSON: {error}") from None
    return decode(document, data, ignore_unknown=ignore_unknown)


def _encode_time(value: datetime) -> str:
    if value.tzinfo is None:
        raise ValueError("a time without a zone cannot travel")
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def wire_names(document: type) -> Mapping[str, str]:
    """Field name to its name on the way, for those who describe documents elsewhere."""
    return dict(_wire_names(document))


@functools.cache
def _wire_names(document: type) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, _camel(field.name)) for field in dataclasses.fields(document))


@functools.cache
def _decoder(annotation: Any) -> Decoder:
    """How one annotation is read; built once per type, because a manifest has ten thousand files."""
    if dataclasses.is_dataclass(annotation):
        return _decode_dataclass(typing.cast(type, annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _decode_enum(annotation)
    if annotation in (object, Any):
        return lambda data, path, lenient: data
    if annotation is datetime:
        return _decode_time
    if annotation in (str, int, float, bool):
        return _decode_scalar(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _decode_optional(arguments)
    if origin in (tuple, frozenset):
        return _decode_array(origin, arguments)
    if origin in (Mapping, dict):
        return _decode_mapping(arguments)
    raise TypeError(f"no rule for {annotation}")


def _decode_scalar(kind: type) -> Decoder:
    wanted = (int, float) if kind is float else (kind,)

    def read(data: Any, path: str, lenient: bool) -> Any:
        if not isinstance(data, wanted) or (isinstance(data, bool) and kind is not bool):
            raise DecodeError(f"{path}: {type(data).__name__} instead of {kind.__name__}")
        try:
            value = kind(data)
        except OverflowError:
            raise DecodeError(f"{path}: larger than any {kind.__name__}") from None
        if kind is float and not math.isfinite(value):
            raise DecodeError(f"{path}: {data} is not a number")
        return value

    return read


def _decode_time(data: Any, path: str, lenient: bool) -> datetime:
    try:
        value = datetime.fromisoformat(data)
        if value.tzinfo is not None:
            return value.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise DecodeError(f"{path}: not a time") from None
    raise DecodeError(f"{path}: a time without a zone")


def _decode_enum(kind: type[Enum]) -> Decoder:
    def read(data: Any, path: str, lenient: bool) -> Enum:
        try:
            return kind(data)
        except ValueError:
            raise DecodeError(f"{path}: {data!r:.60} is no {kind.__name__}") from None

    return read


def _decode_optional(arguments: tuple[Any, ...]) -> Decoder:
    inner = [argument for argument in arguments if argument is not type(None)]
    if len(inner) != 1:
        raise TypeError(f"no rule for a choice between {arguments}")
    rule = _decoder(inner[0])
    return lambda data, path, lenient: None if data is None else rule(data, path, lenient)


def _decode_array(origin: Any, arguments: tuple[Any, ...]) -> Decoder:
    if origin is tuple and arguments[1:] != (...,):
        raise TypeError("only tuples of one kind travel")
    rule = _decoder(arguments[0])

    def read(data: Any, path: str, lenient: bool) -> Any:
        if not isinstance(data, list):
            raise DecodeError(f"{path}: {type(data).__name__} instead of an array")
        return origin(rule(item, f"{path}[{index}]", lenient) for index, item in enumerate(data))

    return read


def _decode_mapping(arguments: tuple[Any, ...]) -> Decoder:
    rule = _decoder(arguments[1])

    def read(data: Any, path: str, lenient: bool) -> Any:
        if not isinstance(data, dict):
            raise DecodeError(f"{path}: {type(data).__name__} instead of an object")
        return {key: rule(item, f"{path}.{key}", lenient) for key, item in data.items()}

    return read


def _decode_dataclass(document: type) -> Decoder:
    hints = typing.get_type_hints(document)
    required = {
        _camel(field.name)
        for field in dataclasses.fields(document)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    optional = {_camel(name) for name, hint in hints.items() if type(None) in get_args(hint)}
    rules: dict[str, tuple[str, Decoder]] = {}

    def read(data: Any, path: str, lenient: bool) -> Any:
        if not rules:  # filled at the first use, so that a document may mention itself
            rules.update({wire: (name, _decoder(hints[name])) for name, wire in _wire_names(document)})
        if not isinstance(data, dict):
            raise DecodeError(f"{path}: {type(data).__name__} instead of an object")
        values: dict[str, Any] = {}
        for wire, item in data.items():
            if (known := rules.get(wire)) is not None:
                values[known[0]] = known[1](item, f"{path}.{wire}", lenient)
            elif not lenient:
                raise DecodeError(f"{path}.{wire}: unknown field")
        for wire in required - data.keys():
            if wire not in optional:
                raise DecodeError(f"{path}.{wire}: missing")
            values[rules[wire][0]] = None
        return document(**values)

    return read
