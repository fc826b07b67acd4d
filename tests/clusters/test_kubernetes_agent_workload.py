"""The agents' DaemonSet gives an agent its folder and nothing else of the machine."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from caches.agent import alive
from controlplane.clusters.gateway import PoolAgent, Refused, Toleration
from controlplane.clusters.kubernetes import agent_workload
from controlplane.clusters.kubernetes.agent_workload import agents_selector, daemon_set, daemon_set_name, may_run
from controlplane.clusters.kubernetes.client import CONNECT_SECONDS, READ_SECONDS

AGENT = PoolAgent(
    pool="gpu-a",
    image="registry.example/hearth@sha256:" + "0" * 64,
    cache_path="/opt/dlami/nvme",
    node_selector={"hearth.dev/pool": "gpu-a"},
)


def pod(agent: PoolAgent = AGENT) -> dict[str, Any]:
    found: dict[str, Any] = daemon_set(agent)["spec"]["template"]["spec"]
    return found


def agent_container(agent: PoolAgent = AGENT) -> dict[str, Any]:
    (container,) = pod(agent)["containers"]
    found: dict[str, Any] = container
    return found


def test_it_sees_the_pools_folder_and_nothing_else_of_the_machine() -> None:
    host = [volume for volume in pod()["volumes"] if "hostPath" in volume]
    assert [volume["hostPath"]["path"] for volume in host] == ["/opt/dlami/nvme"]
    assert all("emptyDir" in volume for volume in pod()["volumes"] if volume not in host)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod().keys()


def test_it_reads_the_pools_sources_where_their_addresses_say_and_writes_none() -> None:
    agent = replace(AGENT, source_paths=("/fsx", "/mnt/share"))
    host = {volume["name"]: volume["hostPath"] for volume in pod(agent)["volumes"] if "hostPath" in volume}
    mounts = {mount["mountPath"]: mount for mount in agent_container(agent)["volumeMounts"]}
    for path in agent.source_paths:
        mount = mounts[path]
        assert (mount["readOnly"], mount["recursiveReadOnly"], "mountPropagation" in mount) == (
            True,
            "IfPossible",
            False,
        )
        assert host[mount["name"]] == {"path": path, "type": "Directory"}, "it is never made where it is missing"
    assert not mounts["/opt/dlami/nvme"].get("readOnly")
    assert len(host) == 3
    command = agent_container(agent)["command"]
    assert [command[at + 1] for at, word in enumerate(command) if word == "--source"] == ["/fsx", "/mnt/share"]
    with pytest.raises(Refused, match="/etc/"):
        daemon_set(replace(AGENT, source_paths=("/fsx", "/etc/../x")))


def test_it_has_no_power_over_the_machine() -> None:
    rules = agent_container()["securityContext"]
    assert rules["readOnlyRootFilesystem"] is True
    assert rules["allowPrivilegeEscalation"] is False
    assert rules["capabilities"] == {"drop": ["ALL"]}
    assert not rules.get("privileged")
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_it_starts_the_agent_of_the_node_it_is_on() -> None:
    container = agent_container()
    assert container["command"][:4] == ["python", "-m", "caches.agent", "--kubernetes"]
    assert container["command"][container["command"].index("--node") + 1] == "$(NODE_NAME)"
    assert container["command"][container["command"].index("--root") + 1] == "/opt/dlami/nvme"
    (name,) = [item for item in container["env"] if item["name"] == "NODE_NAME"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert "--server" not in container["command"]
    elsewhere = agent_container(replace(AGENT, server="https://10.0.0.1:6443"))
    assert elsewhere["command"][-2:] == ["--server", "https://10.0.0.1:6443"]


def test_it_goes_where_the_pool_is_whatever_taints_it() -> None:
    assert pod()["nodeSelector"] == {"kubernetes.io/os": "linux", "hearth.dev/pool": "gpu-a"}
    assert pod()["tolerations"] == [{"operator": "Exists"}]
    named = replace(AGENT, tolerations=(Toleration("gpu", "h100", "NoSchedule"), Toleration("hearth.dev/cold")))
    assert pod(named)["tolerations"] == [
        {"operator": "Equal", "key": "gpu", "value": "h100", "effect": "NoSchedule"},
        {"operator": "Exists", "key": "hearth.dev/cold"},
    ]
    assert pod()["priorityClassName"] == "system-node-critical"
    assert "priorityClassName" not in pod(replace(AGENT, priority_class=""))


def test_it_is_replaced_one_node_at_a_time_and_with_time_to_put_down_what_it_holds() -> None:
    strategy = daemon_set(AGENT)["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    assert pod()["terminationGracePeriodSeconds"] >= 30


def test_it_carries_the_labels_by_which_it_is_known() -> None:
    document = daemon_set(AGENT)
    labels = document["spec"]["template"]["metadata"]["labels"]
    assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["app.kubernetes.io/name"] == "hearth-agent"
    assert document["metadata"]["namespace"] == "hearth-nodes"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "//",
        "relative",
        "/opt/../etc",
        "/opt/./x",
        "/..",
        "/a b",
        "/a\n",
        "/a//b",
        "/a,/etc",
        "/$(X)",
        "/\u200b",
    ],
)
def test_it_is_given_no_folder_that_could_be_another(path: str) -> None:
    with pytest.raises(Refused):
        daemon_set(replace(AGENT, cache_path=path))


def test_it_minds_no_slash_at_the_end() -> None:
    assert daemon_set(replace(AGENT, cache_path="/opt/dlami/nvme/")) == daemon_set(AGENT)


@pytest.mark.parametrize(
    "pool",
    [
        "gpu-a",
        "GPU_A",
        "_",
        "x" * 63,
        "a-" * 30,
        "pool.with.dots",
        "Größe",
        "größe",
        "1",
        "-",
        "a" * 49,
        "a" * 50,
        "a" * 51,
    ],
)
def test_it_has_a_name_that_an_api_server_takes(pool: str) -> None:
    name = daemon_set_name(pool)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)
    value = daemon_set(replace(AGENT, pool=pool))["spec"]["selector"]["matchLabels"]["cache.hearth.dev/pool"]
    assert re.fullmatch(r"[a-z0-9A-Z]([-_.a-zA-Z0-9]{0,61}[a-z0-9A-Z])?", value)


def test_it_gives_no_two_pools_one_name() -> None:
    pools = ["gpu_a", "gpu-a", "GPU-A", "gpu.a", "x" * 60, "x" * 61, "x" * 62, "-", "_", "--", ""]
    assert len({daemon_set_name(pool) for pool in pools}) == len(pools)


def test_it_passes_on_what_a_private_registry_needs() -> None:
    assert "imagePullSecrets" not in pod()
    assert pod(replace(AGENT, image_pull_secrets=("reg",)))["imagePullSecrets"] == [{"name": "reg"}]


def test_it_is_asked_seldom_and_patiently_whether_it_still_comes_round() -> None:
    probe = agent_container()["livenessProbe"]
    assert probe["timeoutSeconds"] < probe["periodSeconds"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= 300, "a busy node is no illness"
    # Two slow requests with their repetitions are a round too.
    assert agent_workload.SILENT_SECONDS > 4 * (CONNECT_SECONDS + READ_SECONDS)
    (file,) = [item["value"] for item in agent_container()["env"] if item["name"] == alive.VARIABLE]
    assert file in probe["exec"]["command"][-1]
    assert "startupProbe" not in agent_container() and "readinessProbe" not in agent_container()


def test_its_sign_of_life_lies_on_no_disk() -> None:
    (mount,) = [item for item in agent_container()["volumeMounts"] if item["mountPath"] == agent_workload.ALIVE_FOLDER]
    (volume,) = [item for item in pod()["volumes"] if item["name"] == mount["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize(
    ("age", "healthy"),
    [(0, True), (170, True), (190, False), (86400, False), (-5, True), (-86400, False), (None, True)],
)
def test_its_probe_calls_an_agent_dead_whose_file_is_old_and_not_one_that_has_none(
    tmp_path: Path, age: float | None, healthy: bool
) -> None:
    file = tmp_path / "heartbeat"
    if age is not None:
        alive.Heartbeat(str(file), lambda: time.monotonic() - age)()
    assert (probe_exit(file) == 0) is healthy


def probe_exit(file: Path) -> int:
    command = [word.replace(agent_workload.HEARTBEAT_FILE, str(file)) for word in probe_command()]
    return subprocess.run([sys.executable, *command[1:]], check=False, capture_output=True, timeout=120).returncode


def probe_command() -> list[str]:
    command: list[str] = agent_container()["livenessProbe"]["exec"]["command"]
    assert command[0] == "python"
    return command


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"phase": "Running"}, True),
        ({"phase": "Succeeded"}, False),
        ({"phase": "Failed"}, False),
        ({"phase": "Running", "ends": "2026-11-30T12:00:30Z"}, True),
        ({"phase": "Running", "ends": "2026-11-30T11:59:40Z"}, True),
        ({"phase": "Running", "ends": "2026-11-30T11:59:20Z"}, False),
    ],
    ids=["new", "running", "ended", "failed", "is being ended", "is late", "on a dead node"],
)
def test_it_knows_which_agents_may_still_write(changes: dict[str, str], may: bool) -> None:
    """A deletion's time stamp is that of the end of its grace."""
    pod: dict[str, Any] = {"metadata": {}, "status": {"phase": changes.get("phase", "Pending")}}
    if "ends" in changes:
        pod["metadata"]["deletionTimestamp"] = changes["ends"]
    assert may_run(pod, datetime(2026, 11, 30, 12, tzinfo=UTC)) is may


def test_it_lists_its_own_pods_and_no_other_pools() -> None:
    labels = daemon_set(AGENT)["spec"]["template"]["metadata"]["labels"]
    wanted = dict(part.split("=", 1) for part in agents_selector(AGENT.pool).split(","))
    assert wanted.items() <= labels.items() and "cache.hearth.dev/pool" in wanted
