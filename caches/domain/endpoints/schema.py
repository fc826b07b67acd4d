"""Which fields of the vendor's schema have an effect here, and why the others have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from caches.domain.endpoints.reading import Ignored

_AWS = "it configures a service of the vendor that does not exist here"
_ROUTING = "requests are routed by the Service, or by Hearth's router where it runs"
_MOUNTED = "a file system is read where it is mounted, through the source connection of its id"
_SIDECAR = "no sidecar stands before the model server; ask its own metrics"

# A field that is read, with everything below it.
USED_HERE = {
    "modelName", "modelVersion", "replicas", "instanceType", "instanceTypes", "nodeAffinity", "maxDeployTimeInSeconds",
    "modelSourceConfig.modelSourceType", "modelSourceConfig.modelLocation",
    "modelSourceConfig.s3Storage.bucketName", "modelSourceConfig.s3Storage.region",
    "modelSourceConfig.fsxStorage.fileSystemId",
    "modelSourceConfig.huggingFaceModel.modelId", "modelSourceConfig.huggingFaceModel.commitSHA",
    "modelSourceConfig.huggingFaceModel.tokenSecretRef.name", "modelSourceConfig.huggingFaceModel.tokenSecretRef.key",
    "modelSourceConfig.huggingFaceModel.tokenSecretRef.optional",
    "modelCacheConfig.weightsCache.enabled", "modelCacheConfig.weightsCache.hostPath",
    "modelCacheConfig.imageCache.enabled",
    "worker.image", "worker.command", "worker.args", "worker.workingDir", "worker.environmentVariables",
    "worker.modelInvocationPort.containerPort", "worker.modelInvocationPort.name",
    "worker.modelVolumeMount.name", "worker.modelVolumeMount.mountPath", "worker.resources",
    "worker.probes.livenessProbe", "worker.probes.readinessProbe", "worker.probes.startupProbe",
    "kubernetes.initContainers", "kubernetes.volumes", "kubernetes.schedulerName", "kubernetes.serviceAccountName",
    "kubernetes.podTemplateAnnotations", "kubernetes.tolerations",
    "loadBalancer.healthCheckPath",
    "model.modelId", "model.modelVersion", "model.modelHubName", "model.acceptEula",
    "server.instanceType", "environmentVariables",
}  # fmt: skip

WITHOUT_EFFECT = {
    "InitialReplicaCount": "it is deprecated and has no effect; use replicas",
    "endpointName": _AWS,
    "tags": _AWS,
    "invocationEndpoint": "the Service passes every path on to the model server",
    "modelSourceConfig.fsxStorage.dnsName": _MOUNTED,
    "modelSourceConfig.fsxStorage.mountName": _MOUNTED,
    "modelSourceConfig.prefetchEnabled": "weights are read from the node's own store; no copy is made in memory",
    "kvCacheSpec": "the model server's own arguments configure its KV cache",
    "intelligentRoutingSpec": _ROUTING,
    "inferenceGateway": _ROUTING,
    "autoScalingSpec": "scale by an autoscaler of yours over the scale subresource",
    "pdSpec": "prefill and decoding are served by the same pods",
    "worker.requestLimits": _SIDECAR,
    "metrics": _SIDECAR,
    "metricsSidecarResources": _SIDECAR,
    "metricsCollectorResources": _SIDECAR,
    "s3UploaderResources": _SIDECAR,
    "dataCapture": "requests and answers are never stored",
    "loadBalancer.routingAlgorithm": _ROUTING,
    "loadBalancer.idleTimeoutSeconds": _ROUTING,
    "tlsConfig": "certificates belong to whatever stands before the Service",
    "dnsConfig": "names belong to whatever stands before the Service",
    "model.gatedModelDownloadRole": _AWS,
    "model.additionalConfigs": _AWS,
    "server.executionRole": _AWS,
    "server.acceleratorPartitionType": "ask for a partition of an accelerator as a resource",
    "server.validations": _AWS,
    "sageMakerEndpoint": _AWS,
}

_BRANCHES = {
    ".".join(path.split(".")[:length])
    for path in (*USED_HERE, *WITHOUT_EFFECT)
    for length in range(1, path.count(".") + 1)
}
MOST_NAMED = 50  # fields without effect that a reading names


def ignored_fields(spec: Mapping[str, Any]) -> tuple[Ignored, ...]:
    """The fields of a ``spec`` that are there and have no effect, in the order of their paths."""
    found = sorted([*_walk("", spec), *_of_other_sources(spec)], key=lambda item: item.path)
    if len(found) > MOST_NAMED:
        rest = len(found) - MOST_NAMED
        found = [*found[:MOST_NAMED], Ignored("…", f"{rest} more fields have no effect")]
    return tuple(found)


def _of_other_sources(spec: Mapping[str, Any]) -> Iterator[Ignored]:
    """What says nothing about a source of this type."""
    source = spec.get("modelSourceConfig")
    kind = source.get("modelSourceType") if isinstance(source, Mapping) else ""
    if isinstance(source, Mapping) and kind == "huggingface" and source.get("modelLocation"):
        yield Ignored("modelSourceConfig.modelLocation", "a repository of the hub is read whole")
    cache = spec.get("modelCacheConfig")
    weights = cache.get("weightsCache") if isinstance(cache, Mapping) else None
    if kind == "kubernetesVolume" and isinstance(weights, Mapping) and weights.get("enabled") is True:
        yield Ignored("modelCacheConfig.weightsCache", "what a volume of the pod holds is not cached on nodes")


def _walk(prefix: str, values: Mapping[str, Any]) -> Iterator[Ignored]:
    for name, value in values.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if value is None or path in USED_HERE:
            continue
        if path in WITHOUT_EFFECT:
            yield Ignored(path, WITHOUT_EFFECT[path])
        elif path in _BRANCHES:
            if isinstance(value, Mapping):
                yield from _walk(path, value)
        else:
            yield Ignored(path[:200], "the schema has no such field; it is kept")
