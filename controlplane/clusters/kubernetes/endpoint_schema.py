"""The resource definitions of endpoints and of the mirrors of their caches: our transcription of the vendor's schema.

``python -m controlplane.clusters.kubernetes.endpoint_schema deploy/endpoints/crds`` writes them; a test compares.
Fields that the transcription does not know are kept. No default but that of replicas, which the scale subresource
needs: what a document leaves out, Hearth decides with the cluster's pools in sight.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from controlplane.clusters.kubernetes import names

Json = dict[str, Any]
OPEN = {"x-kubernetes-preserve-unknown-fields": True}
ANY: Json = {"type": "object", **OPEN}
BOOL: Json = {"type": "boolean"}
TEXT: Json = {"type": "string"}
TEXTS: Json = {"type": "array", "items": TEXT}
OBJECTS: Json = {"type": "array", "items": ANY}
INSTANCE: Json = {"type": "string", "pattern": r"^ml\..*"}
NUMBER: Json = {"type": "integer", "format": "int32"}
STATES = [
    f"{what}{how}" for what in ("Deployment", "Deletion") for how in ("Pending", "InProgress", "Failed", "Complete")
]
CACHE_STATES = ["Pending", "Downloading", "Ready", "Failed", "PartiallyReady", "Deleting"]


def text(longest: int, shortest: int = 0, pattern: str = "") -> Json:
    made: Json = {"type": "string", "maxLength": longest}
    if shortest:
        made["minLength"] = shortest
    if pattern:
        made["pattern"] = pattern
    return made


def number(lowest: int, highest: int | None = None, **more: Any) -> Json:
    made = {**NUMBER, "minimum": lowest, **more}
    return made if highest is None else {**made, "maximum": highest}


def one_of(values: Sequence[str]) -> Json:
    return {"type": "string", "enum": list(values)}


def obj(properties: Mapping[str, Any], required: Sequence[str] = ()) -> Json:
    made: Json = {"type": "object", "properties": dict(properties), **OPEN}
    return {**made, "required": list(required)} if required else made


MODEL_NAME = text(63, 1, "^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")
SECRET_KEY = obj({"name": TEXT, "key": TEXT, "optional": BOOL}, ["key"])
MODEL_SOURCE = obj(
    {
        "modelSourceType": one_of(["fsx", "s3", "huggingface", "kubernetesVolume"]),
        "modelLocation": TEXT,
        "prefetchEnabled": BOOL,
        "s3Storage": obj({"bucketName": TEXT, "region": TEXT}, ["bucketName", "region"]),
        "fsxStorage": obj({"fileSystemId": TEXT, "dnsName": TEXT, "mountName": TEXT}, ["fileSystemId"]),
        "huggingFaceModel": obj(
            {
                "modelId": text(255, 1, "^[a-zA-Z0-9_.-]+/[a-zA-Z0-9_.-]+$"),
                "commitSHA": text(40, 40, "^[0-9a-f]{40}$"),
                "tokenSecretRef": SECRET_KEY,
            },
            ["modelId"],
        ),
    },
    ["modelSourceType"],
)
JUMPSTART_MODEL = obj(
    {
        "modelId": text(63, 1),
        "modelVersion": text(14, 5),
        "modelHubName": TEXT,
        "acceptEula": BOOL,
        "gatedModelDownloadRole": TEXT,
        "additionalConfigs": {"type": "array", "maxItems": 10, "items": ANY},
    },
    ["modelId", "acceptEula"],
)
CACHE = obj(
    {
        "weightsCache": obj({"enabled": BOOL, "hostPath": text(255, 1)}),
        "imageCache": obj({"enabled": BOOL}, ["enabled"]),
    }
)
_WITHOUT_EFFECT = (
    "kvCacheSpec", "intelligentRoutingSpec", "autoScalingSpec", "metrics", "tlsConfig", "dnsConfig", "dataCapture",
    "inferenceGateway",
)  # fmt: skip
SHARED: Json = {
    "replicas": {**number(0), "default": 1},
    "maxDeployTimeInSeconds": number(1),
    "modelCacheConfig": CACHE,
    **dict.fromkeys(_WITHOUT_EFFECT, ANY),
    "loadBalancer": obj(
        {
            "healthCheckPath": {"type": "string", "pattern": "^/.*"},
            "routingAlgorithm": one_of(["least_outstanding_requests", "round_robin"]),
            "idleTimeoutSeconds": number(1, 4000),
        }
    ),
}  # fmt: skip
WORKER = obj(
    {
        "image": text(512, 1),
        "command": TEXTS,
        "args": TEXTS,
        "workingDir": TEXT,
        "environmentVariables": OBJECTS,
        "modelInvocationPort": obj(
            {"containerPort": number(1, 65535), "name": {"type": "string", "pattern": "^http$|^grpc$"}},
            ["containerPort"],
        ),
        "modelVolumeMount": obj({"name": TEXT, "mountPath": TEXT}, ["name"]),
        "resources": ANY,
        "probes": obj({"livenessProbe": ANY, "readinessProbe": ANY, "startupProbe": ANY}),
        "requestLimits": obj(
            {
                "maxConcurrentRequests": number(1),
                "maxQueueSize": number(0),
                "overflowStatusCode": number(400, 599),
            }
        ),
    },
    ["image", "modelInvocationPort", "modelVolumeMount", "resources"],
)
CONFIG_SPEC = obj(
    {
        "modelName": MODEL_NAME,
        "modelVersion": TEXT,
        "endpointName": text(63),
        "InitialReplicaCount": NUMBER,
        "instanceType": INSTANCE,
        "instanceTypes": {"type": "array", "items": INSTANCE},
        "nodeAffinity": ANY,
        "invocationEndpoint": TEXT,
        "tags": OBJECTS,
        "modelSourceConfig": MODEL_SOURCE,
        "pdSpec": ANY,
        "worker": WORKER,
        "kubernetes": obj(
            {"initContainers": OBJECTS, "volumes": OBJECTS, "schedulerName": TEXT, "serviceAccountName": text(253)}
        ),
        **SHARED,
    },
    ["modelName", "modelSourceConfig", "worker"],
)
JUMPSTART_SPEC = obj(
    {
        "model": JUMPSTART_MODEL,
        "server": obj({"instanceType": INSTANCE, "executionRole": TEXT, "acceleratorPartitionType": TEXT},
                      ["instanceType"]),
        "sageMakerEndpoint": ANY,
        "environmentVariables": {"type": "array", "maxItems": 100, "items": ANY},
        **SHARED,
    },
    ["model", "server"],
)  # fmt: skip
CONDITIONS: Json = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": obj(
        {
            "type": TEXT,
            "status": one_of(["True", "False", "Unknown"]),
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": TEXT,
            "message": text(32768),
        },
        ["type", "status", "lastTransitionTime", "reason", "message"],
    ),
}
COUNTS: Json = {"readyNodes": NUMBER, "targetNodes": NUMBER, "message": TEXT}
ENDPOINT_STATUS = obj(
    {
        "state": one_of(STATES),
        "observedGeneration": {"type": "integer", "format": "int64"},
        "replicas": NUMBER,
        "selector": TEXT,
        "conditions": CONDITIONS,
        "deploymentStatus": ANY,
        "endpoints": ANY,
        "imageCacheStatus": obj({"state": TEXT, **COUNTS}),
    }
)
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
WEIGHTS_SPEC = obj(
    {
        "enabled": BOOL,
        "hostPath": text(255, 1),
        "modelSourceConfig": MODEL_SOURCE,
        "jumpStartModel": JUMPSTART_MODEL,
        "nodeSelector": {"type": "object", "additionalProperties": TEXT},
        "nodeAffinity": ANY,
    }
)
IMAGE_SPEC = obj(
    {
        "image": TEXT,
        "nodeSelector": {"type": "object", "additionalProperties": TEXT},
        "nodeAffinity": ANY,
        "parentReferences": OBJECTS,
    },
    ["image"],
)
WEIGHTS_STATUS = obj({"state": TEXT, **COUNTS, "conditions": CONDITIONS})
IMAGE_STATUS = obj(
    {
        "state": one_of(CACHE_STATES),
        "phase": TEXT,
        "resolvedDigest": TEXT,
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        **COUNTS,
    }
)
AGE = ("Age", "date", ".metadata.creationTimestamp")
READY, TARGET = ("integer", ".status.readyNodes"), ("integer", ".status.targetNodes")
WEIGHTS_COLUMNS = (("State", "string", ".status.state"), ("Target", *TARGET), ("Ready", *READY), AGE)
IMAGE_COLUMNS = (("Phase", "string", ".status.phase"), ("Cached", *READY), ("Target", *TARGET), AGE)


def definition(
    kind: str,
    plural: str,
    spec: Json,
    status: Json,
    *,
    versions: Sequence[str] = ("v1",),
    columns: Sequence[tuple[str, str, str]] = (),
    short: str = "",
    scale: bool = False,
) -> Json:
    """One definition; the first version is the stored one, and all have the same shape."""
    spoken: Json = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    spoken["categories"] = [names.OWN_CATEGORY]  # how a client tells these definitions from the vendor's
    if short:
        spoken["shortNames"] = [short]
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": TEXT,
            "kind": TEXT,
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    subresources: Json = {"status": {}, **({"scale": SCALE} if scale else {})}
    served = []
    for version in versions:
        one: Json = {"name": version, "served": True, "storage": version == versions[0]}
        one |= {"schema": {"openAPIV3Schema": schema}, "subresources": subresources}
        if columns:
            one["additionalPrinterColumns"] = [
                {"name": name, "type": type_, "jsonPath": path} for name, type_, path in columns
            ]
        served.append(one)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.ENDPOINT_GROUP}", "labels": dict(names.MANAGED_BY)},
        "spec": {"group": names.ENDPOINT_GROUP, "scope": "Namespaced", "names": spoken, "versions": served},
    }


def definitions() -> dict[str, Json]:
    """File name to definition."""
    both = ("v1", "v1alpha1")
    endpoint: Json = {"versions": both, "scale": True}
    weights: Json = {"columns": WEIGHTS_COLUMNS}
    image: Json = {"columns": IMAGE_COLUMNS}
    made = [
        definition("InferenceEndpointConfig", names.CONFIGS, CONFIG_SPEC, ENDPOINT_STATUS, **endpoint),
        definition("JumpStartModel", names.JUMPSTART_MODELS, JUMPSTART_SPEC, ENDPOINT_STATUS, **endpoint),
        definition("ModelWeightsCacheConfig", "modelweightscacheconfigs", WEIGHTS_SPEC, WEIGHTS_STATUS, **weights),
        definition("ModelDataCacheConfig", "modeldatacacheconfigs", WEIGHTS_SPEC, WEIGHTS_STATUS, **weights),
        definition("ModelImageCache", "modelimagecaches", IMAGE_SPEC, IMAGE_STATUS, short="mic", **image),
        definition("InferenceImageCache", "inferenceimagecaches", IMAGE_SPEC, IMAGE_STATUS, **image),
    ]
    return {f"{item['spec']['names']['plural']}.yaml": item for item in made}


class _Plain(yaml.SafeDumper):
    """Without anchors: what is used twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(document: Json) -> str:
    """As it lies in deploy/."""
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=120, default_flow_style=False)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, document in definitions().items():
        (folder / name).write_text(dump(document))
