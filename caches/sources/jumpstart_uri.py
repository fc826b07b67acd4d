"""``jumpstart://model-id@version``: addresses of JumpStart models, and what resolving adds to them.

``?instance_type=`` chooses among a model's variants. A resolved address names the exact version and also says where the
artifact lies (``artifact``), that it is read through the hub (``gated``) and which terms were accepted for it
(``eula``): nodes read by it without asking for the specification again. The connection's name may stand first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

from caches.sources import allowed as rules
from caches.sources import problems
from caches.sources.jumpstart_spec import is_wanted
from controlplane.clusters.documents import ConnectionSpec

SCHEME = "jumpstart://"
ANY, LATEST = "*", "latest"  # the newest version, as the vendor's SDK writes it and as people do
_MODEL = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9]){0,62}")
_INSTANCE = re.compile(r"ml\.[a-z0-9-]{1,30}\.[a-z0-9-]{1,30}")
_EULA = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[A-Za-z0-9!_.*'()/+=@ -]{1,900}")


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """``artifact`` is ``s3://bucket/key``, "" until the address is resolved; ``eula`` the SHA-256 of accepted terms."""

    model_id: str
    version: str = ANY
    instance_type: str = ""
    artifact: str = ""
    gated: bool = False
    eula: str = ""

    @property
    def uri(self) -> str:
        values = {
            "instance_type": self.instance_type,
            "artifact": self.artifact,
            "gated": "1" if self.gated else "",
            "eula": self.eula,
        }
        query = "&".join(f"{name}={quote(value, safe='/:')}" for name, value in values.items() if value)
        return f"{SCHEME}{self.model_id}@{self.version}{'?' if query else ''}{query}"

    @property
    def bucket(self) -> str:
        return self.artifact.removeprefix("s3://").partition("/")[0]

    @property
    def key(self) -> str:
        return self.artifact.removeprefix("s3://").partition("/")[2]


def split_jumpstart(uri: str, spec: ConnectionSpec) -> ModelPlace:
    """The place that an allowed address names; Permanent(InvalidRequest) otherwise."""
    if not uri.startswith(SCHEME):
        raise problems.bad_uri(uri, "a JumpStart connection reads jumpstart:// addresses.")
    named, _, query = uri.removeprefix(SCHEME).partition("?")
    named, at, version = named.removeprefix(f"{spec.name}/").partition("@")
    if not _MODEL.fullmatch(named):
        raise problems.bad_uri(uri, "this is no model's id.")
    version = ANY if version.lower() == LATEST else version
    if at and not is_wanted(version):
        raise problems.bad_uri(uri, "what follows @ is a version, a range as 1.*, or * or latest for the newest.")
    if not may_read(named, spec.allowed):
        raise problems.not_allowed(f"Model {named}", spec.name)
    values = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := values.keys() - {"instance_type", "artifact", "gated", "eula"}:
        raise problems.bad_uri(uri, f"{problems.shown(sorted(unknown)[0])} means nothing in such an address.")
    if (kind := values.get("instance_type")) is not None and not _INSTANCE.fullmatch(kind):
        raise problems.bad_uri(uri, "an instance type is written as ml.g6.xlarge.")
    if (eula := values.get("eula")) is not None and not _EULA.fullmatch(eula):
        raise problems.bad_uri(uri, "eula is the SHA-256 of the accepted text.")
    place = ModelPlace(
        named, version or ANY, kind or "", values.get("artifact", ""), values.get("gated") == "1", eula or ""
    )
    if place.artifact:
        _check_artifact(uri, place, spec)
    return place


def buckets_of(spec: ConnectionSpec) -> tuple[str, ...]:
    """The buckets that models of a connection lie in: that of the manifest first, then the gated one of the region."""
    content = spec.manifest.removeprefix("s3://").partition("/")[0] or f"jumpstart-cache-prod-{spec.region}"
    return content, f"jumpstart-private-cache-prod-{spec.region}"


def may_read(model_id: str, names: tuple[str, ...]) -> bool:
    """``names`` are model ids, or * for all."""
    return "*" in names or model_id in names


def check_model(text: str) -> None:
    """Refuse what cannot stand in the allowed list of a JumpStart connection."""
    if text != "*" and not _MODEL.fullmatch(text):
        raise problems.bad_uri(text, "name models by their ids, or * for all.")


def check_manifest(text: str) -> None:
    """Refuse what cannot be where a manifest lies; "" is the region's own."""
    if not text:
        return
    bucket, _, key = text.removeprefix("s3://").partition("/")
    if not text.startswith("s3://") or not key or key.endswith("/") or not _KEY.fullmatch(key):
        raise problems.bad_uri(text, "a manifest is written s3://bucket/key.")
    rules.check_bucket(bucket)


def _check_artifact(uri: str, place: ModelPlace, spec: ConnectionSpec) -> None:
    """Addresses are resolved by Hearth, but a wrong one must not read another bucket with these credentials."""
    bad_key = not _KEY.fullmatch(place.key) or ".." in place.key.split("/")
    if not place.artifact.startswith("s3://") or bad_key or place.bucket not in buckets_of(spec):
        raise problems.bad_uri(uri, "the artifact lies in no bucket of this connection.")
