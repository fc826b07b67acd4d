"""What runs where agents run, and what Hearth may change of a Node, on a real API server with real tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from caches.domain.labels import ready_label
from caches.services.loop.taints import COLD_TAINT
from controlplane.clusters.gateway import PoolAgent, Refused
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.agent_workload import daemon_set
from controlplane.clusters.kubernetes.install import MANAGER, documents
from tests.contracts.observing import DIGEST
from tests.kube.guarded import SOURCES, Guarded, answered
from tests.kube.installed import (
    AGENT_PODS,
    BASE,
    POLICIES,
    around_hearth,
    install,
    policies_gone,
    policies_hold,
    remove_policies,
)
from tests.waiting import until

IMAGE = "registry.invalid/hearth@sha256:" + "0" * 64
FOLDER = "/opt/dlami/nvme"
ROOTS = f"{names.ROOTS}/{names.ROOTS_NAME}"
NOT_LISTED = "not among those of the CacheRoots hearth"
Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("path", ["/opt/dlami/nvme", "/opt/dlami/nvme/", "/opt/dlami/nvme/one"])
def test_hearth_places_agents_on_the_listed_folders(guarded: Guarded, path: str) -> None:
    hearth = guarded.hearth()
    hearth.apply_agent(PoolAgent("gpu", IMAGE, path))
    hearth.apply_agent(PoolAgent("gpu", IMAGE, path, node_selector={"pool": "gpu"}))
    hearth.delete_agent("gpu")


@pytest.mark.parametrize("path", ["/etc", "/opt", "/opt/dlami", "/opt/dlami/nvme-two", "/var/lib/kubelet", "/home"])
def test_hearth_places_no_agent_on_another_folder(guarded: Guarded, path: str) -> None:
    """Whoever made such a pool, and also with a stolen token of Hearth's."""
    with pytest.raises(Refused, match=f"{NOT_LISTED}: {path}"):
        guarded.hearth().apply_agent(PoolAgent("gpu", IMAGE, path))


def _folder(path: str) -> Change:
    return lambda pod: pod["volumes"].append({"name": "more", "hostPath": {"path": path}})


def _read(path: str, **mount: Any) -> Change:
    def change(pod: dict[str, Any]) -> None:
        _folder(path)(pod)
        pod["containers"][0]["volumeMounts"].append({"name": "more", "mountPath": path} | mount)

    return change


def _context(**fields: Any) -> Change:
    return lambda pod: pod["containers"][0]["securityContext"].update(fields)


def _init(pod: dict[str, Any]) -> None:
    pod["initContainers"] = [{"name": "more", "image": "none"}]


def _read_by_init(pod: dict[str, Any]) -> None:
    _read("/fsx", readOnly=True)(pod)
    pod["initContainers"] = [copy.deepcopy(pod["containers"][0])]
    pod["initContainers"][0]["name"] = "init"
    pod["initContainers"][0].pop("livenessProbe")  # which those that end may not have
    pod["initContainers"][0]["volumeMounts"][-1].pop("readOnly")


def _power(pod: dict[str, Any]) -> None:
    pod["containers"][0]["securityContext"]["capabilities"] = {"drop": ["ALL"], "add": ["SYS_ADMIN"]}


CASES: dict[str, tuple[Change, str]] = {
    "as Hearth makes it": (lambda pod: None, ""),
    "another folder": (_folder("/etc/kubernetes"), NOT_LISTED),
    "the root": (_folder("/"), NOT_LISTED),
    "a name that only begins like a root": (_folder("/opt/dlami/nvme2"), NOT_LISTED),
    "a source": (_read("/fsx", readOnly=True), ""),
    "a folder of a source": (_read("/fsx/llama", readOnly=True), ""),
    "a source that nobody mounts": (_folder("/fsx"), ""),
    "a folder that only begins like a source": (_read("/fsx2", readOnly=True), NOT_LISTED),
    "a source to be written": (_read("/fsx"), "agents write no folder"),
    "a source as if it were not to be read only": (_read("/fsx", readOnly=False), "agents write no folder"),
    "a source with what is mounted later": (
        _read("/fsx", readOnly=True, mountPropagation="HostToContainer"),
        "agents write no folder",
    ),
    "a source for an init container to write": (_read_by_init, "agents write no folder"),
    "the node's network": (lambda pod: pod.update(hostNetwork=True), "neither network"),
    "the node's processes": (lambda pod: pod.update(hostPID=True), "neither network"),
    "the node's memory": (lambda pod: pod.update(hostIPC=True), "neither network"),
    "privileged": (_context(privileged=True, allowPrivilegeEscalation=True), "no capability"),
    "a way to more rights": (_context(allowPrivilegeEscalation=True), "no capability"),
    "a writable root": (_context(readOnlyRootFilesystem=False), "no capability"),
    "a capability": (_power, "no capability"),
    "no word about it": (lambda pod: pod["containers"][0].pop("securityContext"), "no capability"),
    "an init container with power": (_init, "no capability"),
    "another account": (lambda pod: pod.update(serviceAccountName="default"), "nothing but agents"),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_else_runs_beside_agents(guarded: Guarded, case: str) -> None:
    """Not even for an administrator, in a pod or in the DaemonSet that would make it."""
    change, says = CASES[case]
    made = daemon_set(PoolAgent("gpu", IMAGE, "/opt/dlami/nvme"))
    template = made["spec"]["template"]
    change(template["spec"])
    made["metadata"]["name"] = "by-hand"
    # A DaemonSet restarts its pods, and pods of one that never gets a node do no harm.
    template["spec"]["nodeSelector"] = {"no": "node"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "by-hand-"}, "spec": template["spec"]}
    for path, document in ((names.DAEMON_SETS, made), (AGENT_PODS, pod)):
        if says:
            with pytest.raises(Refused, match=says):
                guarded.admin.create(path, copy.deepcopy(document), manager="kubectl-create")
        else:
            guarded.admin.create(path, document, manager="kubectl-create")


@pytest.mark.parametrize("paths", [None, [], ["/somewhere/else"]], ids=str)
def test_without_a_list_no_folder_is_allowed(guarded: Guarded, paths: list[str] | None) -> None:
    try:
        guarded.admin.delete(ROOTS)
        if paths is not None:
            listed(guarded, paths)
        until(lambda: placed(guarded, FOLDER) == "refused", "the list is another one")
        for path in (FOLDER, "/etc/kubernetes", "/etc"):
            assert placed(guarded, path) == "refused", path
    finally:
        listed(guarded, [FOLDER])
        until(lambda: placed(guarded, FOLDER) == "", "the list is known again")


def test_the_list_is_still_heard_of_after_a_removal_and_a_second_installation(guarded: Guarded) -> None:
    """An API server stops to follow parameters of a kind of its own when their last policy goes, and for ever."""
    objects = around_hearth(sources=SOURCES)
    remove_policies(guarded.admin, objects)
    policies_gone(guarded.admin)
    assert placed(guarded, "/etc") == ""
    install(guarded.admin, objects)
    policies_hold(guarded.admin)
    until(lambda: placed(guarded, FOLDER) == "", "the list is known")
    try:
        listed(guarded, ["/mnt/two"])
        until(lambda: (placed(guarded, "/mnt/two"), placed(guarded, FOLDER)) == ("", "refused"), "it is another one")
    finally:
        listed(guarded, [FOLDER])
        until(lambda: placed(guarded, FOLDER) == "", "the list is known again")


@pytest.mark.parametrize(
    "path", ["", "/", "//", "etc", "/etc/", "/opt//x", "/opt/../etc", "/..", "/opt/./x", "/opt/x y", "/opt/x\n"]
)
def test_the_list_takes_no_folder_that_would_mean_another(guarded: Guarded, path: str) -> None:
    with pytest.raises(Refused, match=r"spec\.paths"):
        listed(guarded, [FOLDER, path], dry_run=True)


@pytest.mark.parametrize("path", ["/x", "/mnt/.cache", "/mnt/..data/A_1-2.3", "/var/lib/a.b/c"])
def test_the_list_takes_plain_folders(guarded: Guarded, path: str) -> None:
    listed(guarded, [FOLDER, path], dry_run=True)


def test_there_is_one_list(guarded: Guarded) -> None:
    """A second one would look as if it said something."""
    document = {"apiVersion": names.API_VERSION, "kind": names.ROOTS_KIND, "metadata": {"name": "mine"}}
    with pytest.raises(Refused, match="only the list named hearth is read"):
        guarded.admin.create(names.ROOTS, {**document, "spec": {"paths": [FOLDER]}}, manager="test")


def test_a_list_that_is_not_known_yet_keeps_out_nothing_but_agents() -> None:
    """An API server that has just started may look for the kind for half a minute."""
    found = [item for item in documents(BASE) if item["kind"] in POLICIES]
    bindings = {item["spec"]["policyName"]: item["spec"] for item in found if item["kind"] == POLICIES[1]}
    decided = {
        item["metadata"]["name"]: (item["spec"]["failurePolicy"], bindings[item["metadata"]["name"]])
        for item in found
        if "paramKind" in item["spec"]
    }
    missing = {name: (policy, spec["paramRef"]["parameterNotFoundAction"]) for name, (policy, spec) in decided.items()}
    assert missing == {"hearth-agents": ("Fail", "Deny"), "hearth-consumers": ("Ignore", "Allow")}


def test_hearth_cannot_touch_the_list(guarded: Guarded) -> None:
    client = guarded.hearth().client
    for call in (
        lambda: client.get(ROOTS),
        lambda: client.delete(ROOTS),
        lambda: client.merge(ROOTS, {"spec": {"paths": ["/etc"]}}, manager="hearth"),
        lambda: client.create(names.ROOTS, guarded.admin.get(ROOTS), manager="hearth"),
    ):
        with pytest.raises(Refused, match="cacheroots"):
            call()


def listed(guarded: Guarded, paths: list[str], *, dry_run: bool = False) -> None:
    """What whoever installs Hearth says in an overlay."""
    document = {
        "apiVersion": names.API_VERSION, "kind": names.ROOTS_KIND, "metadata": {"name": names.ROOTS_NAME},
        "spec": {"paths": paths, "sourcePaths": SOURCES},
    }  # fmt: skip
    guarded.admin.apply(ROOTS, document, manager=MANAGER, dry_run=dry_run)


def test_hearth_places_agents_that_read_the_listed_sources(guarded: Guarded) -> None:
    hearth = guarded.hearth()
    hearth.apply_agent(PoolAgent("gpu", IMAGE, FOLDER, source_paths=("/fsx", "/fsx/llama")))
    with pytest.raises(Refused, match=f"{NOT_LISTED}: /home"):
        hearth.apply_agent(PoolAgent("gpu", IMAGE, FOLDER, source_paths=("/fsx", "/home")))
    hearth.delete_agent("gpu")


def placed(guarded: Guarded, path: str) -> str:
    """What the API server would answer to an agent with this folder."""
    document = daemon_set(PoolAgent("probe", IMAGE, path))
    target = f"{names.DAEMON_SETS}/{document['metadata']['name']}"
    return answered(lambda manager: guarded.admin.apply(target, document, manager=manager, dry_run=True))


def test_hearth_says_of_a_node_what_is_warm(guarded: Guarded) -> None:
    uid = guarded.contract.add_node("n-1")
    hearth, label = guarded.hearth(), ready_label(DIGEST)
    image = "inference.sagemaker.aws.amazon.com/image-cache-ready.x"
    hearth.set_node_labels("n-1", uid, {label: "true", image: "true"})
    hearth.set_node_taint("n-1", uid, COLD_TAINT, True)
    hearth.set_node_taint("n-1", uid, COLD_TAINT, False)
    hearth.set_node_labels("n-1", uid, {label: None, image: None})
    assert label not in guarded.admin.get(f"{names.NODES}/n-1")["metadata"]["labels"]


NODE_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a new label": ({"metadata": {"labels": {"pool": "mine"}}}, "no label"),
    "another value": ({"metadata": {"labels": {"hearth.dev/pool": "mine"}}}, "no label"),
    "a label less": ({"metadata": {"labels": {"hearth.dev/pool": None}}}, "no label"),
    "another label of the prefix's owner": (
        {"metadata": {"labels": {"inference.sagemaker.aws.amazon.com/other": "x"}}}, "no label",
    ),
    "a taint": ({"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}, "no taint"),
    "a taint beside its own": (
        {"spec": {"taints": [{"key": COLD_TAINT, "effect": "NoSchedule"}, {"key": "x", "effect": "NoSchedule"}]}},
        "no taint",
    ),
    "cordoned": ({"spec": {"unschedulable": True}}, "cordons"),
    "an annotation": ({"metadata": {"annotations": {"x": "y"}}}, "annotations"),
    "a finalizer": ({"metadata": {"finalizers": ["hearth.dev/x"]}}, "finalizers"),
}  # fmt: skip


@pytest.mark.parametrize("case", NODE_CASES)
def test_hearth_changes_nothing_else_of_a_node(guarded: Guarded, case: str) -> None:
    change, says = NODE_CASES[case]
    guarded.contract.add_node("n-1")
    with pytest.raises(Refused, match=says):
        guarded.hearth().client.merge(f"{names.NODES}/n-1", change, manager="hearth")


def test_others_change_nodes_as_ever(guarded: Guarded) -> None:
    guarded.contract.add_node("n-1")
    change = {"metadata": {"labels": {"pool": "x"}, "annotations": {"x": "y"}}, "spec": {"unschedulable": True}}
    guarded.admin.merge(f"{names.NODES}/n-1", change, manager="kubectl-edit")
