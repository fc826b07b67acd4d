"""What one router process knows of instances beside their configuration: what is in flight, health, open connections.

A new configuration changes who may get requests. What is known of an instance that stays is kept, and one that goes
keeps what it has in flight until that ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from routing.dataplane.config import EndpointConfig, InstanceConfig, RouterConfig, VariantConfig
from routing.dataplane.recording import Recorder
from routing.dataplane.waiting import Waiting
from routing.domain.deciding import Decision, Key, Outcome, Situation, decide, local_share, local_threshold, placed
from routing.domain.figures import Figures
from routing.domain.health import WELL, Failure, Health, away, failed, succeeded
from routing.domain.hotset import Sketch
from routing.domain.keys import Audience, Mark, begun, marked
from routing.domain.places import Places
from routing.domain.policies import RoutingStrategy
from routing.domain.together import NOTHING, Names, Part, exchange, own

if TYPE_CHECKING:
    from routing.dataplane.upstream import Upstream


_NOBODY, _SATURATED = Outcome.NOBODY, Outcome.SATURATED  # a name in an Enum is looked up for a tenth of a microsecond
AUDIENCES, LONGEST_MODEL = 256, 256  # remembered by a variant, and the longest name of a model among them


@dataclass(slots=True)
class Instance:
    """One instance of one endpoint as this process sees it. ``idle`` holds connections, the last used at the end.
    ``first_at``: when it first answered a request with success since it is here, in seconds since the epoch."""

    config: InstanceConfig
    first_at: float | None = None
    first_told: bool = False
    health: Health = WELL
    idle: list[Upstream] = field(default_factory=list)


class Lease:
    """One request in flight on an instance, given back exactly once, whoever gives it back and however often.

    ``counts``: where it counts. ``unanswered``: where it also counts until its answer begins, None for nowhere;
    ``pending``: where its ``size`` does."""

    __slots__ = ("_counts", "_name", "_pending", "_size", "_unanswered", "_waiting", "instance")

    def __init__(
        self,
        name: str,
        instance: Instance,
        waiting: Waiting,
        counts: dict[str, int],
        unanswered: dict[str, int] | None,
        pending: dict[str, int] | None,
        size: int,
    ) -> None:
        self._name, self.instance, self._waiting = name, instance, waiting
        self._counts: dict[str, int] | None = counts
        counts[name] = counts.get(name, 0) + 1
        self._unanswered = unanswered
        if unanswered is not None:
            unanswered[name] = unanswered.get(name, 0) + 1
        self._size = size
        self._pending = pending if size else None
        if pending is not None and size:
            pending[name] = pending.get(name, 0) + size

    def answered(self) -> None:
        """Its answer began."""
        if (counts := self._pending) is not None:
            self._pending = None
            _less(counts, self._name, self._size)
        if (counts := self._unanswered) is not None:
            self._unanswered = None
            _less(counts, self._name, 1)

    def release(self) -> None:
        if (counts := self._counts) is None:
            return
        self._counts = None
        if self._pending is not None or self._unanswered is not None:
            self.answered()
        _less(counts, self._name, 1)
        if self._waiting.held:
            self._waiting.wake()


def _less(counts: dict[str, int], member: str, by: int) -> None:
    if (left := counts[member] - by) > 0:
        counts[member] = left
    else:
        del counts[member]


class Variant:
    """One variant's instances, and the decisions about them. ``in_flight`` counts by instance id and holds no zeros;
    ``unanswered`` likewise, of those that were sent while the policy has a bound for it; ``pending`` their bytes, of
    those that were sent while the policy avoids waits. All three hold this router's part and ``others``, what it heard
    of those that it hears; with it they are ``known`` of ``routers``."""

    def __init__(
        self, config: VariantConfig, of: EndpointConfig, routers: int, before: Variant | None, known: int = 1
    ) -> None:
        self.config = config
        self.names = (of.name, config.name)
        self.current = True  # until another configuration is in force
        self._of = of
        self._begun: dict[tuple[str, str, Mark | None], blake2b] = {}
        self.in_flight: dict[str, int] = before.in_flight if before else {}
        self.unanswered: dict[str, int] = before.unanswered if before else {}
        self.pending: dict[str, int] = before.pending if before else {}
        self.others: Part = before.others if before else NOTHING
        self.places: Places = before.places if before else Places()
        self.sketch: Sketch = before.sketch if before else Sketch()
        self.figures: Figures = before.figures if before else Figures()
        self.recorder: Recorder = before.recorder if before else Recorder()
        self.waiting: Waiting = before.waiting if before else Waiting()
        earlier: dict[str, Instance] = before.instances if before else {}
        self.instances: dict[str, Instance] = {
            one.member.id: _kept(earlier.get(one.member.id), one) for one in config.instances
        }
        self.left = [one for name, one in earlier.items() if self.instances.get(name) is not one]
        self._members = tuple(one.member for one in config.instances)
        self._draining = frozenset(one.member.id for one in config.instances if one.draining)
        self._ejected: dict[str, float] = before._ejected if before else {}
        prefix_aware = config.policy.strategy is RoutingStrategy.PREFIX_AWARE
        self.avoids_waits = prefix_aware and config.policy.extensions.avoid_waits
        self._hears, self._routers = prefix_aware, routers
        there = {name for name, one in self.instances.items() if earlier.get(name) is one}
        for name in self._ejected.keys() - there:
            del self._ejected[name]  # gone, or another one by now
        self.know(known)
        if not self._hears:
            self.hear(NOTHING)

    def know(self, known: int) -> None:
        """So many router processes count together, this one among them."""
        parameters, routers = self.config.policy.prefix_aware, self._routers
        self._threshold = local_threshold(parameters.concurrency_threshold, routers, known) if parameters else 0
        self._most_unanswered = local_share(self.config.policy.extensions.unanswered_threshold, routers, known)
        self._alone, self._told = known >= routers, self._hears and known > 1
        self._well = self._situation(self._draining)  # nearly always
        self._now = self._well

    def hear(self, part: Part) -> None:
        """What the others have on their way, in place of what they had. Of another strategy than PREFIX_AWARE every
        router goes by its own part: all would choose the one that all were told is least busy."""
        part = part if self._hears else NOTHING
        if part == self.others:
            return
        before, self.others = self.others, part
        less = [exchange(*each) for each in zip(self._counts, before, part, strict=True)]
        if any(less):
            self.waiting.wake()

    def part(self) -> Part:
        """What this router has on its way."""
        return Part(*map(own, self._counts, self.others)) if self.in_flight else NOTHING

    @property
    def _counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        return self.in_flight, self.unanswered, self.pending

    def decide(self, key: Callable[[], Key | None], now: float, size: int = 0) -> Decision:
        """The decision for one request of ``size`` bytes; ``instance`` is "" when nobody can take it."""
        situation = self._well
        if self._ejected and (away := self._away(now)) != situation.away:
            if self._now.away != away:
                self._now = self._situation(away)
            situation = self._now
        decision = decide(situation, key, random.getrandbits(64), size)
        if self.avoids_waits:
            placed(situation, decision)
        return decision

    def _situation(self, away: frozenset[str]) -> Situation:
        return Situation(
            self.config.policy, self._members, self.config.hot, away, self.in_flight, self._threshold, self.unanswered,
            self._most_unanswered, self.pending if self.avoids_waits else None,
            self.places if self.avoids_waits else None, self._alone, self._told,
        )  # fmt: skip

    def audience(self, tenant: str, model: str) -> Audience:
        """``tenant``: its salt."""
        return Audience(self._of.name, self.config.name, model, "", tenant)

    def begun(self, tenant: str, model: str, mark: Mark | None = None) -> blake2b:
        """As routing.domain.keys.begun, and ``mark`` behind it; the last few are remembered."""
        if (state := self._begun.get((tenant, model, mark))) is None:
            state = begun(self._of.secret, self.audience(tenant, model))
            if mark is not None:
                state = marked(state, mark)
            if len(self._begun) >= AUDIENCES:
                self._begun.clear()
            if len(model) <= LONGEST_MODEL:
                self._begun[tenant, model, mark] = state
        return state

    def lease(self, instance_id: str, size: int = 0) -> Lease:
        """``size``: bytes of the request."""
        made = Lease(
            instance_id, self.instances[instance_id], self.waiting, self.in_flight,
            self.unanswered if self._most_unanswered else None, self.pending if self.avoids_waits else None, size,
        )  # fmt: skip
        if (count := self.in_flight[instance_id]) > self.figures.most_in_flight:
            self.figures.most_in_flight = count
        return made

    def waits(self, decision: Decision) -> bool:
        """Whether the request has to wait: for any instance, or for room where the policy asks for that."""
        if not self.config.queue_requests:
            return False
        outcome = decision.outcome
        return outcome is _NOBODY or (outcome is _SATURATED and self.config.policy.extensions.queue_when_saturated)

    def ejected(self, now: float) -> list[str]:
        """Who is left out for its failures, by id."""
        return sorted(name for name, until in self._ejected.items() if until > now and name in self.instances)

    def failed(self, instance: Instance, failure: Failure, now: float) -> None:
        instance.health = failed(instance.health, failure, now)
        if instance.health.until > now:
            self._ejected[instance.config.member.id] = instance.health.until

    def firsts(self) -> dict[str, float]:
        """Instances that answered their first request since this was asked last, and when."""
        found = {}
        for name, one in self.instances.items():
            if one.first_at is not None and not one.first_told:
                found[name], one.first_told = one.first_at, True
        return found

    def succeeded(self, instance: Instance, now: float) -> None:
        if instance.health is not WELL:
            instance.health = succeeded(instance.health, now)
            if instance.health is WELL:
                self._ejected.pop(instance.config.member.id, None)

    def _away(self, now: float) -> frozenset[str]:
        if not self._ejected:
            return self._draining
        ejected = [name for name, until in self._ejected.items() if until > now]
        return away([one.id for one in self._members], self._draining, ejected)


@dataclass(frozen=True, slots=True)
class Endpoint:
    config: EndpointConfig
    variants: dict[str, Variant]
    # Variants with their weights summed up, for one draw.
    choices: tuple[tuple[float, Variant], ...]
    only: Variant | None  # that any request can go to, when there is one alone

    def choose(self) -> Variant | None:
        """By weight; None when every weight is 0."""
        if not self.choices:
            return None
        drawn = random.random() * self.choices[-1][0]
        return next((variant for limit, variant in self.choices if drawn < limit), self.choices[-1][1])


class Fleet:
    """All endpoints under the configuration in force. ``only``: the one there is, when it is the only one. ``known``:
    router processes whose requests under way are known here, this one among them."""

    def __init__(self) -> None:
        self.config = RouterConfig(0, 1, {})
        self.endpoints: dict[str, Endpoint] = {}
        self.only: Endpoint | None = None
        self.known = 1

    def apply(self, config: RouterConfig) -> None:
        """Put a configuration in force, at once and for all requests that come after."""
        made = {name: self._endpoint(one, config.routers) for name, one in config.endpoints.items()}
        gone = [one for name, before in self.endpoints.items() for one in _left(before, made.get(name))]
        before, self.config, self.endpoints = self.endpoints, config, made
        for endpoint in before.values():
            for variant in endpoint.variants.values():
                variant.current = False
        self.only = next(iter(made.values())) if len(made) == 1 else None
        for waiting in _waiting(before) - _waiting(made):
            waiting.end()
        for waiting in _waiting(made):
            waiting.wake()
        for instance in gone:
            while instance.idle:
                instance.idle.pop().close()

    def variants(self) -> Iterator[Variant]:
        for endpoint in self.endpoints.values():
            yield from endpoint.variants.values()

    def hear(self, others: int, parts: Mapping[Names, Part]) -> None:
        """So many other router processes are heard, and this is what they have on their way."""
        if self.known != others + 1:
            self.known = others + 1
            for variant in self.variants():
                variant.know(self.known)
        for variant in self.variants():
            variant.hear(parts.get(variant.names, NOTHING))

    def current(self, variant: Variant) -> Variant | None:
        """The variant as the configuration in force has it."""
        endpoint = self.endpoints.get(variant.names[0])
        return endpoint.variants.get(variant.names[1]) if endpoint else None

    def holds(self, variant: Variant, instance: Instance) -> bool:
        """Whether an instance that was leased from this variant is in the configuration in force."""
        now = variant if variant.current else self.current(variant)
        return now is not None and now.instances.get(instance.config.member.id) is instance

    def _endpoint(self, config: EndpointConfig, routers: int) -> Endpoint:
        before = self.endpoints.get(config.name)
        variants = {
            name: Variant(one, config, routers, before.variants.get(name) if before else None, self.known)
            for name, one in config.variants.items()
        }
        total, choices = 0.0, []
        for variant in variants.values():
            if variant.config.weight > 0:
                total += variant.config.weight
                choices.append((total, variant))
        return Endpoint(config, variants, tuple(choices), choices[0][1] if len(choices) == 1 else None)


def _waiting(endpoints: Mapping[str, Endpoint]) -> set[Waiting]:
    return {variant.waiting for endpoint in endpoints.values() for variant in endpoint.variants.values()}


def _kept(known: Instance | None, config: InstanceConfig) -> Instance:
    """The same instance when it is at the same place; an instance that moved begins afresh."""
    if known and (known.config.host, known.config.port, known.config.tls) == (config.host, config.port, config.tls):
        known.config = config
        return known
    return Instance(config)


def _left(before: Endpoint, after: Endpoint | None) -> list[Instance]:
    if after is None:
        return [one for variant in before.variants.values() for one in variant.instances.values()]
    left = [one for variant in after.variants.values() for one in variant.left]
    for name, variant in before.variants.items():
        if name not in after.variants:
            left += variant.instances.values()
    return left
