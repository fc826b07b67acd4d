"""The vendor's documents as Hearth understands them: InferenceEndpointConfig and JumpStartModel become EndpointSpec.

Every field of the schema is accepted. Those without a meaning here are named in ``ignored``; what could do harm, or
could never run, is refused with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from caches.domain.endpoints.options import EndpointOptions, read_options
from caches.domain.endpoints.pods import PodParts, read_pod_parts
from caches.domain.endpoints.reading import Ignored, Part, Problems, bounded
from caches.domain.endpoints.schema import ignored_fields
from controlplane.errors import FieldError

GROUP = "inference.sagemaker.aws.amazon.com"
VERSIONS = ("v1", "v1alpha1")
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
DEFAULT_HOST_PATH = "/opt/dlami/nvme"
MOST_REPLICAS = 10_000
PUBLIC_HUB = "SageMakerPublicHub"
_NAME = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_MODEL = r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
_INSTANCE = r"ml\.[a-zA-Z0-9.-]{1,59}"


class EndpointKind(StrEnum):
    CONFIG = "InferenceEndpointConfig"
    JUMPSTART = "JumpStartModel"


class EndpointSource(StrEnum):
    """Where the weights come from. Volume: the pod brings them itself, and nothing is cached."""

    S3 = "s3"
    FSX = "fsx"
    HUB = "huggingface"
    VOLUME = "kubernetesVolume"
    JUMPSTART = "jumpstart"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What the document says about the place of the weights; fields of other types are empty."""

    type: EndpointSource
    location: str = ""  # below the bucket or the mounted filesystem
    bucket: str = ""
    region: str = ""
    file_system: str = ""
    model_id: str = ""  # of the Hub or of JumpStart
    revision: str = ""  # commit of the Hub, version of JumpStart; "" is whatever is current at registration
    token_secret: tuple[str, str] = ("", "")  # name and key of a Secret of the endpoint's own namespace
    token_optional: bool = False  # without the Secret it is read anonymously

    @property
    def is_cacheable(self) -> bool:
        return self.type is not EndpointSource.VOLUME

    @property
    def text(self) -> str:
        """For people: the same text is the same place."""
        if self.type is EndpointSource.S3:
            return f"s3://{self.bucket}/{self.location}".rstrip("/")
        if self.type is EndpointSource.FSX:
            return f"fsx://{self.file_system}/{self.location}".rstrip("/")
        if self.type is EndpointSource.HUB:
            token = f" with {'/'.join(self.token_secret)}" if self.token_secret[0] else ""
            return f"hub:{self.model_id}@{self.revision or 'main'}{token}"
        if self.type is EndpointSource.JUMPSTART:
            return f"jumpstart:{self.model_id}@{self.revision or 'latest'}"
        return "volume"


@dataclass(frozen=True, slots=True)
class CacheSwitches:
    """``host_path`` is None where the document leaves it out: the pool's own root then."""

    weights: bool = False
    image: bool = False
    host_path: str | None = None


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One endpoint. ``image`` is "" for a JumpStartModel until its id is resolved."""

    kind: EndpointKind
    namespace: str
    name: str
    model_name: str
    model_version: str
    source: ModelSource
    image: str
    replicas: int
    instance_types: tuple[str, ...]
    cache: CacheSwitches
    options: EndpointOptions
    pod: PodParts
    deploy_seconds: int = 3600
    accept_eula: bool = False

    @property
    def node_selector(self) -> Mapping[str, str]:
        """The labels of a target node; with several instance types see ``instance_types``."""
        return {INSTANCE_TYPE_LABEL: self.instance_types[0]} if len(self.instance_types) == 1 else {}

    @property
    def served(self) -> tuple[str, str]:
        """What a rollout is about: another place of weights or another image is another version."""
        return self.source.text, self.image


@dataclass(frozen=True, slots=True)
class EndpointReading:
    """What became of a document: ``spec`` is None exactly where ``refusals`` is not empty."""

    spec: EndpointSpec | None
    ignored: tuple[Ignored, ...] = ()
    refusals: tuple[FieldError, ...] = field(default=())


def read_endpoint(document: object) -> EndpointReading:
    """Read one document as it was applied or uploaded. Never raises, whatever it holds."""
    problems = Problems()
    if not isinstance(document, Mapping) or not bounded(document, problems):
        if not problems.refusals:
            problems.refuse("", "field-type", "The document must be an object.")
        return EndpointReading(None, (), tuple(problems.refusals))
    root = Part("", document, problems)
    kind = _kind(root)
    metadata = root.part("metadata", required=True)
    name = metadata.matched("name", _NAME, "a name of letters a-z, digits and -, at most 63", required=True)
    namespace = metadata.matched("namespace", _NAMESPACE, "the name of a namespace", "default")
    options, unknown = read_options(metadata.part("annotations").values, problems)
    body = root.part("spec", required=True)
    if kind is None:
        return EndpointReading(None, (), tuple(problems.refusals))
    read = _read_config if kind is EndpointKind.CONFIG else _read_jumpstart
    spec = read(body, namespace, name, options)
    if problems.refusals:
        return EndpointReading(None, (), tuple(problems.refusals))
    return EndpointReading(spec, (*unknown, *ignored_fields(body.values)))


def _kind(root: Part) -> EndpointKind | None:
    version = root.text("apiVersion", required=True)
    kind = root.text("kind", required=True)
    group, _, number = version.partition("/")
    if version and (group != GROUP or number not in VERSIONS):
        root.refuse("apiVersion", "kind", f"apiVersion must be {GROUP}/v1 or {GROUP}/v1alpha1.")
        return None
    if kind not in set(EndpointKind):
        root.refuse("kind", "kind", f"kind must be {' or '.join(EndpointKind)}.")
        return None
    return EndpointKind(kind)


def _read_config(body: Part, namespace: str, name: str, options: EndpointOptions) -> EndpointSpec:
    source = _source(body.part("modelSourceConfig", required=True))
    worker = body.part("worker", required=True)
    pod = read_pod_parts(body, worker, source_is_volume=not source.is_cacheable)
    if options.warm_up is not None and pod.port_name == "grpc":
        detail = "A warm-up is a request over HTTP, and the server's port is named grpc."
        body.problems.refuse("metadata.annotations.hearth.dev/warm-up", "warm-up", detail)
    return EndpointSpec(
        kind=EndpointKind.CONFIG,
        namespace=namespace,
        name=name,
        model_name=body.matched("modelName", _MODEL, "letters, digits and -, at most 63", required=True),
        model_version=body.text("modelVersion", longest=63),
        source=source,
        image=_image(worker),
        replicas=body.integer("replicas", 1, 0, MOST_REPLICAS),
        instance_types=_instance_types(body),
        cache=_cache(body.part("modelCacheConfig")),
        options=options,
        pod=pod,
        deploy_seconds=body.integer("maxDeployTimeInSeconds", 3600, 1, 7 * 86400),
    )


def _read_jumpstart(body: Part, namespace: str, name: str, options: EndpointOptions) -> EndpointSpec:
    model, server = body.part("model", required=True), body.part("server", required=True)
    model_id = model.matched("modelId", _MODEL, "letters, digits and -, at most 63", required=True)
    revision = model.matched("modelVersion", r"[0-9]+(\.[0-9]+){1,3}[-+.a-zA-Z0-9]*", "a version such as 1.0.2")
    instance = server.matched("instanceType", _INSTANCE, "an instance type such as ml.g5.24xlarge", required=True)
    hub = model.text("modelHubName", PUBLIC_HUB, longest=255)
    if hub != PUBLIC_HUB:
        # Another hub may call other bytes by this id.
        model.refuse("modelHubName", "source-type", f"Models of {PUBLIC_HUB} are read and of no other hub.")
    return EndpointSpec(
        kind=EndpointKind.JUMPSTART,
        namespace=namespace,
        name=name,
        model_name=model_id,
        model_version=revision,
        source=ModelSource(EndpointSource.JUMPSTART, model_id=model_id, revision=revision),
        image="",
        replicas=body.integer("replicas", 1, 0, MOST_REPLICAS),
        instance_types=(instance,) if instance else (),
        cache=_cache(body.part("modelCacheConfig")),
        options=options,
        pod=read_pod_parts(body, None, source_is_volume=False),
        deploy_seconds=body.integer("maxDeployTimeInSeconds", 3600, 1, 7 * 86400),
        accept_eula=model.boolean("acceptEula", required=True),
    )


def _image(worker: Part) -> str:
    text = worker.matched("image", r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}", "the name of an image", required=True)
    name, at, digest = text.partition("@")
    if at and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        worker.refuse("image", "field-format", "A digest is sha256: and 64 hexadecimal digits.")
    if ".." in name or "//" in name:
        worker.refuse("image", "field-format", f"{name[:80]!r} is no name of an image.")
    return text


def _instance_types(body: Part) -> tuple[str, ...]:
    given = [name for name in ("instanceType", "instanceTypes", "nodeAffinity") if body.has(name)]
    if len(given) > 1:
        body.refuse(given[1], "placement", f"Only one of {' and '.join(given)} may be given.")
        return ()
    one = body.matched("instanceType", _INSTANCE, "an instance type such as ml.g5.24xlarge")
    several = body.texts("instanceTypes", longest=64)
    if any(not re.fullmatch(_INSTANCE, item, re.ASCII) for item in several) or len(several) > 20:
        body.refuse("instanceTypes", "field-format", "instanceTypes are at most 20 types such as ml.g5.24xlarge.")
        return ()
    return (one,) if one else tuple(dict.fromkeys(several))


def _cache(config: Part) -> CacheSwitches:
    weights, image = config.part("weightsCache"), config.part("imageCache")
    path = weights.folder("hostPath", DEFAULT_HOST_PATH) if weights.has("hostPath") else None
    return CacheSwitches(
        weights=weights.boolean("enabled"),
        image=image.boolean("enabled", required=config.has("imageCache")),
        host_path=path,
    )


def _source(config: Part) -> ModelSource:
    text = config.text("modelSourceType", required=True)
    place = config.text("modelLocation", longest=1024)
    location = place.strip("/")
    if any(step in ("", ".", "..") for step in location.split("/")) and location:
        config.refuse(
            "modelLocation", "path-not-allowed", "modelLocation must be a path without empty, . and .. steps."
        )
    try:
        kind = EndpointSource(text)
        if kind is EndpointSource.JUMPSTART:
            raise ValueError
    except ValueError:
        if text:
            allowed = ", ".join(item for item in EndpointSource if item is not EndpointSource.JUMPSTART)
            config.refuse("modelSourceType", "source-type", f"modelSourceType must be one of {allowed}.")
        return ModelSource(EndpointSource.VOLUME)
    if kind is EndpointSource.VOLUME and place:
        config.refuse("modelLocation", "source-type", "modelLocation must not be set with kubernetesVolume.")
    if kind is EndpointSource.S3:
        storage = config.part("s3Storage", required=True)
        bucket = storage.matched("bucketName", r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "a bucket's name", required=True)
        return ModelSource(kind, location, bucket=bucket, region=storage.text("region", required=True, longest=64))
    if kind is EndpointSource.FSX:
        storage = config.part("fsxStorage", required=True)
        system = storage.matched("fileSystemId", r"[a-zA-Z0-9-]{1,64}", "a file system's id", required=True)
        return ModelSource(kind, location, file_system=system)
    if kind is EndpointSource.HUB:
        return _hub(config.part("huggingFaceModel", required=True), location)
    return ModelSource(kind)


def _hub(model: Part, location: str) -> ModelSource:
    secret = model.part("tokenSecretRef")
    named = ("", "")
    if secret.has("namespace"):
        detail = "The token's Secret is one of the endpoint's own namespace."
        secret.refuse("namespace", "other-namespace", detail)
    if model.has("tokenSecretRef"):
        named = (
            secret.matched("name", r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "a Secret's name", required=True),
            secret.matched("key", r"[-._a-zA-Z0-9]{1,253}", "a key of the Secret", required=True),
        )
    return ModelSource(
        EndpointSource.HUB,
        location,
        model_id=model.matched("modelId", r"[a-zA-Z0-9_.-]+/[a-zA-Z0-9_.-]+", "owner/name", required=True),
        revision=model.matched("commitSHA", "[0-9a-f]{40}", "40 hexadecimal digits"),
        token_secret=named,
        token_optional=secret.boolean("optional"),
    )
