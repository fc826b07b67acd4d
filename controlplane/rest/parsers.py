"""JSON that can be read in one way only."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import IO, Any

from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser
from rest_framework.utils import json


class StrictParser(JSONParser):
    """Refuses an object that names a field twice: readers disagree about which of the two counts."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        encoding = (parser_context or {}).get("encoding", settings.DEFAULT_CHARSET)
        try:
            text: Any = codecs.getreader(encoding)(stream)
            return json.load(text, parse_constant=json.strict_constant, object_pairs_hook=_once)
        except ValueError as error:
            raise ParseError(f"The JSON cannot be read: {error}"[:500]) from error


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice[:100]!r} is there more than once")
    return made
