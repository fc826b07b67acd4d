"""Which questions a document raises before it is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.conf import settings

from caches.domain.endpoints.specs import EndpointSpec
from caches.domain.images import NotAReference, parse_reference
from caches.models import PoolLoop
from caches.services.endpoints import asking
from caches.services.endpoints.asking import Answer, Finding, Question, Reply
from caches.services.endpoints.images import known_image, registry_connection
from caches.services.endpoints.refusals import NO_ENSURE_IMAGE
from caches.services.endpoints.versions import place_to_ask
from caches.services.images import resolver
from caches.services.images.catalogue import at_registry
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.clusters.registry import gateway_for
from controlplane.errors import HearthError
from controlplane.serving.models import STATIC_KIND, Endpoint


def answers(*, cluster: Cluster, spec: EndpointSpec, document: Mapping[str, Any]) -> tuple[Finding, ...]:
    """What cluster, registry and source say, in DRY_RUN_SECONDS at most; nothing where that is 0."""
    seconds = settings.DRY_RUN_SECONDS
    if seconds <= 0:
        return ()
    questions: dict[str, Question] = {}
    told: dict[str, Finding] = {}
    if cluster.type != ClusterType.LOCAL:  # that one takes no documents, and says so itself
        gateway = gateway_for(cluster)
        questions["kinds"] = asking.kinds_question(gateway)
        questions["object"] = asking.object_question(gateway, document)
        known = _is_served(cluster, spec)
        questions["deployment"] = asking.deployment_question(gateway, spec.namespace, spec.name, known=known)
        questions["service"] = asking.service_question(gateway, spec.namespace, spec.name)
    openers = {"image": lambda: _image(spec), "source": lambda: _source(cluster, spec)}
    for about, opened in openers.items():
        found = _opened(opened)
        if isinstance(found, Reply):
            told[about] = asking.found(about, found)
        elif found is not None:
            questions[about] = found
    said = asking.ask(questions, seconds=seconds)
    if "object" in said and said["object"].nowhere:
        # A cluster looks at rights first: of an object there it may say that a role is wanting, which would not help.
        said = {about: one for about, one in said.items() if about not in ("deployment", "service")}
    return (*said.values(), *told.values())


def worker_told(cluster: Cluster) -> Iterator[Finding]:
    """Whether pods get their ensure step, as the worker said in its last rounds: its settings count, and not those of
    the process that answers pages."""
    if cluster.type == ClusterType.LOCAL:
        return
    rounds = PoolLoop.objects.filter(pool__cluster=cluster)
    if rounds.filter(error__contains="HEARTH_AGENT_IMAGE is not set").exists():
        yield Finding("worker", Answer.PROBLEM, NO_ENSURE_IMAGE)
    elif not settings.AGENT_IMAGE and not rounds.exclude(agent_hash="").exists():
        said = "Whether the worker has HEARTH_AGENT_IMAGE, which makes weights present in pods, is not known yet."
        yield Finding("worker", Answer.UNKNOWN, said)


def _opened(opened: Callable[[], Question | Reply | None]) -> Question | Reply | None:
    """A source or registry that cannot even be opened (its secret cannot be read) is an answer too."""
    try:
        return opened()
    except HearthError as error:
        return asking.problem(asking.words_of(error))


def _image(spec: EndpointSpec) -> Question | Reply | None:
    if not spec.image:
        return None
    try:
        parsed = parse_reference(spec.image)
    except NotAReference as error:
        return asking.problem(error)
    connection = registry_connection(parsed, namespace=spec.namespace)
    image = known_image(spec) if spec.cache.image else None
    known = image.artifact.digest if image is not None and image.artifact is not None else ""
    client, reference = resolver.open_resolver(connection), str(at_registry(parsed, connection))
    return asking.image_question(client, reference, sized=spec.cache.image, known=known)


def _source(cluster: Cluster, spec: EndpointSpec) -> Question | None:
    place = place_to_ask(cluster=cluster, spec=spec)
    return asking.source_question(place) if place is not None else None


def _is_served(cluster: Cluster, spec: EndpointSpec) -> bool:
    rows = Endpoint.objects.filter(cluster=cluster, namespace=spec.namespace, name=spec.name, gone_at__isnull=True)
    return rows.exclude(kind=STATIC_KIND).exists()
