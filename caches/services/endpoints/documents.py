"""Documents from REST and the browser: reading them, and applying them by the process that may."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import yaml
from django.db import transaction

from caches.domain.endpoints.reading import MOST_BYTES
from caches.domain.endpoints.specs import EndpointReading, EndpointSpec, read_endpoint
from caches.models import Rollout
from caches.selectors.image_demand import held_reference
from caches.services.endpoints.cache import cache_apply
from caches.services.endpoints.refusals import create_namespace, held_by_others
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.gateway import Conflict, GatewayError, NoNamespace, NotApplicable, NotFound, Refused
from controlplane.clusters.models import Cluster
from controlplane.clusters.registry import gateway_for
from controlplane.errors import Clash, FieldError, HearthError, Invalid, Missing, Permanent, Transient
from controlplane.operations.models import FINAL_STATES, Operation, OperationKind, OperationState
from controlplane.operations.services import (
    operation_acknowledge,
    operation_fail,
    operation_run,
    operation_start,
    operation_succeed,
)
from controlplane.serving.services import storable

DEEPEST_TEXT = 64  # levels; a document that is read may have fewer
_OPENING = (
    yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken, yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken,
)  # fmt: skip
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


def manifest_read(text: str) -> Mapping[str, Any]:
    """The one document of a YAML or JSON text; Invalid for anything else."""
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise _unreadable(f"The manifest has more than {MOST_BYTES} bytes.", "Send a smaller one.")
    _looked_over(text)
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        said = str(getattr(error, "problem", None) or error).splitlines()[0][:200]
        raise _unreadable(f"The manifest is no YAML: {said}{where}.", "Correct it.") from error
    if len(documents) != 1:
        step = "Send one endpoint at a time." if documents else "Send an endpoint's document."
        raise _unreadable(f"The manifest must hold one object, not {len(documents)}.", step)
    found = documents[0]
    if not isinstance(found, Mapping):
        raise _unreadable("The manifest must be an object, with a kind and a spec.", "Send an endpoint's document.")
    document_read(found)
    if storable(found) != found:
        raise _unreadable("The manifest has zero bytes or halves of characters.", "Send plain text.")
    return found


def _unreadable(problem: str, next_step: str) -> Invalid:
    wrong = FieldError("manifest", "endpoint:user:manifest", problem)
    return Invalid("endpoint:user:manifest", problem, next_step=next_step, errors=[wrong])


def _looked_over(text: str) -> None:
    """Refuse what must not even be parsed."""
    depth = 0
    try:
        for token in yaml.scan(text, Loader=yaml.CSafeLoader):
            if isinstance(token, (yaml.AliasToken, yaml.AnchorToken)):
                said = "The manifest has anchors or aliases, which may stand for more than they show."
                raise _unreadable(said, "Write out what they stand for.")
            depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
            if depth > DEEPEST_TEXT:
                break
    except (yaml.YAMLError, ValueError) as error:
        if "nesting depth" in str(error):  # of the scanner itself, which looks ahead
            depth = DEEPEST_TEXT + 1
        # The reading proper says what else is wrong.
    if depth > DEEPEST_TEXT:
        said = f"The manifest is nested more than {DEEPEST_TEXT} levels deep."
        raise _unreadable(said, "Send a flatter document.")


def document_read(document: Mapping[str, Any]) -> tuple[EndpointReading, EndpointSpec]:
    """The document taken apart; Invalid with every field that is refused."""
    reading = read_endpoint(document)
    if reading.spec is None:
        raise _refused(reading.refusals)
    return reading, reading.spec


def endpoint_apply(*, actor: Actor, cluster: Cluster, document: Mapping[str, Any]) -> Operation:
    """Have the document applied, never by force; the Operation says how it went. Invalid as document_read."""
    return _start(actor, cluster, document, document_read(document)[1])


def rollout_rollback(*, actor: Actor, rollout_id: UUID) -> Operation:
    """Have the endpoint's document ask for what this rollout served. Clash when it does so already."""
    row = Rollout.objects.select_related("endpoint__cluster", "resolved_image").filter(pk=rollout_id).first()
    document = rollback_document(row)
    assert row is not None
    return endpoint_apply(actor=actor, cluster=row.endpoint.cluster, document=document)


def rollback_document(row: Rollout | None) -> dict[str, Any]:
    """The endpoint's document as it asks for what this rollout served. Clash when it does so already."""
    if row is None or not row.parts:
        raise Clash(
            "rollout:user:nothing-to-go-back-to",
            "It is not known any more what this rollout served.",
            next_step="Change the endpoint's document.",
        )
    endpoint = row.endpoint
    body = copy.deepcopy(endpoint.document)
    worker = {**body.get("worker", {}), **row.parts.get("worker", {})}
    if row.resolved_image is not None and row.resolved_image.moved_to and "image" in worker:
        # Its tag names another digest by now; what it served was this one.
        worker["image"] = held_reference(row.resolved_image)
    body |= {name: value for name, value in row.parts.items() if name != "worker"}
    if worker:
        body["worker"] = worker
    if body == endpoint.document:
        raise Clash(
            "rollout:user:serving-already",
            f"{endpoint.full_name} asks for rollout {row.number}'s version already.",
            next_step="Read the endpoint again.",
        )
    metadata = {"name": endpoint.name, "namespace": endpoint.namespace, "annotations": endpoint.annotations}
    version = "inference.sagemaker.aws.amazon.com/v1"
    return {"apiVersion": version, "kind": endpoint.kind, "metadata": metadata, "spec": body}


def _start(actor: Actor, cluster: Cluster, document: Mapping[str, Any], spec: EndpointSpec) -> Operation:
    name = f"{spec.namespace}/{spec.name}"
    with transaction.atomic():
        operation = operation_start(
            actor=actor,
            kind=OperationKind.ENDPOINT_APPLY,
            subject_type="cluster",
            subject_id=str(cluster.pk),
            subject_name=f"{cluster.name} {name}",
            params={"cluster_id": str(cluster.pk), "document": dict(document)},
        )
        audit_write(
            actor=actor,
            action="endpoint.apply",
            object_type="endpoint",
            object_id="",
            object_name=name,
            before=None,
            after={"kind": spec.kind.value, "source": spec.source.text, "image": spec.image},
            operation_id=operation.pk,
        )
    return operation


def endpoint_apply_step(*, operation_id: UUID) -> bool:
    """Apply it. True when the operation ended; Transient when the cluster does not answer."""
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None or operation.state in FINAL_STATES:
        return True
    if operation.state == OperationState.CANCELING:
        return operation_acknowledge(operation_id=operation_id, message="Nothing was applied.")
    operation_run(operation_id=operation_id)
    cluster = Cluster.objects.filter(pk=operation.params["cluster_id"]).first()
    problem: HearthError
    try:
        if cluster is None:
            raise NotFound("The cluster was removed meanwhile.")
        if "cache" in operation.params:
            cache_apply(gateway_for(cluster), operation.params)
        else:
            gateway_for(cluster).apply_endpoint(operation.params["document"])
    except Clash as error:
        problem = error
    except Conflict as error:
        problem = Clash(
            "endpoint:user:held-by-others",
            held_by_others(error),
            next_step="Change them where they are kept, for instance with kubectl apply; nothing is taken by force.",
        )
    except NoNamespace as error:
        step = create_namespace(error.namespace)
        problem = Missing("endpoint:cluster:no-namespace", str(error), next_step=step)
    except (Refused, NotApplicable, NotFound) as error:
        problem = Permanent("endpoint:cluster:refused", str(error)[:500], next_step="Correct what the cluster names.")
    except GatewayError as error:
        raise Transient("endpoint:cluster:no-answer", str(error)[:500]) from error
    else:
        operation_succeed(operation_id=operation_id, result={}, message="Applied; the endpoint follows it.")
        return True
    return operation_fail(operation_id=operation_id, error=problem)


def _refused(errors: Sequence[FieldError]) -> Invalid:
    return Invalid(
        "endpoint:user:refused",
        " ".join(error.detail for error in errors)[:2000],
        next_step="Correct the fields listed in errors.",
        errors=errors,
    )
