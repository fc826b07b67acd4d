"""Reading a document that somebody else wrote: every wrong field is told at once, and nothing in it is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.errors import FieldError

MOST_BYTES = 1024 * 1024  # of a whole document; an API server takes half as much again
DEEPEST = 40
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Ignored:
    """A field that was accepted and has no effect here, and why."""

    path: str
    why: str


@dataclass(slots=True)
class Problems:
    """What is wrong with a document, gathered while it is read."""

    refusals: list[FieldError] = field(default_factory=list)

    def refuse(self, path: str, what: str, detail: str) -> None:
        self.refusals.append(FieldError(path, f"endpoint:user:{what}", detail))


@dataclass(frozen=True, slots=True)
class Part:
    """One object inside a document, its dotted ``path``, and where problems go."""

    path: str
    values: Mapping[str, Any]
    problems: Problems

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def refuse(self, name: str, what: str, detail: str) -> None:
        self.problems.refuse(self.at(name) if name else self.path, what, detail)

    def part(self, name: str, *, required: bool = False) -> Part:
        """An object; an empty one stands for what is missing or is none."""
        value = self.values.get(name)
        if value is None:
            if required:
                self.refuse(name, "field-missing", f"{self.at(name)} is required.")
            value = {}
        elif not isinstance(value, Mapping):
            self.refuse(name, "field-type", f"{self.at(name)} must be an object.")
            return Part(self.at(name), {}, Problems())  # what it lacks follows from that
        return Part(self.at(name), value, self.problems)

    def text(self, name: str, default: str = "", *, required: bool = False, longest: int = 1024) -> str:
        value = self.values.get(name)
        if value is None or value == "":
            if required:
                self.refuse(name, "field-missing", f"{self.at(name)} is required.")
            return default
        if not isinstance(value, str):
            self.refuse(name, "field-type", f"{self.at(name)} must be a text.")
            return default
        if len(value) > longest:
            self.refuse(name, "field-too-long", f"{self.at(name)} has {len(value)} characters; at most {longest}.")
            return default
        if _CONTROL.search(value):
            self.refuse(name, "field-characters", f"{self.at(name)} has control characters.")
            return default
        return value

    def matched(self, name: str, pattern: str, what: str, default: str = "", *, required: bool = False) -> str:
        """A text that is wholly a ``pattern``; ``what`` says in words how it must look."""
        value = self.text(name, "", required=required)
        if value and not re.fullmatch(pattern, value, re.ASCII):
            self.refuse(name, "field-format", f"{self.at(name)} must be {what}, not {value[:80]!r}.")
            return default
        return value or default

    def integer(self, name: str, default: int, lowest: int, highest: int, *, required: bool = False) -> int:
        value = self.values.get(name)
        if value is None:
            if required:
                self.refuse(name, "field-missing", f"{self.at(name)} is required.")
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(name, "field-type", f"{self.at(name)} must be a whole number.")
            return default
        if not lowest <= value <= highest:
            detail = f"{self.at(name)} must be between {lowest} and {highest}, not {value}."
            self.refuse(name, "field-range", detail[:300])
            return default
        return value

    def boolean(self, name: str, default: bool = False, *, required: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            if required:
                self.refuse(name, "field-missing", f"{self.at(name)} is required.")
            return default
        if not isinstance(value, bool):
            self.refuse(name, "field-type", f"{self.at(name)} must be true or false.")
            return default
        return value

    def texts(self, name: str, *, longest: int = 128 * 1024) -> tuple[str, ...]:
        found = self.items(name)
        if not all(isinstance(item, str) and len(item) < longest for item in found):
            self.refuse(name, "field-type", f"{self.at(name)} must be a list of texts below {longest} characters.")
            return ()
        return tuple(found)

    def items(self, name: str, *, most: int = 1000) -> Sequence[Any]:
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.refuse(name, "field-type", f"{self.at(name)} must be a list.")
            return ()
        if len(value) > most:
            self.refuse(name, "field-too-long", f"{self.at(name)} has {len(value)} items; at most {most}.")
            return ()
        return value

    def objects(self, name: str, *, most: int = 1000) -> tuple[Part, ...]:
        """A list of objects, each knowing where it stands."""
        found = []
        for number, item in enumerate(self.items(name, most=most)):
            if isinstance(item, Mapping):
                found.append(Part(f"{self.at(name)}[{number}]", item, self.problems))
            else:
                self.refuse(name, "field-type", f"{self.at(name)}[{number}] must be an object.")
        return tuple(found)

    def folder(self, name: str, default: str, *, longest: int = 255) -> str:
        """An absolute path without tricks, below the root."""
        value = self.text(name, default, longest=longest)
        if not is_plain_folder(value):
            detail = f"{self.at(name)} must be an absolute path without . and .. below /, not {value[:80]!r}."
            self.refuse(name, "path-not-allowed", detail)
            return default
        return value.rstrip("/")


def is_plain_folder(path: str) -> bool:
    """``/a/b``: absolute, no empty, ``.`` or ``..`` step, not the root itself, nothing a shell would read."""
    steps = path.rstrip("/").split("/")
    return (
        len(steps) > 1
        and steps[0] == ""
        and all(re.fullmatch(r"[A-Za-z0-9._@+-]+", step) and step not in (".", "..") for step in steps[1:])
    )


def is_label(text: str) -> bool:
    """Whether it can be the name of a volume, a container or a Service (a DNS label)."""
    return _LABEL.fullmatch(text) is not None


def bounded(document: object, problems: Problems) -> bool:
    """Whether a document is small and flat enough to look at; the reason why not goes to ``problems``."""
    level: list[object] = [document]
    for _ in range(DEEPEST):
        following: list[object] = []
        for value in level:
            if isinstance(value, Mapping):
                if not all(isinstance(name, str) for name in value):
                    problems.refuse("", "not-json", "The document has names that are no texts.")
                    return False
                following += value.values()
            elif isinstance(value, list):
                following += value
        level = following
        if not level:
            break
    else:
        problems.refuse("", "too-deep", f"The document is nested more than {DEEPEST} levels deep.")
        return False
    try:
        size = len(json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError):
        problems.refuse("", "not-json", "The document has values that JSON does not have.")
        return False
    if size > MOST_BYTES:
        problems.refuse("", "too-large", f"The document has {size} bytes; at most {MOST_BYTES} are taken.")
        return False
    return True
