"""Documents of endpoints for tests: the two that people arrive with, and changes of them."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from caches.domain.endpoints.specs import EndpointSpec, read_endpoint
from controlplane.embedded.processes import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
_CONFIG = yaml.safe_load((EXAMPLES / "inference-endpoint-config.yaml").read_text())
_JUMPSTART = yaml.safe_load((EXAMPLES / "jumpstart-model.yaml").read_text())
GONE = object()


def config(**changes: Any) -> dict[str, Any]:
    """The InferenceEndpointConfig of the examples; ``spec__worker__image="x"`` sets a field, GONE removes it."""
    return _changed(_CONFIG, changes)


def jumpstart(**changes: Any) -> dict[str, Any]:
    return _changed(_JUMPSTART, changes)


def spec_of(document: dict[str, Any]) -> EndpointSpec:
    reading = read_endpoint(document)
    assert reading.spec is not None, reading.refusals
    return reading.spec


def refused(document: object) -> dict[str, str]:
    """Path to the last part of the code, of every refusal."""
    reading = read_endpoint(document)
    assert (reading.spec is None) == bool(reading.refusals)
    return {error.field: error.code.removeprefix("endpoint:user:") for error in reading.refusals}


def _changed(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(document)
    for path, value in changes.items():
        *steps, last = path.split("__")
        at = made
        for step in steps:
            at = at.setdefault(step, {})
        if value is GONE:
            at.pop(last, None)
        else:
            at[last] = value
    return made
