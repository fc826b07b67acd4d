"""Strict input: a field that nobody reads is a mistake of the caller, and every mistake is named by its path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail
from rest_framework.request import Request

from controlplane.errors import FieldError, Invalid

LONGEST_WAIT_SECONDS = 300


class Input(serializers.Serializer[Any]):
    """Base of every request body: unknown fields are refused, so that a typo never passes silently."""

    def to_internal_value(self, data: Any) -> Any:
        value = super().to_internal_value(data)
        if unknown := sorted(set(data) - set(self.fields)):
            raise serializers.ValidationError({name: [_unknown(name, self.fields)] for name in unknown})
        return value


def flat_errors(detail: Any, path: str = "") -> Iterator[FieldError]:
    """REST framework's nested error detail as one FieldError for each message."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            yield from flat_errors(inner, _joined(path, str(name)))
    elif isinstance(detail, list | tuple):
        for index, inner in enumerate(detail):
            yield from flat_errors(inner, path if isinstance(inner, str) else _joined(path, str(index)))
    else:
        code = detail.code if isinstance(detail, ErrorDetail) else "invalid"
        yield FieldError(path, str(code).replace("_", "-"), str(detail))


def check_parameters(request: Request, known: Iterable[str], repeatable: Iterable[str] = ()) -> None:
    """Refuse query parameters that this call would not read: a mistyped filter must not list everything.

    Neither must an empty one (a script's unset variable), nor one of two when only the last would count.
    """
    known = sorted(known)
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        left_out = f"Leave {'it' if len(unknown) == 1 else 'them'} out"
        offered = f"{left_out}; this call takes {', '.join(known)}." if known else f"{left_out}."
        raise Invalid(
            "request:user:unknown-parameter",
            f"This call has no parameter {', '.join(unknown)[:200]}.",
            next_step=offered,
            errors=[FieldError(name[:100], "unknown", "There is no such parameter.") for name in unknown],
        )
    several = set(repeatable)
    for name, values in request.query_params.lists():
        if "" in values:
            raise wrong_parameter(name, "Must not be empty.")
        if len(values) > 1 and name not in several:
            raise wrong_parameter(name, "May be given only once.")


def refuse_body(request: Request) -> None:
    """Refuse a body where none is read: whoever puts ``dry_run`` there must not find it done for real."""
    if request.data:
        raise Invalid(
            "request:user:body",
            "This call reads no body.",
            next_step="Leave the body out; parameters such as dry_run=true belong into the address.",
        )


def flag(request: Request, name: str) -> bool:
    """A true/false query parameter, false when absent."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise wrong_parameter(name, "Must be true or false.")
    return text == "true"


def wait_seconds(request: Request) -> float:
    """``?wait=SECONDS`` between 0 and 300, 0 when absent."""
    text = request.query_params.get("wait", "0")
    try:
        seconds = int(text) if len(text) <= 4 else -1
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= LONGEST_WAIT_SECONDS:
        raise wrong_parameter("wait", f"Must be a whole number of seconds between 0 and {LONGEST_WAIT_SECONDS}.")
    return seconds


def wrong_parameter(name: str, detail: str) -> Invalid:
    """What to raise for a query parameter with a value that it cannot have."""
    return Invalid(
        "request:user:parameter",
        f"{name}: {detail}",
        next_step=f"Correct the parameter {name}.",
        errors=[FieldError(name, "invalid", detail)],
    )


def _joined(path: str, name: str) -> str:
    if name == "non_field_errors":
        return path
    return f"{path}.{name}" if path else name


def _unknown(name: str, fields: Mapping[str, Any]) -> ErrorDetail:
    offered = ", ".join(sorted(one for one, field in fields.items() if not field.read_only))
    return ErrorDetail(f"There is no such field; there are {offered}.", code="unknown")
