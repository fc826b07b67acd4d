"""JumpStart's documents: the manifest of models, and a model's specification merged into what it means. Pure.

Follows the layout that the vendor's SDK reads, with two decisions of our own: ``min_version`` gates features of that
SDK and is not looked at; ranges (``1.*``) take the highest version as numbers, never as text. Unreadable: ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MANIFEST_KEY = "models_manifest.json"
_VERSION = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,5})(?:[-_.]?(dev|a|alpha|b|beta|rc|post)[-_.]?(\d{0,9}))?")
_RANKS = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "rc": 3, "": 4, "post": 5}
# What no component of a configuration may change.
_FIXED = frozenset(
    {
        "model_id", "url", "version", "min_sdk_version", "deprecated", "deprecated_message", "deprecate_warn_message",
        "resource_name_base", "gated_bucket", "training_supported", "incremental_training_supported",
    }
)  # fmt: skip

Rank = tuple[tuple[int, ...], int, int]


@dataclass(frozen=True, slots=True)
class JumpStartModel:
    """One model at one version, for one instance type (the model's default where none was asked for).

    ``artifact_key`` ends in / for a folder, otherwise it is one packed file. ``image`` is "" where the specification
    has none for this region and instance type. ``eula_key`` is "" where nothing has to be accepted.
    """

    model_id: str
    version: str
    artifact_key: str
    gated_bucket: bool
    eula_key: str
    image: str
    environment: Mapping[str, str]
    instance_type: str
    deprecated: bool

    @property
    def is_packed(self) -> bool:
        return not self.artifact_key.endswith("/")


def rank_of(version: str) -> Rank | None:
    """What orders versions, pre-releases before their release; None for what is no version."""
    found = _VERSION.fullmatch(version.strip().lower())
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()  # 2 is 2.0.0
    return tuple(numbers), _RANKS[found[2] or ""], int(found[3] or 0)


def spec_key_of(manifest: Any, model_id: str, wanted: str) -> tuple[str, str] | None:
    """The version that ``wanted`` (a version, 1.*, 1.2.* or *) names now and the key of its specification; None when
    there is none."""
    if not isinstance(manifest, list):
        raise ValueError("the manifest is no list")
    best: tuple[Rank, str, str] | None = None
    for entry in manifest:
        if not isinstance(entry, Mapping) or entry.get("model_id") != model_id:
            continue
        version, key = entry.get("version"), entry.get("spec_key")
        rank = rank_of(version) if isinstance(version, str) else None
        if rank is None or not isinstance(key, str) or not key or not isinstance(version, str):
            continue
        if _matches(version, rank, wanted) and (best is None or rank > best[0]):
            best = rank, version, key
    return (best[1], best[2]) if best else None


def is_wanted(text: str) -> bool:
    """Whether this can name a version: * or 1.* or 1.2.* or a version."""
    return text == "*" or rank_of(text.removesuffix(".*")) is not None


def model_of(document: Any, model_id: str, version: str, *, region: str, instance_type: str = "") -> JumpStartModel:
    """What a specification means for a region and an instance type. ValueError where it states no artifact."""
    if not isinstance(document, Mapping) or document.get("model_id") != model_id:
        raise ValueError("the specification is of another model")
    spec = _merged(document)
    variants = _mapping(spec.get("hosting_instance_type_variants"))
    default = _text(spec.get("default_inference_instance_type"))
    chosen = _variants(variants, instance_type or default)
    key = _artifact_key(spec, chosen)
    if not key:
        raise ValueError("it is offered as a package alone, whose weights cannot be had")
    if "://" in key or key.startswith("/") or not (key.endswith("/") or key.endswith(".tar.gz")):
        raise ValueError("its artifact is neither a folder nor a packed file")
    return JumpStartModel(
        model_id=model_id,
        version=version,
        artifact_key=key,
        gated_bucket=spec.get("gated_bucket") is True,
        eula_key=_text(spec.get("hosting_eula_key")),
        image=_image(variants, chosen, region),
        environment=_environment(spec, chosen),
        instance_type=instance_type or default,
        deprecated=spec.get("deprecated") is True or spec.get("inference_vulnerable") is True,
    )


def _matches(version: str, rank: Rank, wanted: str) -> bool:
    if wanted == "*":
        return True
    if wanted.endswith(".*"):
        return version.startswith(wanted.removesuffix("*"))
    return rank == rank_of(wanted)


def _merged(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The components of the first-ranked configuration laid over the base."""
    configs = _mapping(document.get("inference_configs"))
    rankings = _mapping(_mapping(document.get("inference_config_rankings")).get("overall")).get("rankings")
    ranked = [name for name in rankings if name in configs] if isinstance(rankings, list) else []
    name = next(iter(ranked or sorted(configs)), None)
    merged: dict[str, Any] = dict(document)
    if name is None:
        return merged
    components = _mapping(document.get("inference_config_components"))
    for component in _list(_mapping(configs[name]).get("component_names")):
        laid = _mapping(components.get(component)) if isinstance(component, str) else {}
        merged = _laid(merged, {key: value for key, value in laid.items() if key not in _FIXED})
    return merged


def _laid(base: Mapping[str, Any], over: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    if depth > 20:
        raise ValueError("it is nested too deeply")
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = _laid(below, value, depth + 1) if both else value  # type: ignore[arg-type]  # both are mappings
    return result


def _variants(variants: Mapping[str, Any], instance_type: str) -> Sequence[Mapping[str, Any]]:
    """Properties of the family and of the type, the stronger last."""
    named = _mapping(variants.get("variants"))
    if not instance_type.startswith("ml."):
        return ()
    family = instance_type.split(".")[1]
    return [_mapping(named[name]) for name in (family, instance_type) if name in named]


def _artifact_key(spec: Mapping[str, Any], chosen: Sequence[Mapping[str, Any]]) -> str:
    prepacked = bool(spec.get("hosting_prepacked_artifact_key")) or spec.get("hosting_use_script_uri", True) is False
    name = "prepacked_artifact_key" if prepacked else "artifact_key"
    for variant in reversed(chosen):
        if found := _text(_mapping(variant.get("properties")).get(name)):
            return found
    return _text(spec.get(f"hosting_{name}"))


def _image(variants: Mapping[str, Any], chosen: Sequence[Mapping[str, Any]], region: str) -> str:
    aliases = _mapping(_mapping(variants.get("regional_aliases")).get(region))
    for variant in reversed(chosen):
        image = _text(_mapping(variant.get("regional_properties")).get("image_uri"))
        image = _text(aliases.get(image[1:])) if image.startswith("$") else image
        if image:
            return image
    return ""


def _environment(spec: Mapping[str, Any], chosen: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    if not spec.get("hosting_model_package_arns"):
        for entry in map(_mapping, _list(spec.get("inference_environment_variables"))):
            if entry.get("required_for_model_class") and isinstance(entry.get("name"), str):
                found[entry["name"]] = str(entry.get("default", ""))
    for variant in chosen:
        for name, value in _mapping(_mapping(variant.get("properties")).get("environment_variables")).items():
            found[str(name)] = str(value)
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
