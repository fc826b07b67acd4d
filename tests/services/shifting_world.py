"""Two endpoints between whose instances requests are shifted, and what routers are told of them."""

from __future__ import annotations

from typing import Any

from controlplane.serving.models import Endpoint
from routing.domain.shifting import WantedVariant
from routing.models import Configuration
from routing.services.publishing import configuration_publish
from routing.services.variants import variants_set
from tests import factories
from tests.services.test_routing_policies import ADA


def chat_endpoint(settings: Any) -> Endpoint:
    """``chat``, with the variant ``default`` on the ready instance ``old-pod``; Redis is away."""
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    made = factories.endpoint(name="chat")
    factories.variant(of=made)
    factories.instance(of=made, uid="old-pod")
    return made


def next_endpoint(chat: Endpoint) -> Endpoint:
    """``chat-next`` beside it, with nothing ready."""
    made = factories.endpoint(of=chat.cluster, name="chat-next")
    factories.variant(of=made)
    return made


def want(endpoint: Endpoint, *weights: tuple[str, float, Endpoint | None], **more: Any) -> None:
    wanted = [WantedVariant(name, weight, of.pk if of else None) for name, weight, of in weights]
    variants_set(actor=ADA, endpoint_id=endpoint.pk, wanted=wanted, **more)


def told(name: str = "chat") -> dict[str, tuple[float, list[str]]]:
    """Weights and instances by variant, as routers get them."""
    configuration_publish()
    newest = Configuration.objects.first()
    assert newest is not None
    [endpoint] = [one for one in newest.document["endpoints"] if one["name"] == name]
    return {one["name"]: (one["weight"], [i["id"] for i in one["instances"]]) for one in endpoint["variants"]}
