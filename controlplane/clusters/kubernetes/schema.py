"""The resource definitions, derived from the documents so that no field is pruned by a schema that forgot it.

``python -m controlplane.clusters.kubernetes.schema deploy/base/crds`` writes them; a test compares.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import yaml

from controlplane.clusters.codec import wire_names
from controlplane.clusters.documents import (
    Condition,
    DesiredEntry,
    EntryState,
    EntryStatus,
    Limits,
    NodeCacheSpec,
    NodeCacheStatus,
)
from controlplane.clusters.kubernetes.names import (
    GROUP,
    MANIFEST_KIND,
    NODE_CACHE_KIND,
    ROOTS_KIND,
    ROOTS_NAME,
)

Json = dict[str, Any]
DIGEST_PATTERN = "^sha256:[0-9a-f]{64}$"
# A plain folder below the root, as agents take it: no step is "." or "..", and nothing is left of a last slash.
FOLDER_PATTERN = r"^(/\.{0,2}[A-Za-z0-9_-][A-Za-z0-9._-]*)+$"

# Lists of a status that are maps: a key cannot be there twice. What Hearth applies is atomic instead: whoever else
# touches a part of it holds all of it, so that nobody's addition stays in it unseen.
LIST_KEYS: Mapping[Any, str] = {EntryStatus: "digest", Condition: "type"}
ATOMIC = (Limits,)
# An agent that is older than its control plane reports a state that it has; a newer one may have more.
OPEN_ENUMS = (EntryState,)
# What an agent alone may create has no pool yet; everything else is Hearth's to say.
NOT_REQUIRED = {(NodeCacheSpec, "pool")}
# Defaults only below what Hearth itself writes. A default at the top of the spec would belong to the agent that
# created the object, and Hearth's first apply would conflict with it.
WITHOUT_DEFAULTS = (NodeCacheSpec, NodeCacheStatus)
MOST_ITEMS = {"desired": 2000, "connections": 200, "entries": 4000, "orphans": 4000, "conditions": 50}

IMMUTABLE = "self == oldSelf"
SPEC_RULES = [
    {
        "rule": "self.nodeUid == oldSelf.nodeUid",
        "message": "nodeUid is immutable: another machine is another NodeCache",
    },
    {"rule": "self.nodeName == oldSelf.nodeName", "message": "nodeName is immutable"},
    # Not by "minimum": a server compares whole numbers with whole bounds, and 0.1 is 0 to it.
    *(
        {"rule": f"!has(self.{name}) || self.{name} > 0.0", "message": f"{name} must be more than 0"}
        for name in ("statusIntervalSeconds", "scrubIntervalSeconds")
    ),
]
OBJECT_RULES = [{"rule": "self.metadata.name == self.spec.nodeName", "message": "a NodeCache is named as its node"}]
LINE_RULES = [
    {
        "rule": "self.action == 'Evict' || (self.uri.size() > 0 && self.connection.size() > 0)",
        "message": "what is to be ensured needs a uri and a connection",
    }
]


def schema_of(annotation: Any) -> Json:
    """The structural schema of one annotation of a document."""
    if dataclasses.is_dataclass(annotation):
        return _object(typing.cast(type, annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        names = [member.value for member in annotation]
        return {"type": "string"} if annotation in OPEN_ENUMS else {"type": "string", "enum": names}
    if annotation is datetime:
        return {"type": "string", "format": "date-time"}
    simple: Mapping[Any, Json] = {
        str: {"type": "string"},
        bool: {"type": "boolean"},
        int: {"type": "integer", "format": "int64"},
        float: {"type": "number"},
    }
    if annotation in simple:
        return dict(simple[annotation])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return schema_of(inner)
    if origin is tuple:
        return _array(arguments[0])
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    raise TypeError(f"no schema for {annotation}")


def _array(item: Any) -> Json:
    made: Json = {"type": "array", "items": schema_of(item)}
    if (key := LIST_KEYS.get(item)) is not None:
        made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        made["items"]["x-kubernetes-map-type"] = "atomic"  # one owner of a line, and few bytes to say so
    else:
        made["x-kubernetes-list-type"] = "atomic"
    return made


def _object(document: type) -> Json:
    hints = typing.get_type_hints(document)
    properties: Json = {}
    required = []
    for field in dataclasses.fields(document):
        wire = wire_names(document)[field.name]
        made = schema_of(hints[field.name])
        optional = type(None) in get_args(hints[field.name])
        if field.default is not dataclasses.MISSING:
            plain = field.default.value if isinstance(field.default, Enum) else field.default
            if plain is not None and document not in WITHOUT_DEFAULTS:
                made["default"] = plain
        elif (
            field.default_factory is dataclasses.MISSING and not optional and (document, field.name) not in NOT_REQUIRED
        ):
            required.append(wire)
        if wire in MOST_ITEMS:
            made["maxItems"] = MOST_ITEMS[wire]
        properties[wire] = made
    schema: Json = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if document in ATOMIC:
        schema["x-kubernetes-map-type"] = "atomic"
    if document is DesiredEntry:
        properties["digest"]["pattern"] = DIGEST_PATTERN
        properties["digest"]["maxLength"] = 71
        properties["uri"]["maxLength"] = 4096
        properties["connection"]["maxLength"] = 253
        schema["x-kubernetes-validations"] = LINE_RULES
    return schema


def node_cache_definition() -> Json:
    """The CustomResourceDefinition of NodeCache."""
    spec = schema_of(NodeCacheSpec)
    for name in ("nodeName", "nodeUid"):
        spec["properties"][name] |= {"minLength": 1, "maxLength": 253}
    spec["x-kubernetes-validations"] = SPEC_RULES
    schema = {
        "type": "object",
        "description": "What one node is to keep in its store (spec, written by Hearth) and what it has (status, "
        "written by the node's agent alone). Deleting it removes nothing on the node.",
        "required": ["spec"],
        "properties": {"spec": spec, "status": schema_of(NodeCacheStatus)},
        "x-kubernetes-validations": OBJECT_RULES,
    }
    status = schema["properties"]["status"]  # type: ignore[index]
    status["properties"]["summary"] = {
        "type": "object",
        "description": "For people: counted by the agent from the lines below.",
        "properties": {
            "desired": {"type": "integer", "format": "int64"},
            "ready": {"type": "integer", "format": "int64"},
            "free": {"type": "string"},
        },
    }
    columns = [
        {"name": "Desired", "type": "integer", "jsonPath": ".status.summary.desired"},
        {"name": "Ready", "type": "integer", "jsonPath": ".status.summary.ready"},
        {"name": "Free", "type": "string", "jsonPath": ".status.summary.free"},
        # How old the three are: of a machine that died they stay as they were.
        {"name": "Reported", "type": "date", "jsonPath": ".status.reportedAt"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    return _definition(NODE_CACHE_KIND, "nodecaches", ["nc"], schema, columns, status=True)


def manifest_definition() -> Json:
    """The CustomResourceDefinition of ArtifactManifest."""
    integer = {"type": "integer", "format": "int32", "minimum": 0, "maximum": 10000}
    spec: Json = {
        "type": "object",
        "required": ["digest", "checksum", "part", "parts", "data"],
        "properties": {
            "digest": {"type": "string", "pattern": DIGEST_PATTERN, "maxLength": 71},
            "checksum": {"type": "string", "pattern": "^[0-9a-f]{64}$", "maxLength": 64},
            "part": dict(integer),
            "parts": {**integer, "minimum": 1},
            "data": {"type": "string", "maxLength": 920000, "description": "zlib, then base64"},
        },
        "x-kubernetes-validations": [
            {"rule": IMMUTABLE, "message": "a manifest is immutable"},
            {"rule": "self.part < self.parts", "message": "part counts from 0 and stays below parts"},
        ],
    }
    schema = {
        "type": "object",
        "description": "One part of an immutable list of an artifact's files, named by its digest.",
        "required": ["spec"],
        "properties": {"spec": spec},
    }
    columns = [
        {"name": "Part", "type": "integer", "jsonPath": ".spec.part"},
        {"name": "Parts", "type": "integer", "jsonPath": ".spec.parts"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    return _definition(MANIFEST_KIND, "artifactmanifests", [], schema, columns, status=False)


def cache_roots_definition() -> Json:
    """The CustomResourceDefinition of CacheRoots, which admission reads and Hearth never does."""
    folder = {"type": "string", "pattern": FOLDER_PATTERN, "maxLength": 4096}
    paths = {"type": "array", "maxItems": 100, "x-kubernetes-list-type": "set", "items": folder}
    properties = {
        "paths": {**paths, "description": "Cache paths: the agents' own, which they write."},
        "sourcePaths": {**paths, "description": "Folders that agents may read, and nothing else, as sources."},
    }
    schema = {
        "type": "object",
        "description": "The folders of nodes that agents may have. Whoever installs Hearth writes it; Hearth cannot.",
        "required": ["spec"],
        "properties": {"spec": {"type": "object", "required": ["paths"], "properties": properties}},
        "x-kubernetes-validations": [
            {"rule": f"self.metadata.name == '{ROOTS_NAME}'", "message": f"only the list named {ROOTS_NAME} is read"}
        ],
    }
    columns = [
        {"name": "Paths", "type": "string", "jsonPath": ".spec.paths"},
        {"name": "Sources", "type": "string", "jsonPath": ".spec.sourcePaths"},
    ]
    return _definition(ROOTS_KIND, "cacheroots", [], schema, columns, status=False)


def _definition(
    kind: str, plural: str, short: list[str], schema: Mapping[str, Any], columns: list[Json], *, status: bool
) -> Json:
    names: Json = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    if short:
        names["shortNames"] = short
    version: Json = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": dict(schema)},
        "additionalPrinterColumns": columns,
    }
    if status:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "hearth"}},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }


def rendered() -> Mapping[str, str]:
    """File name to YAML text."""
    return {
        "nodecaches.yaml": _text(node_cache_definition()),
        "artifactmanifests.yaml": _text(manifest_definition()),
        "cacheroots.yaml": _text(cache_roots_definition()),
    }


def _text(document: Json) -> str:
    head = (
        "# Written by controlplane.clusters.kubernetes.schema from controlplane/clusters/documents.py; do not edit.\n"
    )

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return head + yaml.dump(document, Dumper=Plain, sort_keys=False, width=120)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
