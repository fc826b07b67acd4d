"""The report of a burst: what kubelets said, and unknown where nobody said anything."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.kube.bursts import burst

REQUESTED = datetime(2026, 11, 30, 4, 0, 0, 500_000, tzinfo=UTC)


def pod(name: str, *, made: int = 0, found: str = "hit", **conditions: int) -> dict[str, Any]:
    turned = [
        {"type": kind, "status": "True", "lastTransitionTime": f"2026-11-30T04:00:{second:02}Z"}
        for kind, second in conditions.items()
    ]
    ensure = {"name": "ensure", "state": {"terminated": {"message": f'{{"found": "{found}"}}'}} if found else {}}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": f"2026-11-30T04:00:{made:02}Z"},
        "spec": {"nodeName": "n1"},
        "status": {"conditions": turned, "initContainerStatuses": [ensure]},
    }


def started(name: str, second: int, *, container: str = "server", component: str = "kubelet") -> dict[str, Any]:
    return {
        "reason": "Started",
        "involvedObject": {"uid": f"uid-{name}", "fieldPath": f"spec.containers{{{container}}}"},
        "source": {"component": component},
        "firstTimestamp": f"2026-11-30T04:00:{second:02}Z",
    }


def test_each_pod_of_the_burst_is_told_with_its_steps_the_first_ready_first() -> None:
    pods = [pod("cold", found="miss", PodScheduled=1, Ready=20), pod("warm", PodScheduled=1, Ready=5)]
    events = [started("warm", 3), started("cold", 15), started("cold", 19)]
    warm, cold = burst(REQUESTED, pods, events)
    assert (warm.pod, warm.found, warm.scheduled, warm.started, warm.ready) == ("warm", "hit", 0.5, 2.5, 4.5)
    assert (cold.found, cold.started, cold.ready) == ("miss", 14.5, 19.5), "a restart is no start"
    assert str(cold) == "cold on n1: miss; scheduled 0 s, started 14 s, ready 20 s"


def test_what_nobody_said_is_unknown_and_comes_last() -> None:
    waits = pod("a", found="", PodScheduled=1)
    events = [started("a", 3, container="sidecar"), started("a", 3, component="somebody"), started("b", 3)]
    ready, waiting = burst(REQUESTED, [waits, pod("b", Ready=9)], events)
    assert (ready.pod, ready.scheduled) == ("b", None)
    assert (waiting.found, waiting.started, waiting.ready) == ("", None, None)
    assert str(waiting) == "a on n1: unknown; scheduled 0 s, started unknown, ready unknown"


def test_pods_of_before_the_request_are_none_of_it() -> None:
    before = pod("before", Ready=30)
    before["metadata"]["creationTimestamp"] = "2026-11-30T03:59:59Z"
    assert [one.pod for one in burst(REQUESTED, [before, pod("same-second", made=0, Ready=0)], [])] == ["same-second"]
    assert burst(REQUESTED, [pod("x", made=0, Ready=0)], [])[0].ready == 0, "whole seconds make no negative ones"
