"""The names that Hearth and a Kubernetes cluster agree on, and the paths below which objects live."""

from __future__ import annotations

import re

from controlplane.clusters.endpoints import FINALIZER as FINALIZER
from controlplane.clusters.endpoints import IMAGE_CACHES_NAMESPACE as IMAGE_CACHES_NAMESPACE

GROUP = "cache.hearth.dev"
API_VERSION = f"{GROUP}/v1alpha1"
NODE_CACHE_KIND = "NodeCache"
MANIFEST_KIND = "ArtifactManifest"
ROOTS_KIND = "CacheRoots"
ROOTS_NAME = "hearth"  # of the one CacheRoots that admission reads

MANAGER = "hearth"  # field manager of specs, labels and taints
CACHE_MANAGER = "hearth-cache"  # field manager of the caches of endpoints that others reconcile
AGENT_MANAGER = "hearth-agent"  # field manager of statuses

SYSTEM_NAMESPACE = "hearth-system"  # Hearth itself, with secrets that no agent may read
NODES_NAMESPACE = "hearth-nodes"  # agents, and the credentials of source connections
IMAGES_NAMESPACE = "hearth-images"  # holders of images, which may do nothing but be there
EVENTS_NAMESPACE = "default"  # where the API server wants events about objects without a namespace

WEIGHTS_ANNOTATION = "cache.hearth.dev/weights"  # digests that a pod uses, separated by commas
ENDPOINT_LABEL = "hearth.dev/endpoint"  # on the pods of an endpoint
MANIFEST_LABEL = "cache.hearth.dev/manifest"  # the first 63 hex digits of a digest
ORIGIN_ANNOTATION = "cache.hearth.dev/origin"  # of a manifest: where its bytes can be had, as JSON
MANAGED_BY = {"app.kubernetes.io/managed-by": "hearth"}
AGENT_LABEL = {"app.kubernetes.io/name": "hearth-agent"}

CLUSTER = "/api/v1/namespaces/kube-system"  # as old as the cluster, with a uid that no other has
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
NODE_CACHES = f"/apis/{API_VERSION}/nodecaches"
MANIFESTS = f"/apis/{API_VERSION}/artifactmanifests"
ROOTS = f"/apis/{API_VERSION}/cacheroots"
SECRETS = f"/api/v1/namespaces/{NODES_NAMESPACE}/secrets"
EVENTS = f"/api/v1/namespaces/{EVENTS_NAMESPACE}/events"
ALL_EVENTS = "/api/v1/events"
AGENT_PODS = f"/api/v1/namespaces/{NODES_NAMESPACE}/pods"
DAEMON_SETS = f"/apis/apps/v1/namespaces/{NODES_NAMESPACE}/daemonsets"
IMAGE_DAEMON_SETS = f"/apis/apps/v1/namespaces/{IMAGES_NAMESPACE}/daemonsets"
IMAGE_SECRETS = f"/api/v1/namespaces/{IMAGES_NAMESPACE}/secrets"
IMAGE_PODS = f"/api/v1/namespaces/{IMAGES_NAMESPACE}/pods"

# Endpoints have the vendor's names, so that its documents apply unchanged.
ENDPOINT_GROUP = "inference.sagemaker.aws.amazon.com"
CONFIGS, JUMPSTART_MODELS = "inferenceendpointconfigs", "jumpstartmodels"
OWN_CATEGORY = "hearth"  # of the definitions that Hearth brought; those of the vendor's operator have none such

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_object_name(name: str) -> bool:
    """Whether an API server takes it as the name of an object; nothing else may become part of a path."""
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None
