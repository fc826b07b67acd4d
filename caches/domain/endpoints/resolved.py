"""What a document's words came to once its version was registered, for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_SHORT, _ADDRESS = "jumpstart:", "jumpstart://"


def resolved_source(source: str, facts: object) -> str:
    """The address of a JumpStart model with the version that it has; any other place as it is. ``facts``: what
    resolving added to the version under ``jumpstart``, if anything."""
    if not source.startswith(_SHORT) or source.startswith(_ADDRESS):
        return source
    if isinstance(facts, Mapping) and facts.get("model_id") and facts.get("version"):
        return f"{_ADDRESS}{facts['model_id']}@{facts['version']}"
    model, _, version = source.removeprefix(_SHORT).rpartition("@")
    return f"{_ADDRESS}{model}@{'*' if version == 'latest' else version}"


def resolved_image(image: str, facts: object) -> str:
    """What the document says, else what its model says; "" while nobody does."""
    return image or (str(facts.get("image") or "") if isinstance(facts, Mapping) else "")
