"""What holders' pods say of images: only a container that runs is proof, and every failure has a reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.clusters.documents import Reason
from controlplane.clusters.gateway import ImageHolder, ImagePresence
from controlplane.clusters.kubernetes.image_holders import holder_set
from controlplane.clusters.kubernetes.image_pods import FULL_LIST, SMALL, listed_digests, presence_of, pull_reason

NOW = datetime(2030, 1, 1, tzinfo=UTC)
REFERENCE = "registry.example/serving@sha256:" + "a" * 64
RUNNING = {"state": {"running": {}}, "imageID": REFERENCE}


def pod(container: dict[str, Any] | None = None, *, volume: bool = False, **status: Any) -> dict[str, Any]:
    template = holder_set(ImageHolder("gpu", REFERENCE, nodes=("n-1",), helper_image="h"), volume=volume)
    made: dict[str, Any] = {**template["spec"]["template"]}
    made["metadata"] = {**made["metadata"], "name": "h-1", "creationTimestamp": NOW.isoformat()}
    made["spec"] = {**made["spec"], "nodeName": "n-1"}
    made["status"] = {"phase": "Pending", **({"containerStatuses": [container]} if container else {}), **status}
    return made


def seen(item: dict[str, Any], *, node_age: timedelta = timedelta(hours=1)) -> ImagePresence:
    found = presence_of(item, "uid-1", NOW - node_age)
    assert found is not None
    assert (found.node_name, found.node_uid, found.reference) == ("n-1", "uid-1", REFERENCE)
    return found


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}, "imageID": ""}


@pytest.mark.parametrize("volume", [False, True])
def test_it_is_ready_when_the_container_runs(volume: bool) -> None:
    assert seen(pod(RUNNING, volume=volume)).ready is True


def test_it_believes_no_container_of_another_image() -> None:
    other = pod(RUNNING)
    other["spec"]["containers"] = [{"name": "holder", "image": "other"}]

    assert (seen(other).ready, seen(other).reason) == (False, Reason.INTERNAL)
    assert seen(pod({**RUNNING, "imageID": ""})).ready is False


@pytest.mark.parametrize("container", [None, waiting("ContainerCreating"), waiting("PodInitializing"), {"state": {}}])
def test_it_is_on_its_way_while_the_node_pulls(container: dict[str, Any] | None) -> None:
    found = seen(pod(container))

    assert (found.ready, found.reason, found.holdable, found.leaving) == (False, "", True, False)


# As kubelets and runtimes say it.
PULL = 'Back-off pulling image "r@sha256:a": ErrImagePull: rpc error: code = Unknown desc = failed to pull and unpack: '
FAILURES = [
    ("ImagePullBackOff", PULL + "failed to resolve reference: pull access denied, repository does not exist or may "
     "require authorization: server message: insufficient_scope: authorization failed", Reason.ACCESS_DENIED),
    ("ErrImagePull", PULL + "unexpected status from HEAD request: 401 Unauthorized", Reason.ACCESS_DENIED),
    ("ErrImagePull", PULL + "403 Forbidden", Reason.ACCESS_DENIED),
    ("ErrImagePull", PULL + "no basic auth credentials", Reason.ACCESS_DENIED),
    ("ErrImagePull", PULL + "r@sha256:a: not found", Reason.SOURCE_UNAVAILABLE),
    ("ErrImagePull", PULL + "dial tcp 192.0.2.1:443: connect: connection refused", Reason.SOURCE_UNAVAILABLE),
    ("ErrImagePull", PULL + "429 Too Many Requests", Reason.SOURCE_UNAVAILABLE),
    ("ImagePullBackOff", "", Reason.SOURCE_UNAVAILABLE),
    ("ErrImagePull", PULL + "write /var/lib/x: no space left on device", Reason.INSUFFICIENT_CAPACITY),
    ("ErrImagePull", PULL + "failed commit on ref: unexpected commit digest sha256:b, expected sha256:a",
     Reason.INTEGRITY_MISMATCH),
    ("ErrImagePull", PULL + "no match for platform in manifest: not found", Reason.INVALID_REQUEST),
    ("SignatureValidationFailed", "", Reason.INTEGRITY_MISMATCH),
    ("InvalidImageName", "couldn't parse", Reason.INVALID_REQUEST),
]  # fmt: skip


@pytest.mark.parametrize(("word", "message", "reason"), FAILURES)
def test_it_gives_a_failed_pull_a_reason_of_the_closed_set(word: str, message: str, reason: Reason) -> None:
    found = seen(pod(waiting(word, message)))

    assert (found.ready, found.reason, found.holdable) == (False, reason, True)
    assert found.message == (message or word)[:500]


def test_it_reads_numbers_as_answers_only_where_they_stand_alone() -> None:
    assert pull_reason("after 14032 ms: timeout, request 54401") is Reason.SOURCE_UNAVAILABLE


SIGNED = "https://blobs.example/a?X-Amz-Credential=AKIA&X-Amz-Signature=5eed401&Denied=403"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (f'Get "{SIGNED}": dial tcp: i/o timeout', Reason.SOURCE_UNAVAILABLE),
        (f'Get "{SIGNED}": 403 Forbidden', Reason.ACCESS_DENIED),
        (f"{SIGNED}", Reason.SOURCE_UNAVAILABLE),
        ("403: SignatureDoesNotMatch", Reason.ACCESS_DENIED),
        ("signature verification failed", Reason.INTEGRITY_MISMATCH),
        ("A signature was required, but no signature exists", Reason.INTEGRITY_MISMATCH),
    ],
)
def test_what_signs_an_address_is_neither_a_reason_nor_shown(words: str, reason: Reason) -> None:
    """Registries send nodes on to stores by addresses that let in whoever has them."""
    found = seen(pod(waiting("ErrImagePull", PULL + words)))
    assert found.reason == reason
    assert "5eed401" not in found.message and "AKIA" not in found.message
    assert ("blobs.example/a" in found.message) is ("blobs" in words)


def test_no_address_is_shown_with_its_query_whatever_went_wrong() -> None:
    ended = {"terminated": {"exitCode": 1, "message": f"fetch {SIGNED} failed"}}
    for made in (
        pod(waiting("CreateContainerError", SIGNED)),
        pod({"state": ended}),
        pod(phase="Failed", message=f"while pulling {SIGNED}"),
        pod(waiting("SignatureValidationFailed", SIGNED)),
    ):
        assert "5eed401" not in seen(made).message and "blobs.example/a" in seen(made).message


ENDED = {"terminated": {"exitCode": 127, "message": "sh: sleep: not found"}}


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (waiting("RunContainerError", 'exec: "/bin/sh": no such file or directory'), "no such file"),
        (waiting("CreateContainerError", "no command"), "no command"),
        ({**waiting("CrashLoopBackOff", "back-off"), "lastState": ENDED}, "sleep: not found"),
        ({"state": ENDED}, "sleep: not found"),
        ({"state": {"terminated": {"exitCode": 3}}}, "It ended with 3."),
    ],
)
def test_it_says_that_an_image_cannot_be_held_and_why(container: dict[str, Any], words: str) -> None:
    found = seen(pod(container))

    assert (found.ready, found.reason, found.holdable) == (False, Reason.INVALID_REQUEST, False)
    assert "cannot be held" in found.message and words in found.message


def end(exit_code: int, reason: str, *, seconds: int = 1) -> dict[str, Any]:
    times = {"startedAt": NOW.isoformat(), "finishedAt": (NOW + timedelta(seconds=seconds)).isoformat()}
    return {"terminated": {"exitCode": exit_code, "reason": reason, **times}}


LOST = end(255, "Unknown")  # as containerd says it of what was there before it was started again
AWAY = [LOST, end(137, "ContainerStatusUnknown"), end(137, "Error", seconds=3600), end(0, "Completed", seconds=60)]


@pytest.mark.parametrize("container", [{"state": ended} for ended in AWAY])
def test_a_holder_that_was_stopped_with_its_node_says_nothing_of_the_image(container: dict[str, Any]) -> None:
    for made in (container, {**waiting("CrashLoopBackOff", "back-off"), "lastState": container["state"]}):
        for volume in (False, True):
            found = seen(pod(made, volume=volume))
            assert (found.ready, found.reason, found.holdable, found.leaving) == (None, "", True, False)
            assert "cannot be held" not in found.message and "starts it again" in found.message
    assert seen(pod({**RUNNING, "lastState": container["state"]})).ready is True


@pytest.mark.parametrize("reason", ["Error", "Completed", "ContainerCannotRun", "StartError"])
def test_an_image_whose_command_ends_by_itself_cannot_be_held(reason: str) -> None:
    for made in ({"state": end(127, reason)}, {**waiting("CrashLoopBackOff"), "lastState": end(127, reason)}):
        found = seen(pod(made))
        assert (found.ready, found.reason, found.holdable) == (False, Reason.INVALID_REQUEST, False)
        assert "It ended with 127." in found.message


def test_what_a_start_is_refused_for_is_told_whatever_was_lost_before() -> None:
    found = seen(pod({**waiting("CreateContainerError", "no command"), "lastState": LOST}))
    assert (found.reason, found.holdable) == (Reason.INVALID_REQUEST, False)
    assert "no command" in found.message and "255" not in found.message


def test_a_node_that_does_not_mount_it_is_told_from_an_image_without_a_shell() -> None:
    found = seen(pod(waiting("CreateContainerError", "failed to mount"), volume=True))

    assert (found.reason, found.holdable) == (Reason.INVALID_REQUEST, False)
    assert (
        "does not mount it" in found.message and "failed to mount" in found.message and "/bin/sh" not in found.message
    )


def test_it_does_not_know_what_a_pod_of_an_earlier_node_is_worth() -> None:
    assert seen(pod(RUNNING), node_age=-timedelta(seconds=1)).ready is None
    assert seen(pod(RUNNING), node_age=timedelta(0)).ready is True


def test_it_counts_a_pod_that_goes_as_leaving() -> None:
    going = pod(RUNNING)
    going["metadata"]["deletionTimestamp"] = NOW.isoformat()

    assert (seen(going).ready, seen(going).leaving) == (False, True)


def test_it_says_why_a_node_takes_no_holder() -> None:
    full = pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "Too many pods."}])
    del full["spec"]["nodeName"]  # still said by the affinity that the controller gives it

    assert (seen(full).reason, "Too many pods." in seen(full).message) == (Reason.NODE_UNAVAILABLE, True)


def test_it_says_why_a_holder_was_put_out() -> None:
    found = seen(pod(phase="Failed", reason="Evicted", message="The node was low on resource: ephemeral-storage."))

    assert (found.ready, found.reason) == (False, Reason.NODE_UNAVAILABLE)
    assert "ephemeral-storage" in found.message


def test_it_leaves_out_what_is_no_holder() -> None:
    stranger = pod(RUNNING)
    stranger["metadata"] = {"name": "x"}
    assert presence_of(stranger, "u", NOW) is None
    nowhere = pod(RUNNING)
    del nowhere["spec"]["nodeName"], nowhere["spec"]["affinity"]
    assert presence_of(nowhere, "u", NOW) is None


def test_it_takes_a_full_list_for_no_answer() -> None:
    images: list[Any] = [{"names": [f"r/{n}@sha256:{n:064x}", f"r/{n}:latest"]} for n in range(FULL_LIST - 2)]
    found = listed_digests({"status": {"images": [*images, {"names": None}]}})

    assert found is not None and len(found) == FULL_LIST - 2 and f"sha256:{0:064x}" in found
    assert listed_digests({"status": {"images": [{"names": []}] * FULL_LIST}}) is None
    assert listed_digests({}) == frozenset()
    large: list[Any] = [{"names": [f"r/x@sha256:{1:064x}"], "sizeBytes": SMALL + 1}]
    assert listed_digests({"status": {"images": large}}) is None, "it names the largest first, and how many is its own"
    whole = listed_digests({"status": {"images": [*large, {"names": ["pause:1"], "sizeBytes": SMALL}]}})
    assert whole == frozenset({f"sha256:{1:064x}"})
