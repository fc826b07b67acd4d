"""The image of an endpoint: what its reference means, and the image kept on nodes beside the weights.

It holds nothing up but the moment in which its registry is asked for the digest. What was found is kept for the whole
rollout: a tag that moves is shown, and runs when somebody names it anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from django.db.models import Q

from caches.domain.endpoints.specs import EndpointSpec
from caches.domain.endpoints.status import CacheFacts, image_facts
from caches.domain.gating import GateType, cold_words, gate
from caches.domain.images import ImageReference, NotAReference, parse_reference
from caches.domain.states import any_moving
from caches.models import Image, ImageState, ModelVersion, Rollout, SourceConnection
from caches.selectors.endpoint_targets import CacheTargets, gate_targets
from caches.selectors.image_demand import held_reference, holds_images
from caches.services.endpoints.pins import image_pin_ensure
from caches.services.images.catalogue import at_registry, image_register
from caches.sources.registry import may_pull
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import SourceType
from controlplane.errors import HearthError
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind
from controlplane.serving.models import Endpoint

RESOLVE_WITHIN = timedelta(seconds=15)  # how long the first pods of a rollout wait for the digest of their image
FRESH = timedelta(minutes=5)  # how old an answer of the registry a new rollout takes for its own
ASK_AGAIN = timedelta(minutes=5)  # for a reference that was refused
FOLDERS = "The nodes of its pools are folders: they hold no images."


@dataclass(frozen=True, slots=True)
class EndpointImage:
    """``reference`` is what pods run, by digest once that is known. ``pending``: the registry is being asked.

    ``cache`` None: that cache is off. ``moved`` says which digest the tag names now, where that is another one.
    """

    reference: str
    pending: bool = False
    cache: CacheFacts | None = None
    moved: str = ""


def endpoint_image(
    *,
    endpoint: Endpoint,
    spec: EndpointSpec,
    rollout: Rollout,
    version: ModelVersion | None,
    targets: CacheTargets,
    now: datetime,
    refused: str = "",
) -> EndpointImage:
    """Resolve, pin and count the image of ``spec``, which names one unless its version still has to. ``refused``: why
    there is no version. Repeating it is harmless."""
    if not spec.image:
        waits = CacheFacts("Pending", 0, 0, "Its version says which image serves it, and is being registered.")
        if refused:
            waits = CacheFacts("Failed", 0, 0, f"Its version says which image serves it, and there is none. {refused}")
        return EndpointImage("", cache=waits if spec.cache.image else None)
    wanted = spec.cache.image and any(holds_images(pool) for pool in targets.pools)
    image, asked = _image(rollout, spec, wanted, now)
    if image is None:
        pending = wanted and asked.goes_on and now - rollout.created_at <= RESOLVE_WITHIN
        problem = asked.problem
        told = CacheFacts("Failed" if problem else "Pending", 0, 0, problem or "Its registry is asked for the digest.")
        cache = (told if wanted else _not_wanted(targets)) if spec.cache.image else None
        return EndpointImage(spec.image, pending, cache)
    moved = f"{image.reference} names {image.moved_to} now." if image.moved_to else ""
    cache = None
    if spec.cache.image:
        if version is None and spec.source.is_cacheable and wanted:
            state = "Failed" if refused else "Pending"
            cache = CacheFacts(state, 0, 0, f"It is kept once its weights are registered. {refused}".strip())
        else:
            cache = _kept(endpoint, image, version, targets, now) if wanted else _not_wanted(targets)
    return EndpointImage(held_reference(image), cache=cache, moved=moved)


def _not_wanted(targets: CacheTargets) -> CacheFacts:
    return CacheFacts("Failed", 0, 0, targets.why or FOLDERS)


@dataclass(frozen=True, slots=True)
class _Asked:
    """``problem``: why it is not known, as far as anybody has said; ``goes_on``: somebody is at it."""

    problem: str = ""
    goes_on: bool = False


def _image(rollout: Rollout, spec: EndpointSpec, wanted: bool, now: datetime) -> tuple[Image | None, _Asked]:
    """What the rollout's reference means, settled the first time; or why nobody can say it."""
    if rollout.resolved_image_id is not None:
        rows = Image.objects.select_related("artifact", "connection").defer("artifact__manifest")
        return rows.get(pk=rollout.resolved_image_id), _Asked()
    try:
        parsed = parse_reference(spec.image)
    except NotAReference as error:
        return None, _Asked(str(error))
    connection = registry_connection(parsed, namespace=spec.namespace)
    names = {str(parsed), str(at_registry(parsed, connection))}
    found = _known(names)
    settled = found is not None and (bool(parsed.digest) or _is_fresh(found, rollout))
    if found is not None and (settled or not wanted or now - rollout.created_at > RESOLVE_WITHIN):
        if not wanted and rollout.applied_hash:
            return None, _Asked()  # what runs by its tag goes on running
        Rollout.objects.filter(pk=rollout.pk, resolved_image=None).update(resolved_image=found)
        rollout.resolved_image = found
        return found, _Asked()
    return None, _ask(spec.image, names, connection, rollout, now) if wanted else _Asked()


def known_image(spec: EndpointSpec) -> Image | None:
    """The registered image that the document names, as far as anybody has asked; None too for what is no reference."""
    try:
        parsed = parse_reference(spec.image)
    except NotAReference:
        return None
    return _known({str(parsed), str(at_registry(parsed, registry_connection(parsed, namespace=spec.namespace)))})


def _is_fresh(image: Image, rollout: Rollout) -> bool:
    return image.checked_at is not None and image.checked_at >= rollout.created_at - FRESH


def _known(names: Collection[str]) -> Image | None:
    """The registered image that the reference names, as far as anybody has asked."""
    rows = Image.objects.filter(reference__in=names, state=ImageState.AVAILABLE, moved_to="")
    return rows.select_related("artifact", "connection").defer("artifact__manifest").order_by("-pk").first()


def _ask(
    text: str, names: Collection[str], connection: SourceConnection | None, rollout: Rollout, now: datetime
) -> _Asked:
    """Have it registered, unless somebody is at it or it was refused a moment ago. While it is asked again, what was
    said last is said still: why it was refused, or that its registry does not answer."""
    row = Image.objects.filter(reference__in=names).exclude(state=ImageState.AVAILABLE).order_by("-pk").first()
    said = f"{row.message} {row.next_step}".strip() if row is not None else ""
    refused = row is not None and row.state == ImageState.REFUSED
    if row is not None and refused and now - row.updated_at < ASK_AGAIN:
        return _Asked(said)
    asked = Operation.objects.filter(kind=OperationKind.IMAGE_REGISTER, subject_name__in=names)
    # One that ended and left nothing, because somebody took its row away, is no answer for ever.
    lately = Q(created_at__gte=max(rollout.created_at, now - ASK_AGAIN))
    if not refused and asked.filter(lately | Q(state__in=ACTIVE_STATES)).exists():
        silent = asked.filter(state__in=ACTIVE_STATES).order_by("-pk").values_list("message", flat=True).first()
        return _Asked(f"{silent} It is asked again and again." if silent else said, goes_on=True)
    try:
        image_register(actor=SYSTEM, reference=text, connection=connection)
    except HearthError as error:
        return _Asked(f"{error.detail} {error.next_step}".strip())
    return _Asked(said, goes_on=True)


def registry_connection(parsed: ImageReference, *, namespace: str) -> SourceConnection | None:
    """The Registry connection that leads to where the reference is, for endpoints of this namespace; the first by
    name. None: it is asked without credentials."""
    for connection in SourceConnection.objects.filter(type=SourceType.REGISTRY).order_by("name"):
        same = parsed.is_at(urlsplit(connection.endpoint).netloc.lower())
        theirs = not connection.namespaces or namespace in connection.namespaces
        allowed = tuple(connection.allowed)
        if same and theirs and any(may_pull(name, allowed) for name in parsed.spellings):
            return connection
    return None


def _kept(
    endpoint: Endpoint,
    image: Image,
    version: ModelVersion | None,
    targets: CacheTargets,
    now: datetime,
) -> CacheFacts:
    """Pinned on its targets, and how far they are."""
    pinned = image_pin_ensure(endpoint=endpoint, version=version, image=image, targets=targets)
    if pinned.pin is None:
        return CacheFacts("Failed", 0, 0, pinned.no_room)
    found = gate_targets(pinned.pin, now=now)
    if not found:
        return CacheFacts("Pending", 0, 0, "Nothing is asked of any node yet.")
    whole = gate(GateType.ALL, 100, found, started_at=pinned.pin.created_at, now=now)
    return image_facts(whole, moving=any_moving(target.state for target in found), cold=cold_words(found))
