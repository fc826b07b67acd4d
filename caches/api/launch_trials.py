"""Controlled trials of launches: an operation that provokes them, whose result says what they took."""

from __future__ import annotations

import time

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import WAIT, WORK, ApiView
from caches.domain.launches.trials import MOST_RUNS
from caches.selectors.catalogue import version_get
from caches.services.launches.trials import (
    DEFAULT_RUNS,
    DEFAULT_TARGET,
    MOST_TARGET,
    cluster_for_trials,
    trial_start,
)
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.rest.validation import Input


class LaunchTrialInput(Input):
    model = serializers.CharField(max_length=200)
    version = serializers.CharField(max_length=100)
    cluster = serializers.CharField(max_length=63, required=False, help_text="a local fleet; the only one")
    runs = serializers.IntegerField(min_value=1, max_value=MOST_RUNS, default=DEFAULT_RUNS, help_text="of each kind")
    seed = serializers.IntegerField(
        min_value=0, max_value=2**31 - 1, required=False, help_text="of the order; the result says which it was"
    )
    target_seconds = serializers.FloatField(
        min_value=0.001, max_value=MOST_TARGET, default=DEFAULT_TARGET, help_text="until ready, that are good enough"
    )


class LaunchTrials(ApiView):
    """Provoke warm restarts, cold pods and pods on new nodes in random order, on nodes of the trial's own. It uses the
    machine that the local fleet runs on, changes nothing of others, and takes away what it made. One more launch comes
    first, prepares the others and is not measured: it is in the result's ``not_measured``."""

    write_scope = Scope.FLEET_WRITE
    parameters = {"POST": ("wait",)}

    @extend_schema(request=LaunchTrialInput, parameters=[WAIT], responses=WORK)
    def post(self, request: Request) -> Response:
        body = self.read(LaunchTrialInput, request)
        cluster = cluster_for_trials(body.get("cluster", ""))
        require_target(request, Scope.FLEET_WRITE, cluster.name)
        operation = trial_start(
            actor=actor_of(request),
            cluster=cluster,
            version=version_get(model=body["model"], version=body["version"]),
            runs=body["runs"],
            seed=body.get("seed", time.time_ns() % 1_000_000),
            target_seconds=body["target_seconds"],
        )
        return self.follow(operation.pk)
