"""Pages of controlled trials: what is shown while one goes on and afterwards, and the form that starts one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from caches.domain.launches.words import EventClass
from caches.models import Launch, ModelVersion
from caches.selectors.launches.trials import trial_beside
from caches.selectors.trials import trial_name
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.operations.models import Operation
from controlplane.serving.models import Endpoint
from tests import factories
from tests.services.trials import launch_trial
from tests.views.conftest import Stage
from tests.views.reading import Page

LIST, NEW = "/launches/trials", "/launches/trials/new"


@pytest.fixture(autouse=True)
def servable(stage: Stage) -> None:
    """What engines of a local fleet can serve."""
    factories.of_files(stage.llama, "llama.gguf")


@pytest.fixture
def launches(stage: Stage) -> list[Launch]:
    """Three kinds, twice: 2 and 3 s, 4 and 5 s, 30 and 40 s."""
    kinds = (EventClass.WARM_RESTART, EventClass.COLD_POD, EventClass.NEW_NODE)
    return [
        factories.launch(
            on=stage.nodes[0], event_class=kind, ready_seconds=seconds + more, phase_seconds=[0.5, *[None] * 6],
            weights="Miss" if seconds == 30 else "Hit",
        )
        for more in (0, 1)
        for kind, seconds in zip(kinds, (2, 4, 30 + 9 * more), strict=True)
    ]  # fmt: skip


def page(client: Client, operation: Operation) -> Page:
    return Page(client.get(f"{LIST}/{operation.pk}").content)


def posted(stage: Stage, **changes: str) -> dict[str, str]:
    fields = {"version": str(stage.llama.pk), "cluster": "lab", "runs": "2", "target_seconds": "5", "seed": "7"}
    return fields | changes


def test_a_trial_that_is_over_says_what_each_kind_took_and_how_sure_that_is(
    stage: Stage, victor: Client, launches: list[Launch]
) -> None:
    made = launch_trial(stage.pool.cluster, stage.llama, launches=launches, runs=2, target=5.0)
    shown = page(victor, made)
    rows = [row.text for row in shown.page.one("tbody", id="kinds-rows").all("tr")]
    assert [row.split(" 2 s")[0].split(" 4 s")[0].split(" 30 s")[0] for row in rows] == [
        "Warm pod restart", "Cold pod on warm node", "Pod on new node",
    ]  # fmt: skip
    assert "2 of 2" in rows[0] and "34 to 100 % of many" in rows[0] and "0 of 2" in rows[2], rows
    assert "too few" in rows[0], "no p95 of two"
    circles = [[float(one.attrs["cx"].rstrip("%")) for one in svg.all("circle")] for svg in shown.page.all("svg")]
    drawn = [one for one in circles if one]
    assert len(drawn) == 3 and drawn[0][0] < drawn[1][0] < drawn[2][0] < drawn[2][1] == 97.0, "one scale for all rows"
    lines = {one.attrs["x1"] for one in shown.page.all("line")}
    assert len(lines) == 1, "and one target"
    for text in (
        "lab-1",
        "8.0 GiB",
        "llama.cpp (xllamacpp 1.0)",
        "0.4 and 0.8",
        "2 other engines, 8 nodes",
        "It was read",
    ):
        assert text in shown.text, text
    links = [one.attrs["href"] for one in shown.page.one("tbody", id="launches-rows").all("a")]
    assert links == [f"/launches/{one.pk}" for one in launches]
    assert "Progress" not in shown.text and shown.posts() == []


def test_the_launch_that_prepares_a_trial_is_said_wherever_its_launches_are_counted(
    stage: Stage, victor: Client, launches: list[Launch]
) -> None:
    made = launch_trial(stage.pool.cluster, stage.llama, launches=launches[:3], runs=1)
    words = "not measured"
    assert words not in page(victor, made).text
    more = factories.launch(
        on=stage.nodes[0], event_class=EventClass.NEW_NODE, ready_seconds=7.25, weights="Miss",
        endpoint_name=f"local/{trial_name(made.pk)}",
    )  # fmt: skip
    Operation.objects.filter(pk=made.pk).update(state="Running")
    assert words not in page(victor, made).text, "the latest may be measured yet"
    Operation.objects.filter(pk=made.pk).update(state="Succeeded")
    shown = page(victor, made)
    assert "1 launch more is among the launches of trials and not measured" in shown.text
    assert "pod on new node , weights miss, ready after 7.2 s ." in shown.text
    assert f"/launches/{more.pk}" in [one.attrs["href"] for one in shown.page.all("a")]
    told = trial_beside(made)
    assert [one["id"] for one in told] == [str(more.pk)]
    Operation.objects.filter(pk=made.pk).update(result={**(made.result or {}), "not_measured": told})
    assert "3 of 3 and 1 not measured" in Page(victor.get(LIST).content).text
    (row,) = victor.get(f"{LIST}.json").json()["rows"]
    assert (row["measured"], row["not_measured"]) == (3, 1)
    Launch.objects.all().delete()
    assert f"/launches/{more.pk}" not in victor.get(f"{LIST}/{made.pk}").content.decode(), "it is kept no more"


def test_its_endpoint_is_listed_until_it_is_gone_and_reached_from_the_trial_ever_after(
    stage: Stage, victor: Client
) -> None:
    made = launch_trial(stage.pool.cluster, stage.llama, state="Running")
    assert "/endpoints/" not in victor.get(f"{LIST}/{made.pk}").content.decode().replace('href="/endpoints"', "")
    name = trial_name(made.pk)
    endpoint = factories.endpoint(of=stage.pool.cluster, namespace="local", name=name)
    theirs = factories.endpoint(of=stage.pool.cluster, namespace="local", name="trial-chat", gone_at=timezone.now())
    factories.endpoint(of=factories.cluster(type="Kubernetes"), namespace="local", name=name, gone_at=timezone.now())

    def listed(query: str = "") -> list[str]:
        return sorted(row["name"].rpartition("/")[2] for row in victor.get(f"/endpoints.json{query}").json()["rows"])

    before = listed()
    assert before.count(name) == 2 and "taken away" not in page(victor, made).text
    Endpoint.objects.filter(pk=endpoint.pk).update(gone_at=timezone.now())
    assert sorted([*listed(), name]) == before, "the one of a cluster is not ours, nor is trial-chat"
    assert theirs.name in before and listed(f"?name={name}") == [name, name]
    shown = page(victor, made)
    (link,) = [one for one in shown.page.all("a") if one.attrs["href"] == f"/endpoints/{endpoint.pk}"]
    assert link.text == f"local/{name}" and "taken away again" in shown.text


def test_exports_hold_what_the_page_shows(stage: Stage, victor: Client, launches: list[Launch]) -> None:
    made = launch_trial(stage.pool.cluster, stage.llama, launches=launches, runs=2, target=5.0)
    kinds = victor.get(f"{LIST}/{made.pk}.json").json()["rows"]
    assert [(one["event_class"], one["seconds"], one["within_target"], one["idle_seconds"]) for one in kinds] == [
        ("WarmPodRestart", [2.0, 3.0], 2, 4.0), ("ColdPodOnWarmNode", [4.0, 5.0], 2, 8.0),
        ("PodOnNewNode", [30.0, 40.0], 0, 69.0),
    ]  # fmt: skip
    each = victor.get(f"{LIST}/{made.pk}?format=json&table=launches").json()["rows"]
    assert [one["id"] for one in each] == [str(one.pk) for one in launches]
    (row,) = victor.get(f"{LIST}.json").json()["rows"]
    assert (row["version"], row["measured"], row["within_target"], row["id"]) == ("llama v1", 6, 4, str(made.pk))


def test_launches_that_are_kept_no_more_stay_in_the_result_without_a_link(
    stage: Stage, victor: Client, launches: list[Launch]
) -> None:
    made = launch_trial(stage.pool.cluster, stage.llama, launches=launches, runs=2)
    Launch.objects.filter(pk=launches[0].pk).delete()
    rows = page(victor, made).page.one("tbody", id="launches-rows")
    assert len(rows.all("tr")) == 6 and len(rows.all("a")) == 5


def test_one_that_goes_on_says_how_far_it_is_what_comes_and_when_it_will_be_over(
    stage: Stage, ada: Client, victor: Client, launches: list[Launch]
) -> None:
    fresh = launch_trial(stage.pool.cluster, stage.llama, state="Running", runs=2)
    Operation.objects.filter(pk=fresh.pk).update(params={**fresh.params, "_at": 0})
    text = page(victor, fresh).text
    assert "0 of 6 launches measured" in text and "First comes one that is not measured" in text
    assert "Time left is not known yet" in text and "Nothing is measured yet" in text
    fresh.delete()
    made = launch_trial(
        stage.pool.cluster, stage.llama, launches=launches[:2], state="Running", runs=2, eta_seconds=192.0
    )
    shown = page(ada, made)
    coming = {"WarmPodRestart": "warm pod restart", "ColdPodOnWarmNode": "cold pod", "PodOnNewNode": "pod on new node"}
    assert "2 of 6 launches measured" in shown.text and "About 3 min 12 s left" in shown.text
    assert f"Now comes: {coming[made.params['order'][2]]}" in shown.text
    assert len(shown.page.one("tbody", id="kinds-rows").all("tr")) == 2, "what is measured is shown at once"
    assert shown.posts() == [f"{LIST}/{made.pk}/cancel"] and "Run again" not in shown.text
    assert page(victor, made).posts() == []
    answer = ada.post(f"{LIST}/{made.pk}/cancel")
    assert (answer.status_code, answer["Location"]) == (302, f"{LIST}/{made.pk}")
    after = page(ada, made)
    assert "Asked to stop" in after.text and after.posts() == []


def test_what_a_cancelled_or_failed_one_measured_is_kept_and_it_can_be_run_again(
    stage: Stage, ada: Client, launches: list[Launch]
) -> None:
    problem = {"detail": "A launch was not ready.", "next_step": "Look at it.", "code": "trial:fleet:not-ready"}
    for state, error in (("Canceled", None), ("Failed", problem)):
        made = launch_trial(
            stage.pool.cluster,
            stage.llama,
            launches=launches[:1],
            state=state,
            runs=2,
            seed=99,
            target=2.5,
            error=error,
        )
        shown = page(ada, made)
        assert "1 of 6 launches measured. What follows is of those alone." in shown.text
        assert ("A launch was not ready. Look at it." in shown.text.replace("\n", " ")) == (error is not None)
        (again,) = [one.attrs["href"] for one in shown.page.all("a") if "Run again" in one.text]
        asked = parse_qs(urlsplit(again).query)
        assert asked == {
            "version": [str(stage.llama.pk)], "cluster": ["lab"], "runs": ["2"], "target_seconds": ["2.5"],
            "seed": ["99"],
        }  # fmt: skip
        form = Page(ada.get(again).content).page
        assert [form.one("input", name=name).attrs["value"] for name in ("runs", "target_seconds", "seed")] == [
            "2", "2.5", "99",
        ]  # fmt: skip
        chosen = [one.text for one in form.all("option") if "selected" in one.attrs]
        assert chosen == ["llama v1", "lab"]
    nothing = launch_trial(stage.pool.cluster, stage.llama, state="Failed")
    assert "It ended before its first launch was ready." in page(ada, nothing).text


def test_the_form_starts_one_once(stage: Stage, ada: Client) -> None:
    body = posted(stage, form_key="key-1")
    first, second = ada.post(NEW, body), ada.post(NEW, body)
    (made,) = Operation.objects.filter(kind="LaunchTrial")
    assert first.status_code == second.status_code == 302
    assert first["Location"] == second["Location"] == f"{LIST}/{made.pk}"
    assert {name: made.params[name] for name in ("runs", "seed", "target_seconds")} == {
        "runs": 2, "seed": 7, "target_seconds": 5.0,
    }  # fmt: skip
    refused = ada.post(NEW, posted(stage, form_key="key-2"))
    text = Page(refused.content).text
    assert refused.status_code == 409 and "A trial goes on in lab already" in text and "Wait for it" in text
    Operation.objects.filter(pk=made.pk).update(state="Canceled")
    ada.post(NEW, posted(stage, seed=""))
    assert Operation.objects.filter(kind="LaunchTrial", state="Pending").get().params["seed"] >= 0


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("runs", "0", "greater than or equal to 1"), ("runs", "21", "less than or equal to 20"),
        ("runs", "many", "whole number"), ("runs", "", "required"),
        ("target_seconds", "0", "greater than or equal to 0.001"), ("target_seconds", "nan", "Enter a number"),
        ("target_seconds", "86401", "less than or equal to 86400"), ("seed", "-1", "greater than or equal to 0"),
        ("version", "", "required"), ("version", "nobody", "not a valid"), ("cluster", "elsewhere", "not one of"),
    ],
)  # fmt: skip
def test_a_refusal_says_at_the_field_what_is_wrong(
    stage: Stage, ada: Client, field: str, value: str, told: str
) -> None:
    answer = ada.post(NEW, posted(stage, **{field: value}))
    shown = Page(answer.content).page
    assert answer.status_code == 400 and Operation.objects.filter(kind="LaunchTrial").count() == 0
    problem = shown.one("span", id=f"id_{field}_error").text
    assert told in problem or "Select a valid choice" in problem, problem
    (control,) = [one for one in shown.walk() if one.attrs.get("id") == f"id_{field}"]
    assert control.attrs["aria-invalid"] == "true"


def test_a_version_without_files_is_not_offered(stage: Stage, ada: Client) -> None:
    factories.of_files(stage.qwen, "qwen.gguf")
    factories.of_files(factories.version(model="shards"), "a.safetensors")
    options = [one.text for one in Page(ada.get(NEW).content).page.all("option")]
    assert options == ["Choose a version", "llama v1", "qwen v1", "lab"], "nobody could serve the shards"
    ModelVersion.objects.filter(pk=stage.qwen.pk).update(state="Registering", artifact=None)
    options = [one.text for one in Page(ada.get(NEW).content).page.all("option")]
    assert options == ["Choose a version", "llama v1", "lab"]


@pytest.mark.parametrize(("who", "role"), [("victor", "Viewer"), ("olga", "Operator")])
def test_who_may_not_start_one_is_told_who_may(
    stage: Stage, request: pytest.FixtureRequest, who: str, role: str
) -> None:
    client: Client = request.getfixturevalue(who)
    for answer in (client.get(NEW), client.post(NEW, posted(stage))):
        assert answer.status_code == 403 and "Ask an administrator for the role Admin" in answer.content.decode()
    assert "Start a trial" not in client.get(LIST).content.decode()


def test_without_a_local_fleet_there_is_nothing_to_start(stage: Stage, ada: Client) -> None:
    Cluster.objects.update(type=ClusterType.KUBERNETES)
    shown = Page(ada.get(NEW).content).page
    assert "No local fleet" in shown.text and shown.all("form") == []


def test_who_sees_a_part_of_the_cluster_sees_its_trials_and_nobody_elses(stage: Stage, client: Client) -> None:
    made = launch_trial(stage.pool.cluster, stage.llama)
    for target, status in (("lab", 200), ("lab.gpu", 200), ("elsewhere", 404)):
        client.force_login(factories.user(username=f"v-{target}", role="Viewer", target=target))
        assert client.get(f"{LIST}/{made.pk}").status_code == status, target
        assert len(client.get(f"{LIST}.json").json()["rows"]) == (status == 200), target
    client.force_login(factories.user(username="a", role="Admin", target="lab"))
    assert client.post(NEW, posted(stage)).status_code == 302, "an admin of the cluster alone may"


def test_nobody_ran_one_yet(stage: Stage, ada: Client) -> None:
    text = Page(ada.get(LIST).content).text
    assert "No trial was run yet" in text and "manage.py trial run MODEL VERSION" in text
    assert ada.get(f"{LIST}/{stage.operation.pk}").status_code == 404, "another operation is no trial"


def test_its_operation_and_the_pages_of_launches_lead_to_it(stage: Stage, victor: Client) -> None:
    made = launch_trial(stage.pool.cluster, stage.llama)
    for address, link in (
        (f"/operations/{made.pk}", f"{LIST}/{made.pk}"), ("/launches", LIST), ("/launches/report", LIST),
        (LIST, f"{LIST}/{made.pk}"),
    ):  # fmt: skip
        assert link in [one.attrs["href"] for one in Page(victor.get(address).content).page.all("a")], address


def test_time_that_is_left_follows_from_the_pace(stage: Stage) -> None:
    from caches.domain.launches.trials import seconds_left

    cases: list[tuple[Any, ...]] = [((0.0, 0, 6), None), ((60.0, 2, 6), 120.0), ((60.0, 6, 6), 0.0)]
    assert [seconds_left(*given) for given, _ in cases] == [wanted for _, wanted in cases]
    assert timedelta(seconds=seconds_left(1.0, 1, 60) or 0) == timedelta(seconds=59)


@pytest.mark.parametrize("address", ["/launches", "/launches/report"])
def test_pages_of_launches_say_that_those_of_trials_are_left_out(
    stage: Stage, victor: Client, launches: list[Launch], address: str
) -> None:
    words = "ran in this time; what trials provoke is left out:"
    assert words not in Page(victor.get(address).content).text
    made = launch_trial(stage.pool.cluster, stage.llama, launches=launches, runs=2, target=5.0)
    assert f"1 trial {words}" in Page(victor.get(address).content).text
    assert words not in Page(victor.get(f"{address}?since=2020-01-01T00:00Z&until=2020-01-02T00:00Z").content).text
    long_ago = made.created_at - timedelta(days=90)
    Operation.objects.filter(pk=made.pk).update(created_at=long_ago, ended_at=long_ago)
    assert words not in Page(victor.get(address).content).text
