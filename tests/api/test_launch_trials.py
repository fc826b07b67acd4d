"""Trials over REST and from the command line: started, followed, cancelled, and refused where they cannot be."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from caches.management.commands import trial
from controlplane.accounts.models import Scope, User
from controlplane.audit.models import AuditEvent
from controlplane.clusters.models import Cluster
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_succeed
from tests import factories
from tests.api.conftest import Api, api_for

pytestmark = pytest.mark.django_db
BODY = {"model": "ember", "version": "v1"}
RESULT: dict[str, Any] = {
    "version": "ember v1", "runs": 2, "seed": 5, "target_seconds": 10.0,
    "kinds": [
        {"event_class": "WarmPodRestart", "runs": 2, "seconds": [1.5, 2.5], "median_seconds": 1.5, "within_target": 2,
         "hits": 2, "idle_seconds": 4.0},
        {"event_class": "PodOnNewNode", "runs": 2, "seconds": [], "median_seconds": None, "within_target": 0, "hits": 0,
         "idle_seconds": 0.0},
    ],
    "conditions": {"host": "box", "cores": 2, "load": 0.5, "load_after": 1.5, "engine": "llama.cpp", "other_engines": 2,
                   "nodes": 8},
    "caveats": ["From memory."],
}  # fmt: skip


@pytest.fixture
def local() -> Cluster:
    factories.of_files(factories.version(model="ember", version="v1"), "ember.gguf", "README.md")
    factories.version(model="ember", version="shards")
    return factories.cluster(name="local")


@pytest.fixture
def admin_token(admin: User) -> Api:
    return api_for(admin, Scope.READ, Scope.FLEET_WRITE)


def test_a_trial_is_an_operation(local: Cluster, admin_token: Api) -> None:
    answer = admin_token.post("launches/trials", {**BODY, "runs": 3, "seed": 9, "target_seconds": 2.5})
    assert answer.status_code == 202, answer.content
    told = answer.json()
    assert (told["kind"], told["state"]) == ("LaunchTrial", "Pending")
    operation = Operation.objects.get()
    assert (operation.params["runs"], operation.params["seed"], operation.params["target_seconds"]) == (3, 9, 2.5)
    assert len(operation.params["order"]) == 9
    assert admin_token.post("launches/trials", BODY).json()["code"] == "trial:user:running"
    cancelled = admin_token.post(f"operations/{operation.pk}/cancel")
    assert cancelled.json()["state"] == "Canceling"
    operation_succeed(operation_id=operation.pk, result=RESULT)


def test_one_that_failed_begins_again_from_the_start(local: Cluster, admin_token: Api) -> None:
    admin_token.post("launches/trials", BODY)
    Operation.objects.update(
        state="Failed", params={**Operation.objects.get().params, "_at": 4, "_launches": [["x", "y"]]}
    )
    again = admin_token.post(f"operations/{Operation.objects.get().pk}/retry")
    assert again.status_code == 202, again.content
    params = Operation.objects.get(retry_of__isnull=False).params
    assert not [name for name in params if name.startswith("_")]
    assert params["order"] == Operation.objects.get(retry_of=None).params["order"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({**BODY, "version": "v9"}, 404, "version:user:not-found"),
        ({**BODY, "version": "shards"}, 400, "trial:user:not-servable"),
        ({**BODY, "cluster": "nope"}, 400, "trial:user:cluster"),
        ({**BODY, "runs": 21}, 400, "request:user:invalid"),
        ({**BODY, "target_seconds": 0}, 400, "request:user:invalid"),
        ({**BODY, "target_seconds": "NaN"}, 400, "request:user:invalid"),
        ({**BODY, "nodes": 3}, 400, "request:user:invalid"),
        ({"model": "ember"}, 400, "request:user:invalid"),
    ],
)
def test_what_cannot_be_tried_is_refused(
    local: Cluster, admin_token: Api, body: dict[str, Any], status: int, code: str
) -> None:
    answer = admin_token.post("launches/trials", body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert Operation.objects.count() == 0


def test_who_may_not_change_this_fleet_starts_none(local: Cluster, admin: User, operator: User) -> None:
    far = factories.cluster(name="far")
    for api in (api_for(operator, Scope.PINS_WRITE), api_for(admin, Scope.FLEET_WRITE, targets=[far.name])):
        assert api.post("launches/trials", {**BODY, "cluster": "local"}).status_code == 403
    assert Operation.objects.count() == 0


def command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("trial", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_the_command_says_what_a_trial_found(local: Cluster, admin_token: Api) -> None:
    key = admin_token.post("launches/trials", BODY).json()["id"]
    with pytest.raises(CommandError, match="The trial is Pending"):
        command("show", key)
    operation_succeed(operation_id=key, result=RESULT)
    said = command("show", key)
    assert "ember v1: 2 launches of each kind in random order (seed 5)" in said
    assert "Warm pod restart" in said and "median    1.5 s, 1.5 s to 2.5 s; 2 of 2 within 10 s; 2 hit" in said
    assert "never ready; 0 of 2 within 10 s" in said
    assert "on box: 2 cores, load 0.5 to 1.5, llama.cpp, 2 other engines, 8 nodes" in said
    assert "prepared" not in said, "results of before do not say it"
    more = {"id": "x", "event_class": "PodOnNewNode", "weights": "Miss", "ready_seconds": 7.25}
    Operation.objects.update(result={**RESULT, "not_measured": [more]})
    told = "One more prepared them and is not measured: Pod on new node, weights miss, ready after 7.2 s"
    assert told in command("show", key)
    assert '"seed": 5' in command("show", key, "--json")


def test_the_command_follows_a_trial_until_it_has_ended(local: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(_: float) -> None:
        operation_succeed(operation_id=Operation.objects.get().pk, result=RESULT)

    monkeypatch.setattr(trial.Command, "pause", staticmethod(ends))
    assert "seed 5" in command("run", "ember", "v1", "--seed", "5", "--runs", "2")
    event = AuditEvent.objects.get(action="trial.start")
    assert (event.via, event.actor.endswith(" (manage.py)"), event.message) == ("Command", True, "A trial of ember v1.")
    with pytest.raises(CommandError, match="no version v2 of ember"):
        command("run", "ember", "v2")
    with pytest.raises(CommandError, match=r"a single GGUF file\. Name one that can be: ember v1\."):
        command("run", "ember", "shards")


def test_ctrl_c_cancels_it(local: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial.Command, "pause", staticmethod(interrupted))
    with pytest.raises(CommandError, match="Cancelled"):
        command("run", "ember", "v1")
    assert Operation.objects.get().state == "Canceling"
