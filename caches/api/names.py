"""The names in addresses: one that nothing could ever have is a mistake in the call, not a thing that is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.errors import FieldError, Invalid


@dataclass(frozen=True, slots=True)
class NameRule:
    """``allowed`` is what the whole name matches, ``says`` the sentence for whoever wrote another one."""

    allowed: re.Pattern[str]
    says: str


_MODEL = NameRule(re.compile(r"[A-Za-z0-9_-]{1,120}"), "A model's name has letters A-Z, digits, _ and -, at most 120.")
_VERSION = NameRule(
    re.compile(r"[A-Za-z0-9._+-]{1,120}"), "A version has letters A-Z, digits and . _ + -, at most 120 of them."
)
_NAME = NameRule(re.compile(r"[A-Za-z0-9_-]{1,63}"), "A name has letters A-Z, digits, _ and -, at most 63.")
POOL = NameRule(
    re.compile(r"[A-Za-z0-9._-]{1,127}"),
    "A pool's name is cluster.pool, each of lower case letters, digits and dashes, at most 63.",
)
RULES: Mapping[str, NameRule] = {"model": _MODEL, "version": _VERSION, "name": _NAME}


def check_names(given: Mapping[str, object], rules: Mapping[str, NameRule]) -> None:
    """Invalid for every part of the address (by its parameter) that cannot be a name."""
    wrong = [
        FieldError(field, "invalid", rule.says)
        for field, rule in rules.items()
        if isinstance(value := given.get(field), str) and not rule.allowed.fullmatch(value)
    ]
    if wrong:
        raise Invalid(
            "request:user:name",
            " ".join(one.detail for one in wrong),
            next_step="Correct the name in the address; the collection lists the names there are.",
            errors=wrong,
        )
