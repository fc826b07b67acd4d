"""JumpStartModel documents: which address they mean, and what the resolved model adds to what is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caches.domain.endpoints.specs import EndpointKind, EndpointSpec
from caches.models import ModelVersion, SourceConnection
from caches.sources.jumpstart_uri import may_read
from controlplane.audit.models import Via
from controlplane.audit.services import Actor


def jumpstart_address(spec: EndpointSpec, connection: SourceConnection) -> str | None:
    """The document's model as this connection reads it, for its instance type; None where it may not."""
    source = spec.source
    if not may_read(source.model_id, tuple(connection.allowed)):
        return None
    query = f"?instance_type={spec.instance_types[0]}" if spec.instance_types else ""
    return f"jumpstart://{source.model_id}@{source.revision or '*'}{query}"


def author_of(spec: EndpointSpec) -> Actor:
    """In whose name a document accepts terms: nobody else is known here."""
    return Actor(f"{spec.kind} {spec.namespace}/{spec.name}", Via.KUBECTL)


def jumpstart_problem(version: ModelVersion) -> str:
    """Why a registered model cannot be served from its cache; "" where it can."""
    facts = _facts(version)
    if facts.get("compression") == "Gzip":
        return f"{version.full_name} is one packed file, which nothing here unpacks. Use a version that is a folder."
    if facts and not facts.get("image"):
        return f"{version.full_name} names no image for {facts.get('instance_type') or 'this instance type'}."
    return ""


def served_spec(spec: EndpointSpec, version: ModelVersion | None) -> EndpointSpec:
    """A JumpStartModel with the image and the environment of its model; what the document says itself comes last and
    so counts. Every other document as it is."""
    facts = _facts(version) if version is not None and spec.kind is EndpointKind.JUMPSTART else {}
    if not facts.get("image"):
        return spec
    own = {str(entry.get("name")) for entry in spec.pod.environment}
    added = [
        {"name": str(name), "value": str(value)}
        for name, value in sorted(facts.get("environment", {}).items())
        if name not in own
    ]
    return replace(spec, image=str(facts["image"]), pod=replace(spec.pod, environment=[*added, *spec.pod.environment]))


def _facts(version: ModelVersion) -> Mapping[str, Any]:
    found = version.metadata.get("jumpstart")
    return found if isinstance(found, dict) else {}
