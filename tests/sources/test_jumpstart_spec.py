"""JumpStart's documents: which version, which artifact, which image, for which instance type."""

from __future__ import annotations

from typing import Any

import pytest

from caches.sources.jumpstart_spec import is_wanted, model_of, rank_of, spec_key_of
from caches.sources.jumpstart_uri import ModelPlace, check_manifest, check_model, split_jumpstart
from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.errors import Permanent
from tests.standins.jumpstart import IMAGE, REGION, spec_of

VERSIONS = ["1.9.0", "1.10.0", "2.0.0", "2.1.0rc1", "10.0.0-dev2", "1.2"]
MANIFEST = [{"model_id": "acme", "version": version, "min_version": "9.9", "spec_key": version} for version in VERSIONS]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("*", "10.0.0-dev2"),
        ("1.*", "1.10.0"),
        ("1.1.*", None),
        ("2.*", "2.1.0rc1"),
        ("2", "2.0.0"),
        ("v2.0", "2.0.0"),
        ("1.2.0", "1.2"),
        ("2.1.0", None),
        ("3.0.0", None),
    ],
)
def test_it_takes_the_version_that_is_wanted(wanted: str, found: str | None) -> None:
    assert spec_key_of(MANIFEST, "acme", wanted) == ((found, found) if found else None)
    assert spec_key_of(MANIFEST, "other", wanted) is None


def test_it_leaves_out_what_is_no_entry() -> None:
    odd: list[Any] = [None, {}, {"model_id": "acme"}, {"model_id": "acme", "version": 3, "spec_key": "x"},
                      {"model_id": "acme", "version": "next", "spec_key": "x"},
                      {"model_id": "acme", "version": "9.0.0", "spec_key": ""}]  # fmt: skip
    assert spec_key_of([*odd, *MANIFEST], "acme", "*") == ("10.0.0-dev2", "10.0.0-dev2")
    with pytest.raises(ValueError):
        spec_key_of({"models": MANIFEST}, "acme", "*")


def test_it_orders_versions_as_numbers_and_stages() -> None:
    ordered = ["1.0.dev1", "1.0a1", "1.0b2", "1.0rc1", "1.0", "1.0.post1", "1.0.1", "1.9", "1.10"]
    ranks = [rank_of(version) for version in ordered]
    assert ranks == sorted(ranks, key=lambda rank: rank or ((), 0, 0)) and len(set(ranks)) == len(ordered)
    assert rank_of("latest") is rank_of("") is rank_of("1..2") is None
    assert all(map(is_wanted, ("*", "1.*", "1.2.3"))) and not any(map(is_wanted, ("1.*.2", "", ".*")))


def made(instance_type: str = "", **fields: Any) -> Any:
    return model_of(spec_of("acme", "1.2.0", "acme/pack/", **fields), "acme", "1.2.0", region=REGION,
                    instance_type=instance_type)  # fmt: skip


def test_it_finds_the_image_of_an_instance_s_family_in_the_configuration_s_component() -> None:
    assert (made("ml.g6.xlarge").image, made("ml.p5.48xlarge").image, made("g6.xlarge").image) == (IMAGE, "", "")
    assert (made().image, made().instance_type) == (IMAGE, "ml.g6.xlarge")  # the model's own default
    assert made(default_inference_instance_type=None).image == ""
    other = model_of(spec_of("acme", "1", "a/"), "acme", "1", region="us-east-1", instance_type="ml.g6.xlarge")
    assert other.image == ""


def test_the_type_beats_the_family_for_artifact_image_and_environment() -> None:
    variants = {
        "regional_aliases": {REGION: {"b": "big"}},
        "variants": {
            "g6": {"properties": {"environment_variables": {"SERVER": "2", "FAMILY": "1"},
                                  "prepacked_artifact_key": "family/"}},
            "ml.g6.xlarge": {"properties": {"environment_variables": {"SERVER": "3"},
                                            "prepacked_artifact_key": "type/"},
                             "regional_properties": {"image_uri": "$b"}},
        },
    }  # fmt: skip
    fields: dict[str, Any] = {"inference_configs": {}, "hosting_instance_type_variants": variants}
    exact, family, none = (
        made("ml.g6.xlarge", **fields),
        made("ml.g6.2xlarge", **fields),
        made("ml.p5.48xlarge", **fields),
    )
    assert (exact.artifact_key, exact.image, exact.environment) == ("type/", "big", {"SERVER": "3", "FAMILY": "1"})
    assert (family.artifact_key, family.environment) == ("family/", {"SERVER": "2", "FAMILY": "1"})
    assert (none.artifact_key, none.environment) == ("acme/pack/", {"SERVER": "1"})


def test_the_first_ranked_configuration_is_laid_over_the_base_but_never_over_what_is_fixed() -> None:
    fields: dict[str, Any] = {
        "inference_configs": {"z": {"component_names": ["z"]}, "a": {"component_names": ["a"]}},
        "inference_config_rankings": {"overall": {"rankings": ["gone", "z"]}},
        "inference_config_components": {
            "z": {"gated_bucket": True, "model_id": "evil", "hosting_prepacked_artifact_key": "z/"},
            "a": {"hosting_prepacked_artifact_key": "a/"},
        },
    }
    assert (made(**fields).artifact_key, made(**fields).gated_bucket) == ("z/", False)
    del fields["inference_config_rankings"]
    assert made(**fields).artifact_key == "a/"


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, "acme/pack/"),
        ({"hosting_prepacked_artifact_key": None, "hosting_artifact_key": "plain.tar.gz"}, "plain.tar.gz"),
        ({"hosting_prepacked_artifact_key": "", "hosting_use_script_uri": False, "hosting_artifact_key": "a/"}, None),
        ({"hosting_prepacked_artifact_key": "s3://bucket/x/"}, None),
        ({"hosting_prepacked_artifact_key": "/x/"}, None),
        ({"hosting_prepacked_artifact_key": "x.zip"}, None),
        ({"hosting_prepacked_artifact_key": None, "hosting_model_package_arns": {REGION: "arn"}}, None),
    ],
)
def test_it_names_the_artifact_or_says_that_there_is_none(fields: dict[str, Any], key: str | None) -> None:
    if key is None:
        with pytest.raises(ValueError):
            made(**fields)
    else:
        assert made(**fields).artifact_key == key and made(**fields).is_packed is key.endswith(".gz")


def test_a_specification_of_another_model_is_not_taken() -> None:
    documents: list[Any] = [spec_of("other", "1", "a/"), [], None]
    for document in documents:
        with pytest.raises(ValueError):
            model_of(document, "acme", "1", region=REGION)


def test_models_with_packages_have_no_environment_and_old_ones_say_so() -> None:
    assert made(hosting_model_package_arns={"x": "y"}).environment == {}
    assert not made().deprecated and made(deprecated=True).deprecated and made(inference_vulnerable=True).deprecated


def test_it_does_not_follow_documents_without_end() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"hosting_instance_type_variants": deep}
    with pytest.raises(ValueError):
        made(inference_config_components={"c": deep}, **deep)


SPEC = ConnectionSpec("js", SourceType.JUMP_START, region=REGION, allowed=("acme", "m-1"))
ARTIFACT = f"s3://jumpstart-cache-prod-{REGION}/acme/pack/"


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("jumpstart://acme", ModelPlace("acme")),
        ("jumpstart://acme@latest", ModelPlace("acme", "*")),
        ("jumpstart://js/acme@Latest?instance_type=ml.g6.xlarge", ModelPlace("acme", "*", "ml.g6.xlarge")),
        ("jumpstart://js/m-1@1.2.*", ModelPlace("m-1", "1.2.*")),
        ("jumpstart://acme@1.2.0?instance_type=ml.g6.xlarge", ModelPlace("acme", "1.2.0", "ml.g6.xlarge")),
        (f"jumpstart://acme@1.2.0?artifact={ARTIFACT}&eula={'a' * 64}",
         ModelPlace("acme", "1.2.0", artifact=ARTIFACT, eula="a" * 64)),
    ],
)  # fmt: skip
def test_it_reads_addresses(uri: str, place: ModelPlace) -> None:
    assert split_jumpstart(uri, SPEC) == place == split_jumpstart(place.uri, SPEC)


@pytest.mark.parametrize(
    "uri",
    ["jumpstart://", "jumpstart://other", "jumpstart://acme/x", "jumpstart://acme@", "jumpstart://acme@newest",
     "jumpstart://acme?x=1", "jumpstart://acme?instance_type=g6", "jumpstart://acme?eula=yes", "s3://acme",
     "jumpstart://acme@1?artifact=s3://elsewhere/x/", "jumpstart://acme@1?artifact=file:///etc/",
     f"jumpstart://acme@1?artifact={ARTIFACT}../x/"],
)  # fmt: skip
def test_it_refuses_addresses(uri: str) -> None:
    with pytest.raises(Permanent) as caught:
        split_jumpstart(uri, SPEC)
    assert caught.value.reason == Reason.INVALID_REQUEST


def test_it_knows_what_may_stand_in_a_connection() -> None:
    for good in ("", "s3://bucket/models_manifest.json", "s3://bucket/a/b.json"):
        check_manifest(good)
    for bad in ("https://x/y", "s3://bucket", "s3://bucket/", "s3://B/x", "s3://bucket/x\n"):
        with pytest.raises(Permanent):
            check_manifest(bad)
    check_model("*")
    for model in ("", "a/b", "-a", "a" * 65):
        with pytest.raises(Permanent):
            check_model(model)
