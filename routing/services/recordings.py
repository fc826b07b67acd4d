"""Reading back what routers recorded of a variant's requests, bounded in time and in memory; and forgetting it."""

from __future__ import annotations

import time
from typing import Any

import redis
import structlog

from controlplane.errors import Transient
from controlplane.serving.models import Variant
from routing.domain.recordings import Recording, joined, key_of_stream, read_message
from routing.models import RoutedEndpoint
from routing.selectors.policies import newest_policies, policy_in_force, policy_of
from routing.services import broker

log = structlog.get_logger(__name__)

MOST_REQUESTS, MOST_BOUNDARIES = 20_000, 400_000  # that are held at once
PAGE = 100  # messages
AHEAD_SECONDS = 60.0  # of a router's clock; what is said to be of a later time is passed over


def recording_read(*, variant: Variant, minutes: float, most: int = MOST_REQUESTS) -> Recording:
    """The last ``minutes``, of which no more than the newest ``most`` requests; nothing where the policy records
    nothing. Raises errors.Transient while Redis does not answer."""
    if not policy_in_force(variant)[0].extensions.record_keys:
        return Recording()
    name = RoutedEndpoint.objects.filter(endpoint=variant.endpoint_id).values_list("name", flat=True).first()
    if name is None:
        return Recording()
    since = time.time() - 60 * minutes
    try:
        with broker.client() as connection:
            return joined(_newest(connection, key_of_stream(name, variant.name), since, most))
    except (redis.RedisError, OSError) as error:
        raise Transient(
            "routing:recording:unreachable",
            f"What was recorded cannot be read: Redis does not answer ({type(error).__name__}).",
            next_step="Ask again once it does; routing goes on without it.",
        ) from None


def recording_forget(*, variant: Variant) -> None:
    """Everything that was recorded. Where Redis does not answer it goes by itself within an hour."""
    name = RoutedEndpoint.objects.filter(endpoint=variant.endpoint_id).values_list("name", flat=True).first()
    if name is None:
        return
    try:
        with broker.client() as connection:
            connection.delete(key_of_stream(name, variant.name))
    except (redis.RedisError, OSError) as error:
        log.warning("routing.recording_not_forgotten", error=str(error)[:200])


def recordings_purge() -> None:
    """What routers told that had not heard yet that it is no longer wanted: they follow within seconds."""
    variants = list(Variant.objects.select_related("endpoint", "endpoint__routed"))
    policies = newest_policies([one.pk for one in variants])
    keys = [
        key_of_stream(one.endpoint.routed.name, one.name)
        for one in variants
        if hasattr(one.endpoint, "routed") and not policy_of(one.endpoint, policies.get(one.pk)).extensions.record_keys
    ]
    if not keys:
        return
    try:
        with broker.client() as connection:
            connection.delete(*keys)
    except (redis.RedisError, OSError) as error:
        log.warning("routing.recordings_not_purged", error=str(error)[:200])


def _newest(connection: redis.Redis, key: str, since: float, most: int) -> list[Recording]:
    """Message by message from the newest back."""
    found, requests, boundaries, last = list[Recording](), 0, 0, "+"
    until = time.time() + AHEAD_SECONDS
    while requests < most and boundaries < MOST_BOUNDARIES:
        page: Any = connection.xrevrange(key, max=last, min=str(int(1000 * since)), count=PAGE)
        for name, fields in page:
            one = read_message(broker.document_of(fields))
            room = most - requests
            believed = tuple(each for each in one.requests if each.at <= until)
            kept = tuple(each for each in believed if each.at >= since)[-room:] if room > 0 else ()
            found.append(Recording(kept, one.passed + len(one.requests) - len(believed)))
            requests += len(kept)
            boundaries += sum(len(each.boundaries) for each in kept)
            last = f"({name.decode()}"
            if requests >= most or boundaries >= MOST_BOUNDARIES:
                break
        if len(page) < PAGE:
            break
    return found
