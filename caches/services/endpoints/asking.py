"""What a dry run asks others, and only reads: the cluster, the image's registry, the source of the weights.

All are asked at once and for a few seconds together. Who does not answer in time, or may not say, is told as unknown
with the reason: a dry run never waits for the slowest, and never guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from caches.services.connections import connection_source
from caches.services.endpoints.refusals import create_namespace, held_by_others, may_not_ask
from caches.services.endpoints.versions import Place
from caches.services.images.resolver import ImageResolver, ResolvedImage
from controlplane.clusters.endpoints import EndpointOwner
from controlplane.clusters.gateway import (
    ClusterGateway,
    Conflict,
    Forbidden,
    GatewayError,
    NoNamespace,
    NotApplicable,
    NotFound,
    Refused,
)
from controlplane.errors import HearthError, Permanent

BROUGHT = {
    EndpointOwner.HEARTH: "Hearth reconciles the endpoints of this cluster.",
    EndpointOwner.OTHER: "Another operator brought the kinds and reconciles them: Hearth would only observe it.",
    EndpointOwner.NOBODY: "The cluster has no such kinds. Install deploy/endpoints first.",
}
MOST_WORDS = 500  # characters


class Answer(StrEnum):
    FINE = "Fine"
    PROBLEM = "Problem"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Reply:
    """``said``: a sentence for people. ``held_by``: who writes the fields that would change. ``image``: what an image
    is that nobody registered yet. ``nowhere``: the namespace is not there."""

    answer: Answer
    said: str
    held_by: tuple[str, ...] = ()
    image: ResolvedImage | None = None
    nowhere: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A reply, and ``about`` what: kinds, object, deployment, service, image, source, worker or room."""

    about: str
    answer: Answer
    said: str
    held_by: tuple[str, ...] = ()
    image: ResolvedImage | None = None
    nowhere: bool = False


Question = Callable[[], Reply]


def fine(said: str) -> Reply:
    return Reply(Answer.FINE, said)


def problem(said: object, held_by: tuple[str, ...] = ()) -> Reply:
    """Of an error's own words as many as people read."""
    return Reply(Answer.PROBLEM, str(said)[:MOST_WORDS], held_by)


def unknown(said: object) -> Reply:
    return Reply(Answer.UNKNOWN, str(said)[:MOST_WORDS])


def found(about: str, reply: Reply) -> Finding:
    return Finding(about, reply.answer, reply.said, reply.held_by, reply.image, reply.nowhere)


def words_of(error: HearthError) -> str:
    return f"{error.detail} {error.next_step}".strip()


def ask(questions: Mapping[str, Question], *, seconds: float) -> dict[str, Finding]:
    """All answers that came within the time, in the order of the questions; for the others, that they did not come.

    What answers later is dropped, so a question may open what it needs and must close it, and touches no row.
    """
    if not questions:
        return {}
    pool = ThreadPoolExecutor(max_workers=len(questions), thread_name_prefix="dry-run")
    running: dict[str, Future[Reply]] = {about: pool.submit(question) for about, question in questions.items()}
    wait(running.values(), timeout=seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    return {about: found(about, _answer(future, seconds)) for about, future in running.items()}


def _answer(future: Future[Reply], seconds: float) -> Reply:
    if not future.done():
        return unknown(f"No answer within {seconds:g} s.")
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, HearthError):
        # Of what may pass it is said elsewhere that it is tried again: a dry run is not.
        return problem(words_of(error)) if isinstance(error, Permanent) else unknown(error.detail)
    if isinstance(error, GatewayError):
        return unknown(error)
    raise error


def kinds_question(gateway: ClusterGateway) -> Question:
    """Who reconciles the cluster's endpoints."""

    def question() -> Reply:
        try:
            owner = gateway.endpoint_owner()
        except NotApplicable as error:
            return problem(error)
        return (fine if owner is EndpointOwner.HEARTH else problem)(BROUGHT[owner])

    return question


def object_question(gateway: ClusterGateway, document: Mapping[str, Any]) -> Question:
    """Whether the API server would take the document: its namespace, its rules, and who holds its fields."""

    def question() -> Reply:
        try:
            gateway.apply_endpoint(document, dry_run=True)
        except Conflict as error:
            return problem(held_by_others(error), error.managers)
        except NoNamespace as error:
            return replace(problem(f"{error} {create_namespace(error.namespace)}"), nowhere=True)
        except Forbidden:
            said = "Hearth's pages may not ask this; its worker does when the document is applied."
            return unknown(f"{said} What deploy/endpoints brings lets them.")
        except (NotFound, NotApplicable, Refused) as error:
            return problem(error)
        return fine("The API server would take the document.")

    return question


def deployment_question(gateway: ClusterGateway, namespace: str, name: str, *, known: bool) -> Question:
    """Whether the name is free for a Deployment. ``known``: an endpoint of this name is served already."""

    def question() -> Reply:
        try:
            work = gateway.workload_status(namespace, name)
        except Forbidden as error:
            return unknown(may_not_ask(error, namespace))
        except (Refused, NotApplicable) as error:
            return problem(error)
        if work is None:
            return fine(f"No Deployment is called {namespace}/{name} yet.")
        numbers = f"{work.available} of {work.wanted} replicas serve"
        if work.rollout or known:
            return fine(f"The Deployment {namespace}/{name} is there: {numbers}.")
        return problem(
            f"A Deployment {namespace}/{name} is there that no endpoint made ({numbers}): nothing is taken from it."
        )

    return question


def service_question(gateway: ClusterGateway, namespace: str, name: str) -> Question:
    """Whether the name is free for a Service, which requests come by."""

    def question() -> Reply:
        try:
            ours = gateway.service_is_ours(namespace, name)
        except Forbidden as error:
            return unknown(may_not_ask(error, namespace))
        except (Refused, NotApplicable) as error:
            return problem(error)
        if ours is None:
            return fine(f"No Service is called {namespace}/{name} yet.")
        if ours:
            return fine(f"The Service {namespace}/{name} is there, and Hearth made it.")
        said = f"A Service {namespace}/{name} is there that somebody else made: nothing is taken from it."
        return problem(f"{said} Give the endpoint another name.")

    return question


def image_question(resolver: ImageResolver, reference: str, *, sized: bool = False, known: str = "") -> Question:
    """Which digest the registry has under the reference now, and where ``sized`` how large that is, unless it is the
    ``known`` one. Closes the resolver."""

    def question() -> Reply:
        try:
            if sized and not known:
                return named(resolver.resolve(reference))
            digest = resolver.current_digest(reference)
            if sized and digest != known:
                return named(resolver.resolve(reference))
            return fine(f"{reference} is {digest}.")
        finally:
            resolver.close()

    def named(image: ResolvedImage) -> Reply:
        return replace(fine(f"{reference} is {image.digest}."), image=image)

    return question


def source_question(place: Place) -> Question:
    """Whether the place may be read, and as what. Opened here, for its credentials may stand in rows."""
    opened = connection_source(place.connection)
    source = opened.__enter__()

    def question() -> Reply:
        try:
            uri = source.resolve(place.uri.rstrip("/")).uri
            source.check(uri)
        finally:
            opened.__exit__(None, None, None)
        return fine(f"{place.connection.name} reads {uri}.")

    return question
