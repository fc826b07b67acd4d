"""Rows of the cache: catalogue, pins, entries and the loop's bookkeeping."""

from caches.models.catalogue import Artifact, DriftState, Model, ModelVersion, SourceConnection, VersionState
from caches.models.entries import CacheEntry, ConsumerSeen, EntryChange, Transfer
from caches.models.images import Image, ImageHold, ImageState, PullSecret
from caches.models.launch_watches import LaunchLog, LaunchTraffic
from caches.models.launches import Launch, LaunchCount, LaunchHour, LaunchObservation
from caches.models.loop import NodeProjection, PoolLoop, PublishedManifest, UnknownCopy, Webhook, WebhookDelivery
from caches.models.pins import GateType, Pin
from caches.models.rollouts import Rollout, ShownMirror
from caches.models.tokens import EndpointToken

__all__ = [
    "Artifact",
    "CacheEntry",
    "ConsumerSeen",
    "DriftState",
    "EndpointToken",
    "EntryChange",
    "GateType",
    "Image",
    "ImageHold",
    "ImageState",
    "Launch",
    "LaunchCount",
    "LaunchHour",
    "LaunchLog",
    "LaunchObservation",
    "LaunchTraffic",
    "Model",
    "ModelVersion",
    "NodeProjection",
    "Pin",
    "PoolLoop",
    "PublishedManifest",
    "PullSecret",
    "Rollout",
    "ShownMirror",
    "SourceConnection",
    "Transfer",
    "UnknownCopy",
    "VersionState",
    "Webhook",
    "WebhookDelivery",
]
