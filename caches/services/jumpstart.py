"""What a JumpStart model runs in: its image and its environment, for who serves it."""

from __future__ import annotations

from caches.models import SourceConnection
from caches.services.connections import connection_source
from caches.sources.jumpstart import JumpStartSource
from caches.sources.jumpstart_spec import JumpStartModel
from controlplane.clusters.documents import SourceType
from controlplane.errors import FieldError, Invalid


def jumpstart_model(*, connection: SourceConnection, uri: str, instance_type: str = "") -> JumpStartModel:
    """What ``jumpstart://model-id@version`` means on an instance type (``ml.g6.xlarge``), read from the vendor's
    documents now. Raises as sources do; ``image`` is "" where the model has none for that type.
    """
    if connection.type != SourceType.JUMP_START:
        raise Invalid(
            "connection:user:no-jumpstart",
            f"Connection {connection.name} is of type {connection.type}: it knows no JumpStart models.",
            next_step="Name a connection of type JumpStart.",
            errors=[FieldError("connection", "connection:user:no-jumpstart", "It must be of type JumpStart.")],
        )
    with connection_source(connection) as source:
        assert isinstance(source, JumpStartSource)
        return source.model(uri, instance_type)
