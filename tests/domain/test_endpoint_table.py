"""docs/endpoints.md says of every field of the vendor's schema that has no effect here that it has none, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from caches.domain.endpoints.options import KNOWN
from caches.domain.endpoints.schema import USED_HERE, WITHOUT_EFFECT, ignored_fields
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.endpoint_schema import definitions
from controlplane.embedded.processes import ROOT

TEXT = (ROOT / "docs" / "endpoints.md").read_text()
SPECS = {
    plural: definitions()[f"{plural}.yaml"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for plural in (names.CONFIGS, names.JUMPSTART_MODELS)
}

# What the vendor added after the schema that was transcribed.
NEWER = {"metricsSidecarResources", "metricsCollectorResources", "s3UploaderResources", "server.validations"}


def rows(heading: str) -> dict[str, str]:
    """The table below a heading: its first two cells, without the head."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (?P<path>`[^|]+`) \| (?P<why>[^|]+) \|", section, re.MULTILINE)
    assert lines, f"there is no table below {heading!r}"
    return {path.strip("`"): why.strip() for path, why in lines}


def test_the_table_of_what_has_no_effect_is_the_one_of_the_code() -> None:
    assert rows("Accepted without effect") == WITHOUT_EFFECT


def test_every_annotation_is_told() -> None:
    assert set(rows("Annotations")) == {f"hearth.dev/{name}" for name in KNOWN}


def leaves(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths of what a schema names, down to what it leaves open."""
    for name, inner in schema.get("properties", {}).items():
        path = f"{prefix}.{name}" if prefix else name
        if path in USED_HERE or path in WITHOUT_EFFECT or not inner.get("properties"):
            yield path
        else:
            yield from leaves(inner, path)


@pytest.mark.parametrize("plural", sorted(SPECS))
def test_every_field_of_the_schema_is_used_or_in_the_table(plural: str) -> None:
    found = set(leaves(SPECS[plural]))
    assert len(found) > 20 and found <= USED_HERE | WITHOUT_EFFECT.keys()


def test_the_table_has_no_field_that_no_schema_names() -> None:
    named = {path for schema in SPECS.values() for path in leaves(schema)}
    assert WITHOUT_EFFECT.keys() - named == NEWER


def test_what_says_nothing_of_its_source_is_named_too() -> None:
    source = {"modelSourceType": "huggingface", "modelLocation": "x", "huggingFaceModel": {"modelId": "a/b"}}
    [found] = ignored_fields({"modelSourceConfig": source})
    assert found.path == "modelSourceConfig.modelLocation"
    cache = {"weightsCache": {"enabled": True}}
    [found] = ignored_fields({"modelSourceConfig": {"modelSourceType": "kubernetesVolume"}, "modelCacheConfig": cache})
    assert found.path == "modelCacheConfig.weightsCache"
    given = {"modelSourceConfig": {"modelSourceType": "s3", "modelLocation": "x"}, "modelCacheConfig": cache}
    assert ignored_fields(given) == ()
