"""The definitions of endpoints in deploy/ are those that the program makes, and say what clients rely on."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.endpoint_schema import definitions, dump
from controlplane.embedded.processes import ROOT

FOLDER = ROOT / "deploy" / "endpoints" / "crds"
MADE = definitions()


def test_the_files_are_as_the_program_makes_them() -> None:
    found = {path.name: path.read_text() for path in FOLDER.glob("*.yaml")}
    assert found == {name: dump(document) for name, document in MADE.items()}
    assert {name: yaml.safe_load(text) for name, text in found.items()} == MADE


@pytest.mark.parametrize("name", sorted(MADE))
def test_nothing_is_pruned_anywhere_below_a_spec(name: str) -> None:
    def closed(schema: Any, at: str) -> list[str]:
        if not isinstance(schema, dict):
            return []
        found = []
        if schema.get("type") == "object" and not (
            schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
        ):
            found.append(at)
        for key, inner in (schema.get("properties") or {}).items():
            found += closed(inner, f"{at}.{key}")
        return found + closed(schema.get("items"), f"{at}[]")

    for version in MADE[name]["spec"]["versions"]:
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        assert closed(properties["spec"], "spec") + closed(properties["status"], "status") == []


@pytest.mark.parametrize("name", sorted(MADE))
def test_no_default_is_stored_but_that_of_replicas(name: str) -> None:
    text = json.dumps(MADE[name])
    assert text.count('"default"') == text.count('"default": 1')
    assert ('"default": 1' in text) == (name in (f"{names.CONFIGS}.yaml", f"{names.JUMPSTART_MODELS}.yaml"))


def test_one_version_is_stored_and_endpoints_are_served_in_two() -> None:
    served = {
        name: [(version["name"], version["storage"]) for version in document["spec"]["versions"]]
        for name, document in MADE.items()
    }
    both = [("v1", True), ("v1alpha1", False)]
    endpoints = {f"{names.CONFIGS}.yaml", f"{names.JUMPSTART_MODELS}.yaml"}
    assert served == {name: both if name in endpoints else both[:1] for name in MADE}
