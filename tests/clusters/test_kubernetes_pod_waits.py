"""Why a pod waits: one word of a closed set, and the cluster's own words without what somebody could log in with."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.clusters.documents import WaitReason
from controlplane.clusters.kubernetes.pod_waits import MESSAGE_LENGTH, wait_of
from controlplane.clusters.kubernetes.said import said


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **status: Any) -> dict[str, Any]:
    made = {"phase": "Pending", "initContainerStatuses": list(init), "containerStatuses": list(containers), **status}
    return {"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n"}, "status": made}


def waiting(reason: str | None, message: str = "", name: str = "server", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}, **more}


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("ErrImagePull", WaitReason.IMAGE_PULL_FAILED),
        ("ImagePullBackOff", WaitReason.IMAGE_PULL_FAILED),
        ("InvalidImageName", WaitReason.IMAGE_PULL_FAILED),
        ("CreateContainerConfigError", WaitReason.CONFIGURATION_ERROR),
        ("CreateContainerError", WaitReason.CONFIGURATION_ERROR),
        ("CrashLoopBackOff", WaitReason.CRASHING),
        ("RunContainerError", WaitReason.START_FAILED),
        ("SomethingNew", WaitReason.START_FAILED),
    ],
)
def test_every_word_of_a_kubelet_has_a_reason(word: str, reason: WaitReason) -> None:
    assert wait_of(pod(waiting(word, "as it is"))) == (reason, f"server: {word}: as it is")


@pytest.mark.parametrize(
    "odd",
    [
        pod(),
        pod(waiting("ContainerCreating")),
        pod(waiting("PodInitializing")),
        pod(waiting(None)),
        pod({"name": "server", "state": {"running": {}}}),
        pod({"name": "server", "state": None}),
        pod(waiting("ErrImagePull"), phase="Failed"),
        {**pod(waiting("ErrImagePull")), "metadata": {"deletionTimestamp": "2026-11-30T08:00:00Z"}},
        {"metadata": {}, "spec": None, "status": None},
        {"metadata": {}, "spec": {"nodeName": "n"}, "status": {"containerStatuses": None}},
    ],
)
def test_one_that_is_on_its_way_or_ends_waits_for_nothing(odd: dict[str, Any]) -> None:
    assert wait_of(odd) == ("", "")


def test_a_container_that_comes_first_holds_the_others_up() -> None:
    ensure = waiting("CreateContainerConfigError", 'secret "reader" not found', name="ensure")
    found = wait_of(pod(waiting("PodInitializing"), init=(ensure,)))
    words = 'ensure: CreateContainerConfigError: secret "reader" not found'
    assert found == (WaitReason.CONFIGURATION_ERROR, words)


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ({"exitCode": 137, "reason": "OOMKilled"}, ": it ended with exit code 137 (OOMKilled)"),
        ({"exitCode": 1, "reason": "Error", "message": "prompt: hello"}, ": it ended with exit code 1"),
        ({}, ""),
    ],
)
def test_one_that_crashes_says_how_it_ended_and_nothing_of_its_log(ended: dict[str, Any], words: str) -> None:
    back = "back-off 40s restarting failed container=server"
    crashed = waiting("CrashLoopBackOff", back, lastState={"terminated": ended})
    assert wait_of(pod(crashed)) == (WaitReason.CRASHING, f"server: CrashLoopBackOff{words}: {back}")


@pytest.mark.parametrize(
    ("name", "left", "told"),
    [
        ("ensure", '{"found": "failed", "message": "S3 refused token=5eed of it."}', ": S3 refused token=… of it"),
        ("ensure", '{"found": "failed", "message": ""}', ""),
        ("ensure", '{"message": "of somebody else"}', ""),
        ("ensure", "2026-11-30 a line of a log", ""),
        ("ensure", "[1]", ""),
        ("server", '{"found": "failed", "message": "prompt: hello"}', ""),
    ],
)
def test_the_ensure_step_s_own_last_sentence_is_said(name: str, left: str, told: str) -> None:
    crashed = waiting("CrashLoopBackOff", "back-off", name, lastState={"terminated": {"exitCode": 1, "message": left}})
    words = f"{name}: CrashLoopBackOff: it ended with exit code 1{told}: back-off"
    assert wait_of(pod(init=(crashed,))) == (WaitReason.CRASHING, words)


@pytest.mark.parametrize(
    ("changes", "crashes"),
    [
        ({}, True),
        ({"state": {"waiting": {"reason": "PodInitializing"}}}, True),
        ({"state": {"terminated": {"exitCode": 1}}, "lastState": {}}, True),
        ({"ready": True}, False),
        ({"restartCount": 0}, False),
        ({"lastState": {"terminated": {"exitCode": 0}}}, False),
        ({"state": {"terminated": {"exitCode": 0}}}, False),
        ({"lastState": None}, False),
        ({"name": "warm-up"}, False),
    ],
)
def test_it_still_crashes_between_two_restarts(changes: dict[str, Any], crashes: bool) -> None:
    one = {"name": "server", "ready": False, "restartCount": 2, "state": {"running": {}}}
    again = {**one, "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}, **changes}
    told = (WaitReason.CRASHING, "server: it ended with exit code 1; it is started again")
    for found in (pod(again), pod(init=(again,))):
        assert wait_of(found, excused="warm-up") == (told if crashes else ("", ""))


PING = {"httpGet": {"path": "/ping", "port": 8080}}
SINCE = {"running": {"startedAt": "2026-11-30T17:24:10Z"}}
RUNS = "it runs since 2026-11-30 17:24:10 UTC"
READY = ", and its readiness probe has not succeeded yet"


@pytest.mark.parametrize(
    ("changes", "probes", "told"),
    [
        ({}, {"readinessProbe": PING}, f"{RUNS}{READY}: GET /ping on port 8080"),
        ({"state": {"running": {}}}, {"readinessProbe": {"tcpSocket": {"port": "http"}}},
         "it runs, and its readiness probe has not succeeded yet: a connection to port http"),
        ({"started": False, "state": {"running": {}}}, {"readinessProbe": PING, "startupProbe": {"exec": {}}},
         "it runs, and its startup probe has not succeeded yet: a command in the container"),
        ({"started": True, "state": {"running": {}}}, {"readinessProbe": PING, "startupProbe": {"exec": {}}},
         "it runs, and its readiness probe has not succeeded yet: GET /ping on port 8080"),
        ({"ready": True}, {"readinessProbe": PING}, ""),
        ({}, {}, ""),
        ({}, {"livenessProbe": PING}, ""),
        ({"name": "warm-up"}, {"readinessProbe": PING}, ""),
    ],
)  # fmt: skip
def test_one_that_runs_and_is_not_ready_says_which_probe_it_fails(
    changes: dict[str, Any], probes: dict[str, Any], told: str
) -> None:
    one = {"name": "server", "ready": False, "started": True, "state": SINCE, **changes}
    found = pod(one, phase="Running")
    found["spec"] = {"nodeName": "n", "containers": [{"name": one["name"], **probes}]}
    assert wait_of(found, excused="warm-up") == (("NotAnswering", f"server: {told}") if told else ("", ""))
    crashed = {"name": "server", "ready": False, "restartCount": 1, "state": SINCE}
    found["status"]["containerStatuses"] = [{**crashed, "lastState": {"terminated": {"exitCode": 1}}}]
    assert wait_of(found, excused="warm-up")[0] == "Crashing", "that it crashes says more"


def test_a_warm_up_that_ended_is_no_crash_but_needs_its_image_all_the_same() -> None:
    assert wait_of(pod(waiting("CrashLoopBackOff", name="warm-up")), excused="warm-up") == ("", "")
    assert wait_of(pod(waiting("ErrImagePull", name="warm-up")), excused="warm-up")[0] == "ImagePullFailed"
    both = pod(waiting("CrashLoopBackOff", name="warm-up"), waiting("CrashLoopBackOff"))
    assert wait_of(both, excused="warm-up")[1] == "server: CrashLoopBackOff"


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (None, ("", "")),
        ({"status": "True"}, ("", "")),
        (
            {"status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available:\n 3 Too many pods."},
            ("Unschedulable", "0/3 nodes are available: 3 Too many pods."),
        ),
        ({"status": "False", "reason": "SchedulingGated"}, ("Unschedulable", "SchedulingGated")),
    ],
)
def test_one_without_a_node_says_what_the_scheduler_says(condition: Any, found: tuple[str, str]) -> None:
    conditions = [{"type": "PodScheduled", **condition}] if condition else None
    nowhere = pod(conditions=conditions)
    assert wait_of({**nowhere, "spec": {}}) == found
    assert wait_of(nowhere) == ("", ""), "placed it waits for none"


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("GET https://blobs.example/a?X-Amz-Signature=5eed: 403", "GET https://blobs.example/a?… 403"),
        ("Get HTTPS://me:hunter2@registry.example/v2/: EOF", "Get HTTPS://…@registry.example/v2/: EOF"),
        ("authorization: Bearer eyJhbGciOi.x-y_z= refused", "authorization: Bearer … refused"),
        ("login with password=hunter2, again", "login with password=…, again"),
        ('{"token": "hf_abcdef", "x": 1}', '{"token": "…", "x": 1}'),
        ("HF_TOKEN=hf_abcdef is wrong", "HF_TOKEN=… is wrong"),
        ("aws_secret_access_key:AKIAX", "aws_secret_access_key:…"),
        ("a\x00\tb\r\n  c", "a b c"),
        (None, ""),
    ],
)
def test_what_is_said_has_no_credentials_in_it(told: str | None, shown: str) -> None:
    assert said(told, MESSAGE_LENGTH) == shown


@pytest.mark.parametrize(
    "told",
    [
        'secret "hub-token" not found',
        "couldn't find key token in Secret default/reader",
        "failed to fetch anonymous token: unexpected status 401",
        "pull registry.example/team/app@sha256:aa11: not found",
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    ],
)
def test_what_only_speaks_of_credentials_stays(told: str) -> None:
    assert said(told, MESSAGE_LENGTH) == told


def test_what_is_said_is_short_however_long_it_was_and_takes_no_time() -> None:
    long = said("token-" * 200_000, 500)
    assert len(long) == 500 and long.endswith("…")
    assert said("x" * 500, 500) == "x" * 500
    assert len(wait_of(pod(waiting("ErrImagePull", "y" * 9000)))[1]) == MESSAGE_LENGTH
