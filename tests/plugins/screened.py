"""What tests send to somebody else's API server, marked as theirs; and what they may not send. Pure.

Everything that they make has the label ``MARK``. What has not is not theirs: they do not see nodes without it, and a
write to anything without it is refused before it is sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import yaml

MARK = "tests.hearth.dev/run"
APPLY = "application/apply-patch+yaml"
WRITES = ("POST", "PUT", "PATCH", "DELETE")
_TEMPLATES = ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet", "Job")
_NOT_KEPT = ("TokenRequest", "Eviction", "Binding", "Scale", "DeleteOptions")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about; ``name`` "" for a collection, ``resource`` "" for what is no resource."""

    group: str  # "/api/v1" or "/apis/<group>/<version>"
    namespace: str
    resource: str
    name: str
    sub: str
    query: Mapping[str, str]

    @property
    def path(self) -> str:
        """Of the object or the collection, without a subresource."""
        if not self.resource:
            return self.group
        place = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{self.group}{place}/{self.resource}" + (f"/{self.name}" if self.name else "")

    @property
    def full(self) -> str:
        """Path and query as they are sent."""
        return self.path + (f"/{self.sub}" if self.sub else "") + (f"?{urlencode(self.query)}" if self.query else "")

    @property
    def watches(self) -> bool:
        return self.query.get("watch", "") in ("1", "true")

    def selecting(self) -> Target:
        """The same of what is marked alone."""
        selector = ",".join(filter(None, (self.query.get("labelSelector", ""), MARK)))
        query = {**self.query, "labelSelector": selector}
        return Target(self.group, self.namespace, self.resource, self.name, self.sub, query)


def target_of(address: str) -> Target:
    """A request's address as a Target."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    steps = parts.path.strip("/").split("/")
    count = {"api": 2, "apis": 3}.get(steps[0], 0)
    if not count or len(steps) <= count:
        return Target(parts.path, "", "", "", "", query)
    group, rest = "/" + "/".join(steps[:count]), steps[count:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    return Target(group, namespace, rest[0], rest[1] if len(rest) > 1 else "", "/".join(rest[2:]), query)


def marked(target: Target, method: str, content_type: str, body: bytes, run: str, *, anywhere: bool) -> bytes:
    """The body with the label, where it makes an object. Pods go to marked nodes, unless they may go ``anywhere``."""
    makes = method == "POST" or (method == "PATCH" and content_type.startswith(APPLY))
    if not makes or not body or target.sub or not target.resource:
        return body
    document = _document(body)
    kind = str(document.get("kind", ""))
    if not document or kind in _NOT_KEPT or kind.endswith("Review"):
        return body
    metadata = _within(document, "metadata")
    metadata["labels"] = {**(metadata.get("labels") or {}), MARK: run}
    spec = document.get("spec")
    if kind in _TEMPLATES and isinstance(spec, dict):
        template = _within(spec, "template")
        metadata, spec = _within(template, "metadata"), template.get("spec")
        metadata["labels"] = {**(metadata.get("labels") or {}), MARK: run}
    if not anywhere and isinstance(spec, dict) and (kind in _TEMPLATES or (kind == "Pod" and not spec.get("nodeName"))):
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), MARK: run}
    return json.dumps(document).encode()


def is_too_old(target: Target, forgotten: int) -> bool:
    """Whether a watch or a continued list begins before what was forgotten."""
    if following := target.query.get("continue"):
        try:
            token = json.loads(base64.urlsafe_b64decode(following + "=" * (-len(following) % 4)))
            return int(token["rv"]) < forgotten
        except (ValueError, KeyError, TypeError):
            return False
    version = target.query.get("resourceVersion", "")
    return target.watches and version.isdecimal() and 0 < int(version) < forgotten


def _within(document: Json, field: str) -> Json:
    found = document.setdefault(field, {})
    return found if isinstance(found, dict) else {}


def _document(body: bytes) -> Json:
    try:
        document = json.loads(body)
    except ValueError:
        try:
            document = yaml.safe_load(body)
        except yaml.YAMLError:
            return {}
    return document if isinstance(document, dict) else {}
