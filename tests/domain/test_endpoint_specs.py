"""The vendor's documents: what is understood, what is ignored with a reason, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.endpoints.options import GatePolicy
from caches.domain.endpoints.specs import EndpointKind, EndpointSource, read_endpoint
from caches.domain.gating import GateType
from tests.domain.endpoints import GONE, config, jumpstart, refused, spec_of


def test_it_understands_the_printed_config() -> None:
    spec = spec_of(config())
    assert (spec.kind, spec.namespace, spec.name) == (EndpointKind.CONFIG, "default", "chat-small")
    assert spec.source.text == "s3://models/llms/chat-small"
    assert (spec.cache.weights, spec.cache.image, spec.cache.host_path) == (True, True, None)
    assert spec.node_selector == {"node.kubernetes.io/instance-type": "ml.g5.24xlarge"}
    assert (spec.image, spec.replicas, spec.pod.port) == ("vllm/vllm-openai:latest", 1, 8000)
    assert spec.pod.resources == {"limits": {"nvidia.com/gpu": "4"}}
    assert (spec.options.gate, spec.options.hold_seconds) == (GatePolicy(GateType.ALL, 100), 3600)
    assert read_endpoint(config()).ignored == ()


def test_it_understands_the_printed_jumpstart_model() -> None:
    spec = spec_of(jumpstart())
    assert (spec.kind, spec.source.type) == (EndpointKind.JUMPSTART, EndpointSource.JUMPSTART)
    assert spec.source.text == "jumpstart:meta-textgeneration-llama-3-1-8b-instruct@latest"
    assert (spec.image, spec.accept_eula) == ("", True)
    assert spec.node_selector == {"node.kubernetes.io/instance-type": "ml.g5.24xlarge"}
    assert read_endpoint(jumpstart()).ignored == ()


def test_it_reads_the_older_version_alike() -> None:
    older = config(apiVersion="inference.sagemaker.aws.amazon.com/v1alpha1")
    assert spec_of(older) == spec_of(config())


SOURCE = "spec__modelSourceConfig"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"modelSourceType": "s3", "s3Storage": {"bucketName": "abc", "region": "r"}}, "s3://abc"),
        (
            {"modelSourceType": "s3", "modelLocation": "/a/b/", "s3Storage": {"bucketName": "abc", "region": "r"}},
            "s3://abc/a/b",
        ),
        (
            {
                "modelSourceType": "fsx",
                "modelLocation": "llama",
                "fsxStorage": {"fileSystemId": "fs-01", "dnsName": "d"},
            },
            "fsx://fs-01/llama",
        ),
        ({"modelSourceType": "huggingface", "huggingFaceModel": {"modelId": "org/name"}}, "hub:org/name@main"),
        (
            {"modelSourceType": "huggingface", "huggingFaceModel": {"modelId": "org/name", "commitSHA": "a" * 40}},
            f"hub:org/name@{'a' * 40}",
        ),
    ],
)
def test_it_names_the_place_of_the_weights(source: dict[str, Any], text: str) -> None:
    assert spec_of(config(**{SOURCE: source})).source.text == text


def test_it_keeps_the_name_of_a_token_and_nothing_of_its_value() -> None:
    hub = {"modelId": "org/name", "tokenSecretRef": {"name": "hf", "key": "token"}}
    spec = spec_of(config(**{SOURCE: {"modelSourceType": "huggingface", "huggingFaceModel": hub}}))
    assert spec.source.token_secret == ("hf", "token")


def test_a_volume_of_the_pod_is_no_cache_and_must_be_there() -> None:
    given = {SOURCE: {"modelSourceType": "kubernetesVolume"}}
    assert refused(config(**given)) == {"spec.worker.modelVolumeMount.name": "volume-missing"}
    volumes = [{"name": "model-weights", "persistentVolumeClaim": {"claimName": "models"}}]
    spec = spec_of(config(**given, spec__kubernetes={"volumes": volumes}))
    assert not spec.source.is_cacheable
    located = {SOURCE: {"modelSourceType": "kubernetesVolume", "modelLocation": "x"}}
    document = config(**located, spec__kubernetes={"volumes": volumes})
    assert refused(document) == {"spec.modelSourceConfig.modelLocation": "source-type"}


W = "spec__worker__"
CASES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"kind": "Pod"}, {"kind": "kind"}),
    ({"apiVersion": "v1"}, {"apiVersion": "kind"}),
    ({"apiVersion": "inference.sagemaker.aws.amazon.com/v2"}, {"apiVersion": "kind"}),
    ({"metadata": GONE}, {"metadata": "field-missing", "metadata.name": "field-missing"}),
    ({"metadata__name": "1abc"}, {"metadata.name": "field-format"}),
    ({"metadata__name": "a" * 64}, {"metadata.name": "field-format"}),
    ({"metadata__name": "a/../b"}, {"metadata.name": "field-format"}),
    ({"metadata__name": "a\n"}, {"metadata.name": "field-characters"}),
    ({"metadata__namespace": "../kube-system"}, {"metadata.namespace": "field-format"}),
    ({"spec__modelName": "bad name"}, {"spec.modelName": "field-format"}),
    ({"spec__modelName": GONE}, {"spec.modelName": "field-missing"}),
    ({"spec__modelName": 7}, {"spec.modelName": "field-type"}),
    ({"spec__replicas": -1}, {"spec.replicas": "field-range"}),
    ({"spec__replicas": True}, {"spec.replicas": "field-type"}),
    ({"spec__replicas": "2"}, {"spec.replicas": "field-type"}),
    ({"spec__replicas": 10**30}, {"spec.replicas": "field-range"}),
    ({"spec__instanceType": "g5.xlarge"}, {"spec.instanceType": "field-format"}),
    ({"spec__instanceTypes": ["ml.g5.xlarge"]}, {"spec.instanceTypes": "placement"}),
    ({"spec__instanceType": GONE, "spec__instanceTypes": ["x"]}, {"spec.instanceTypes": "field-format"}),
    ({f"{SOURCE}__modelSourceType": "jumpstart"}, {"spec.modelSourceConfig.modelSourceType": "source-type"}),
    ({f"{SOURCE}__modelSourceType": "ftp"}, {"spec.modelSourceConfig.modelSourceType": "source-type"}),
    ({f"{SOURCE}__modelLocation": "a/../../etc"}, {"spec.modelSourceConfig.modelLocation": "path-not-allowed"}),
    ({f"{SOURCE}__modelLocation": "a//b"}, {"spec.modelSourceConfig.modelLocation": "path-not-allowed"}),
    ({f"{SOURCE}__modelLocation": "a\x00b"}, {"spec.modelSourceConfig.modelLocation": "field-characters"}),
    ({f"{SOURCE}__modelLocation": "a" * 1025}, {"spec.modelSourceConfig.modelLocation": "field-too-long"}),
    ({f"{SOURCE}__s3Storage": GONE}, {
        "spec.modelSourceConfig.s3Storage": "field-missing",
        "spec.modelSourceConfig.s3Storage.bucketName": "field-missing",
        "spec.modelSourceConfig.s3Storage.region": "field-missing",
    }),
    ({f"{SOURCE}__s3Storage__bucketName": "a/b"}, {"spec.modelSourceConfig.s3Storage.bucketName": "field-format"}),
    ({"spec__modelCacheConfig__imageCache": {}}, {}),
    ({"spec__modelCacheConfig__weightsCache__enabled": "yes"},
     {"spec.modelCacheConfig.weightsCache.enabled": "field-type"}),
    ({f"{W}image": "a b"}, {"spec.worker.image": "field-format"}),
    ({f"{W}image": "reg/../x"}, {"spec.worker.image": "field-format"}),
    ({f"{W}image": "reg/x@sha256:12"}, {"spec.worker.image": "field-format"}),
    ({f"{W}modelInvocationPort__containerPort": 0}, {"spec.worker.modelInvocationPort.containerPort": "field-range"}),
    ({f"{W}modelInvocationPort__name": "http2"}, {"spec.worker.modelInvocationPort.name": "field-format"}),
    ({f"{W}modelVolumeMount__mountPath": "/a/../etc"}, {"spec.worker.modelVolumeMount.mountPath": "path-not-allowed"}),
    ({f"{W}modelVolumeMount__mountPath": "/dev/x"}, {"spec.worker.modelVolumeMount.mountPath": "path-not-allowed"}),
    ({f"{W}modelVolumeMount__mountPath": "/hearth"}, {"spec.worker.modelVolumeMount.mountPath": "path-not-allowed"}),
    ({f"{W}modelVolumeMount__name": "shm"}, {"spec.worker.modelVolumeMount.name": "volume-reserved"}),
    ({f"{W}modelVolumeMount__name": "A_b"}, {"spec.worker.modelVolumeMount.name": "field-format"}),
    ({f"{W}command": "sh"}, {"spec.worker.command": "field-type"}),
    ({f"{W}args": ["a", 1]}, {"spec.worker.args": "field-type"}),
    ({f"{W}resources": GONE}, {"spec.worker.resources": "field-missing"}),
    ({f"{W}probes": {"livenessProbe": {"httpGet": {"host": "10.0.0.1"}}}},
     {"spec.worker.probes.livenessProbe.httpGet.host": "probe-host"}),
    ({"spec__kubernetes": {"serviceAccountName": "admin"}}, {"spec.kubernetes.serviceAccountName": "service-account"}),
    ({"spec__kubernetes": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
     {"spec.kubernetes.volumes[0].hostPath": "host-path"}),
    ({"spec__kubernetes": {"volumes": [{"name": "hearth-store", "emptyDir": {}}]}},
     {"spec.kubernetes.volumes[0].name": "volume-reserved"}),
    ({"spec__kubernetes": {"volumes": [{"name": "model-weights", "emptyDir": {}}]}},
     {"spec.worker.modelVolumeMount.name": "volume-reserved"}),
    ({"spec__kubernetes": {"initContainers": [{"name": "ensure"}]}},
     {"spec.kubernetes.initContainers[0].name": "container-reserved"}),
    ({"spec__kubernetes": {"initContainers": [{"name": "x", "securityContext": {"privileged": True}}]}},
     {"spec.kubernetes.initContainers[0].securityContext.privileged": "power"}),
    ({"spec__kubernetes": {"initContainers": [{"name": "x", "securityContext": {"capabilities": {"add": ["ALL"]}}}]}},
     {"spec.kubernetes.initContainers[0].securityContext.capabilities": "power"}),
    ({"spec__kubernetes": {"initContainers": [{"name": "x", "volumeMounts": [{"name": "hearth-store"}]}]}},
     {"spec.kubernetes.initContainers[0].volumeMounts[0].name": "volume-reserved"}),
    ({"spec__kubernetes": {"podTemplateAnnotations": {"cache.hearth.dev/weights": "*"}}},
     {"spec.kubernetes.podTemplateAnnotations.cache.hearth.dev/weights": "annotation-reserved"}),
    ({f"{W}environmentVariables": [
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "namespace": "kube-system"}}}]},
     {"spec.worker.environmentVariables[0].valueFrom.secretKeyRef.namespace": "other-namespace"}),
    ({"spec__kubernetes": {"initContainers": [
        {"name": "x", "envFrom": [{"secretRef": {"name": "s", "namespace": "other"}}]}]}},
     {"spec.kubernetes.initContainers[0].envFrom[0].secretRef.namespace": "other-namespace"}),
    ({"spec__kubernetes": {"volumes": [{"name": "x", "azureFile": {"secretNamespace": "other"}}]}},
     {"spec.kubernetes.volumes[0].azureFile.secretNamespace": "other-namespace"}),
    ({f"{SOURCE}": {"modelSourceType": "huggingface", "huggingFaceModel": {
        "modelId": "org/name", "tokenSecretRef": {"name": "hf", "key": "token", "namespace": "other"}}}},
     {"spec.modelSourceConfig.huggingFaceModel.tokenSecretRef.namespace": "other-namespace"}),
    ({f"{SOURCE}": {"modelSourceType": "huggingface", "huggingFaceModel": {
        "modelId": "org/name", "tokenSecretRef": {"name": "other/hf", "key": "../token"}}}},
     {"spec.modelSourceConfig.huggingFaceModel.tokenSecretRef.name": "field-format",
      "spec.modelSourceConfig.huggingFaceModel.tokenSecretRef.key": "field-format"}),
    ({f"{SOURCE}": {"modelSourceType": "huggingface", "huggingFaceModel": {
        "modelId": "org/name", "tokenSecretRef": {"name": "", "optional": "yes"}}}},
     {"spec.modelSourceConfig.huggingFaceModel.tokenSecretRef.name": "field-missing",
      "spec.modelSourceConfig.huggingFaceModel.tokenSecretRef.key": "field-missing",
      "spec.modelSourceConfig.huggingFaceModel.tokenSecretRef.optional": "field-type"}),
    ({"spec": []}, {"spec": "field-type"}),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "wanted"), CASES)
def test_it_refuses_with_the_path_and_a_reason(changes: dict[str, Any], wanted: dict[str, str]) -> None:
    found = refused(config(**changes))
    if wanted:
        assert wanted.items() <= found.items()
    else:
        assert found == {"spec.modelCacheConfig.imageCache.enabled": "field-missing"}


@pytest.mark.parametrize("part", ["metadata", "spec", "spec.worker"])
def test_what_is_no_object_is_told_without_all_that_it_lacks(part: str) -> None:
    assert refused(config(**{part.replace(".", "__"): [1]})) == {part: "field-type"}


@pytest.mark.parametrize("path", ["relative", "/", "//x", "/a/..", "/a/./b", "/a b", "/a\n", "/" + "a" * 255, "", 5])
def test_a_host_path_is_a_plain_absolute_folder(path: Any) -> None:
    found = refused(config(spec__modelCacheConfig__weightsCache={"enabled": True, "hostPath": path}))
    assert path == "" or "spec.modelCacheConfig.weightsCache.hostPath" in found


def test_a_host_path_may_be_any_folder() -> None:
    spec = spec_of(config(spec__modelCacheConfig__weightsCache={"enabled": True, "hostPath": "/mnt/k8s-disks/0/"}))
    assert spec.cache.host_path == "/mnt/k8s-disks/0"


def test_a_megabyte_of_environment_is_refused_with_its_size() -> None:
    one = [{"name": "BIG", "value": "x" * 1_000_000}]
    assert refused(config(spec__worker__environmentVariables=one)) == {
        "spec.worker.environmentVariables[0].value": "environment-too-large",
        "spec.worker.environmentVariables": "environment-too-large",
    }
    many = [{"name": f"V{number}", "value": "x" * 1000} for number in range(600)]
    assert refused(config(spec__worker__environmentVariables=many)) == {
        "spec.worker.environmentVariables": "environment-too-large"
    }
    assert len(spec_of(config(spec__worker__environmentVariables=many[:400])).pod.environment) == 400


def test_an_environment_counts_bytes_and_not_characters() -> None:
    wide = [{"name": "BIG", "value": "é" * 70_000}]
    assert "spec.worker.environmentVariables[0].value" in refused(config(spec__worker__environmentVariables=wide))


def test_a_document_that_is_too_large_or_too_deep_is_not_looked_at() -> None:
    assert refused(config(spec__notes="x" * 1024 * 1024)) == {"": "too-large"}
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert refused(config(spec__deep=deep)) == {"": "too-deep"}
    assert refused(config(spec__replicas=float("nan"))) == {"": "not-json"}
    assert refused(config(metadata__annotations={1: "x"})) == {"": "not-json"}
    nothings: tuple[object, ...] = (None, [], "text", 3)
    for nothing in nothings:
        assert refused(nothing) == {"": "field-type"}


def test_a_variable_twice_is_refused() -> None:
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    found = refused(config(spec__worker__environmentVariables=twice))
    assert found == {"spec.worker.environmentVariables[1].name": "environment-twice"}


IGNORED: list[tuple[str, Any]] = [
    ("InitialReplicaCount", 3), ("endpointName", "e"), ("tags", [{"name": "a", "value": "b"}]),
    ("invocationEndpoint", "invocations"), ("kvCacheSpec", {"enableL1Cache": True}),
    ("intelligentRoutingSpec", {"enabled": True}), ("inferenceGateway", {"enabled": True}),
    ("autoScalingSpec", {"minReplicaCount": 1}), ("pdSpec", {}), ("metrics", {"enabled": True}),
    ("dataCapture", {}), ("tlsConfig", {}), ("dnsConfig", {}), ("metricsSidecarResources", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), IGNORED)
def test_it_accepts_what_has_no_meaning_here_and_says_why(name: str, value: Any) -> None:
    reading = read_endpoint(config(**{f"spec__{name}": value}))
    assert reading.spec == spec_of(config())
    [ignored] = reading.ignored
    assert ignored.path == name and len(ignored.why) > 20


def test_it_names_fields_without_effect_below_used_ones() -> None:
    reading = read_endpoint(
        config(
            spec__modelSourceConfig__prefetchEnabled=True,
            spec__worker__requestLimits={"maxConcurrentRequests": 1},
            spec__loadBalancer={"healthCheckPath": "/health", "routingAlgorithm": "round_robin"},
            spec__modelCacheConfig__weightsCache={"enabled": True, "nodeAffinity": {}},
            metadata__annotations={"hearth.dev/gaet": "All", "other/x": "y"},
        )
    )
    assert [item.path for item in reading.ignored] == [
        "metadata.annotations.hearth.dev/gaet",
        "loadBalancer.routingAlgorithm",
        "modelCacheConfig.weightsCache.nodeAffinity",
        "modelSourceConfig.prefetchEnabled",
        "worker.requestLimits",
    ]
    assert reading.spec is not None and reading.spec.pod.health_path == "/health"


def test_it_names_no_more_unknown_fields_than_a_condition_can_hold() -> None:
    reading = read_endpoint(config(**{f"spec__unknown{number}": 1 for number in range(300)}))
    assert len(reading.ignored) == 51 and reading.ignored[-1].why == "250 more fields have no effect"


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("All", GatePolicy()),
        ("Count:3", GatePolicy(GateType.COUNT, 3)),
        ("Percent:50", GatePolicy(GateType.PERCENT, 50)),
        ("Timeout:600", GatePolicy(GateType.TIMEOUT, 600)),
    ],
)
def test_it_reads_the_gate_of_an_annotation(text: str, policy: GatePolicy) -> None:
    assert spec_of(config(metadata__annotations={"hearth.dev/gate": text})).options.gate == policy


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gate", "Any"), ("gate", "Count"), ("gate", "Count:0"), ("gate", "Percent:101"), ("gate", "All:1"),
        ("gate", "Timeout:604801"), ("gate", "Count:\u0661"), ("gate", 5),
        ("hold-seconds", "-1"), ("hold-seconds", "1h"),
        ("hold-seconds", "2592001"), ("connection", "../x"), ("source-secret", "other/secret"),
    ],
)  # fmt: skip
def test_it_refuses_annotations_that_make_no_sense(name: str, text: Any) -> None:
    assert f"metadata.annotations.hearth.dev/{name}" in refused(
        config(metadata__annotations={f"hearth.dev/{name}": text})
    )


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"spec__model__acceptEula": GONE}, "spec.model.acceptEula"),
        ({"spec__model__modelId": "a/b"}, "spec.model.modelId"),
        ({"spec__model__modelVersion": "latest"}, "spec.model.modelVersion"),
        ({"spec__model__modelHubName": "OurOwnHub"}, "spec.model.modelHubName"),
        ({"spec__server": GONE}, "spec.server"),
        ({"spec__server__instanceType": "p5"}, "spec.server.instanceType"),
        ({"spec__environmentVariables": [{"value": "x"}]}, "spec.environmentVariables[0].name"),
    ],
)
def test_it_refuses_jumpstart_models_that_name_nothing(changes: dict[str, Any], path: str) -> None:
    assert path in refused(jumpstart(**changes))


def test_another_place_or_image_is_another_version_and_nothing_else_is() -> None:
    base = spec_of(config()).served
    assert spec_of(config(spec__replicas=5, spec__worker__args=["--x"])).served == base
    assert spec_of(config(spec__worker__image="vllm/vllm-openai:v2")).served != base
    assert spec_of(config(spec__modelSourceConfig__modelLocation="llms/other")).served != base
    tokens = [
        {"modelSourceType": "huggingface", "huggingFaceModel": {"modelId": "org/name", **named}}
        for named in ({}, *({"tokenSecretRef": {"name": name, "key": "token"}} for name in ("mine", "other")))
    ]
    assert len({spec_of(config(**{SOURCE: source})).served for source in tokens}) == 3, "another token opens it anew"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "spec", "metadata", "spec__worker", "spec__modelSourceConfig", "spec__modelCacheConfig", "spec__kubernetes",
        "spec__worker__probes", "spec__worker__modelVolumeMount", "metadata__annotations", "spec__worker__resources",
        "spec__modelSourceConfig__s3Storage", "spec__worker__environmentVariables", "spec__instanceTypes",
        "spec__nodeAffinity", "spec__loadBalancer",
    ]
)  # fmt: skip


@given(field=FIELDS, value=JSON, whole=JSON)
def test_it_never_raises_whatever_stands_there(field: str, value: Any, whole: Any) -> None:
    for document in (config(**{field: value}), whole):
        reading = read_endpoint(document)
        assert (reading.spec is None) == bool(reading.refusals)
        assert all(error.detail for error in reading.refusals)
