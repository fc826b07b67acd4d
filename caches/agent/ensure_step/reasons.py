"""Why a pod fetches by itself and why it could not, in sentences for whoever reads the pod."""

from __future__ import annotations

from caches.agent.asking import Answer, End
from caches.agent.ensure_step.options import Options
from controlplane.clusters.documents import Reason, SourceType
from controlplane.errors import HearthError

NO_STORE = "this node has no store"
# Never Hearth's own credentials: who may make a pod would have them.
_KEYS = (
    "name a Secret of its namespace, with access-key-id and secret-access-key, by the annotation "
    "hearth.dev/source-secret"
)
_REMEDIES = {
    SourceType.S3: _KEYS,
    SourceType.JUMP_START: _KEYS,
    SourceType.HUGGING_FACE: "name a Secret of its namespace that holds a token by the document's tokenSecretRef",
}


def not_given(answer: Answer) -> str:
    """Why the node's agent does not give it, without a full stop."""
    who = "the node's store has no room" if answer.end is End.NO_ROOM else "the node's agent cannot give it"
    message = answer.message.rstrip(".")
    if message[1:2].islower():
        message = message[:1].lower() + message[1:]
    return f"{who}: {message}" if message else who


def by_itself(error: Exception, options: Options, why: str) -> str:
    """Both matter to whoever reads the pod: why it could not help itself, and ``why`` it had to."""
    said = error.detail if isinstance(error, HearthError) else str(error)
    source = options.source
    if source is not None and not options.secret and getattr(error, "reason", "") == Reason.ACCESS_DENIED:
        remedy = _REMEDIES.get(source.connection.type)
        said = f"{source.uri} wants credentials and this pod has none: {remedy}" if remedy else said
    return f"{said.rstrip('.')}. It has to fetch by itself because {why}."
