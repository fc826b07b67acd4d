"""The definitions in deploy/ are those of the documents: what a schema forgets, an API server drops in silence."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from controlplane.clusters import codec
from controlplane.clusters.documents import Manifest
from controlplane.clusters.kubernetes import schema
from controlplane.clusters.kubernetes.manifests import chunks_of
from controlplane.embedded.processes import ROOT
from tests.contracts.observing import DIGEST, spec, status

FOLDER = ROOT / "deploy" / "base" / "crds"


def test_it_is_written_down_as_it_is_derived() -> None:
    written = {path.name: path.read_text() for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml"}
    assert written == schema.rendered(), "run: python -m controlplane.clusters.kubernetes.schema deploy/base/crds"


def properties(definition: dict[str, Any]) -> dict[str, Any]:
    (version,) = definition["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def pruned(value: Any, rule: dict[str, Any], path: str = "") -> list[str]:
    """The paths that an API server would drop or refuse by type, as a structural schema decides."""
    if rule["type"] == "array":
        return [p for n, item in enumerate(value) for p in pruned(item, rule["items"], f"{path}[{n}]")]
    if rule["type"] != "object":
        kinds: dict[str, Any] = {"string": str, "boolean": bool, "integer": int, "number": (int, float)}
        return [] if isinstance(value, kinds[rule["type"]]) else [path]
    if "additionalProperties" in rule:
        return []
    gone = [f"{path}.{name}" for name in value if name not in rule["properties"]]
    known = {name: item for name, item in value.items() if name in rule["properties"]}
    missing = [f"{path}.{name} missing" for name in rule.get("required", ()) if name not in value]
    return gone + missing + [p for n, i in known.items() for p in pruned(i, rule["properties"][n], f"{path}.{n}")]


def test_it_keeps_every_field_that_travels() -> None:
    rules = properties(schema.node_cache_definition())
    assert pruned(codec.encode(spec("n-1", "u", DIGEST)), rules["spec"]) == []
    told = codec.encode(status("n-1", "u")) | {"summary": {"desired": 1, "ready": 0, "free": "2.0Ti"}}
    assert pruned(told, rules["status"]) == []
    assert pruned({"nodeName": "n-1", "nodeUid": "u"}, rules["spec"]) == []
    assert pruned({"nodeName": "n-1", "nodeUid": "u", "new": 1}, rules["spec"]) == [".new"]


def test_it_keeps_every_field_of_a_manifest() -> None:
    (chunk,) = chunks_of(Manifest(DIGEST, ()))
    assert pruned(chunk["spec"], properties(schema.manifest_definition())["spec"]) == []


def walk(rule: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [*rule.get("properties", {}).values(), *([rule["items"]] if "items" in rule else [])]
    return [rule, *(found for item in inner for found in walk(item))]


def test_it_defaults_nothing_that_would_belong_to_whoever_made_the_object() -> None:
    rule = properties(schema.node_cache_definition())["spec"]
    assert all("default" not in item for item in rule["properties"].values())
    assert rule["properties"]["limits"]["properties"]["maxDownloads"]["default"] == 2


def test_it_gives_what_hearth_applies_one_owner() -> None:
    rule = properties(schema.node_cache_definition())["spec"]["properties"]
    assert rule["desired"]["x-kubernetes-list-type"] == "atomic"
    assert rule["connections"]["x-kubernetes-list-type"] == "atomic"
    assert rule["limits"]["x-kubernetes-map-type"] == "atomic"


def test_it_keys_the_lines_of_a_status() -> None:
    rule = properties(schema.node_cache_definition())["status"]["properties"]
    assert rule["entries"]["x-kubernetes-list-map-keys"] == ["digest"]
    assert "digest" in rule["entries"]["items"]["required"]


def test_it_shows_people_what_they_look_for() -> None:
    (version,) = schema.node_cache_definition()["spec"]["versions"]
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert columns == ["Desired", "Ready", "Free", "Reported", "Age"]
    known = walk(properties(schema.node_cache_definition())["status"])
    for column in version["additionalPrinterColumns"][:3]:
        assert any(column["jsonPath"].rpartition(".")[2] in rule.get("properties", {}) for rule in known)
    assert version["subresources"] == {"status": {}}
    assert schema.node_cache_definition()["spec"]["names"]["shortNames"] == ["nc"]


def test_it_has_no_schema_for_what_cannot_travel() -> None:
    with pytest.raises(TypeError):
        schema.schema_of(object)


def test_it_writes_yaml_that_reads_back() -> None:
    for text in schema.rendered().values():
        assert yaml.safe_load(text)["kind"] == "CustomResourceDefinition"
