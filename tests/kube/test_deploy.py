"""deploy/ as people apply it: rendered by kubectl, taken by a real API server without storing anything."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.clusters.kubernetes.access import access_for
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.install import documents, object_path
from controlplane.embedded.processes import ROOT
from tests.contracts.kube import prepare
from tests.kube.installed import BASE
from tests.plugins.kube import KubeApi

ROUTER = ROOT / "deploy" / "router"
PROCESSES = {"hearth-web", "hearth-worker", "hearth-beat", "hearth-watcher", "hearth-migrate"}
ACCOUNTS = {"hearth-worker": "hearth", "hearth-watcher": "hearth", "hearth-web": "hearth-web"}
DIGEST = "sha256:" + "5" * 64
OVERLAY = """
resources: [BASE]
images: [{name: hearth, newName: registry.example/hearth, digest: "DIGEST"}]
replacements:
- source: {kind: Deployment, name: hearth-worker, fieldPath: spec.template.spec.containers.0.image}
  targets: [{select: {kind: ConfigMap, name: hearth-settings}, fieldPaths: [data.HEARTH_AGENT_IMAGE]}]
"""
ROUTED = PROCESSES | {"hearth-router"}


def rendered(folder: Path) -> list[dict[str, Any]]:
    kubectl = shutil.which("kubectl", path=str(ROOT / ".venv" / "bin")) or "kubectl"
    argv = [kubectl, "kustomize", "--load-restrictor", "LoadRestrictionsNone", str(folder)]
    made = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=200)
    return [document for document in yaml.safe_load_all(made.stdout) if document]


def key(document: dict[str, Any]) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def workloads(*folders: Path) -> dict[str, dict[str, Any]]:
    found = [item for folder in folders for item in documents(folder) if item["kind"] in ("Deployment", "Job")]
    return {item["metadata"]["name"]: item for item in found}


def pod_of(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = workloads(BASE, ROUTER)[name]["spec"]["template"]["spec"]
    return pod


def containers(name: str) -> list[dict[str, Any]]:
    return [*pod_of(name).get("initContainers", []), *pod_of(name)["containers"]]


def test_it_renders_every_file_of_the_base() -> None:
    assert sorted(map(key, rendered(BASE))) == sorted(map(key, documents(BASE)))


def test_an_overlay_names_one_image_for_every_process_and_the_agents(tmp_path: Path) -> None:
    # The runbook's overlay, with routers.
    base, router = (os.path.relpath(folder, tmp_path.resolve()) for folder in (BASE, ROUTER))
    overlay = OVERLAY.replace("BASE", base).replace("DIGEST", DIGEST) + f"components: [{router}]\n"
    (tmp_path / "kustomization.yaml").write_text(overlay)
    found = rendered(tmp_path)
    assert sorted(map(key, found)) == sorted(map(key, [*documents(BASE), *documents(ROUTER)]))
    images = set(re.findall(r'"image": "([^"]+)"', json.dumps(found)))
    settings = next(item for item in found if key(item)[2] == "hearth-settings")
    assert images == {f"registry.example/hearth@{DIGEST}"} == {settings["data"]["HEARTH_AGENT_IMAGE"]}


def test_a_real_api_server_takes_everything(kube_api: KubeApi) -> None:
    client = KubeClient(lambda: access_for(str(kube_api.kubeconfig)))
    prepare(client)  # a dry run stores no definition and no namespace, and what follows needs both
    plurals: dict[str, dict[str, tuple[str, bool]]] = {}
    for document in [*documents(BASE), *documents(ROUTER)]:
        path = object_path(client, document, plurals)
        stored = client.apply(path, document, manager="test", dry_run=True)
        # What the server does not know it drops in silence.
        assert missing(document, stored) == [], path


def missing(wanted: Any, stored: Any, at: str = "") -> list[str]:
    """Paths of what was sent and did not arrive. Quantities and protocols may be spelt differently."""
    if isinstance(wanted, dict) and isinstance(stored, dict):
        lost = [f"{at}.{name}" for name in wanted if name not in stored and wanted[name] not in ({}, [], "")]
        both = [name for name in wanted if name in stored]
        return lost + [path for name in both for path in missing(wanted[name], stored[name], f"{at}.{name}")]
    if isinstance(wanted, list) and isinstance(stored, list):
        if len(wanted) > len(stored):
            return [at]
        pairs = zip(wanted, stored, strict=False)
        return [path for number, pair in enumerate(pairs) for path in missing(*pair, f"{at}.{number}")]
    return []


def test_it_runs_the_processes_of_the_program() -> None:
    assert (set(workloads(BASE)), set(workloads(ROUTER))) == (PROCESSES, {"hearth-router"})
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("worker", "beat", "watcher", "migrate"):
        [container] = pod_of(f"hearth-{name}")["containers"]
        assert container["command"] == compose[name]["command"], name


def test_it_sets_only_variables_that_settings_read() -> None:
    known = set(re.findall(r"""env(?:\.\w+)?\(\s*["']([A-Z_]+)["']""", (ROOT / "controlplane/settings.py").read_text()))
    settings = next(item for item in documents(BASE) if key(item)[2] == "hearth-settings")
    given = set(settings["data"])
    for name in PROCESSES:
        for container in containers(name):
            given |= {row["name"].removesuffix("_FILE") for row in container["env"] if row["name"].endswith("URL_FILE")}
            given |= {row["name"] for row in container["env"] if not row["name"].endswith("_FILE")}
    assert given <= known | {"HEARTH_HEARTBEAT_FILE"}


@pytest.mark.parametrize("name", sorted(ROUTED))
def test_it_gives_its_own_processes_no_power(name: str) -> None:
    pod = pod_of(name)
    assert (
        pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    assert not pod.get("hostNetwork") and not any("hostPath" in volume for volume in pod["volumes"])
    for container in containers(name):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]


@pytest.mark.parametrize("name", sorted(ROUTED))
def test_a_token_has_only_who_needs_one(name: str) -> None:
    pod = pod_of(name)
    if name in ACCOUNTS:
        assert pod["serviceAccountName"] == ACCOUNTS[name]
    else:
        assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod


@pytest.mark.parametrize("name", sorted(PROCESSES))
def test_secrets_are_files_by_reference(name: str) -> None:
    for container in containers(name):
        values = {row["name"]: row.get("value", "") for row in container["env"]}
        for variable in ("DATABASE_URL_FILE", "REDIS_URL_FILE", "SECRET_KEY_FILE"):
            assert values[variable].startswith("/run/secrets/hearth/")
        assert not {"DATABASE_URL", "REDIS_URL", "SECRET_KEY"} & set(values)
    assert not [item for item in documents(BASE) if item["kind"] == "Secret"]


@pytest.mark.parametrize("name", sorted(PROCESSES - {"hearth-migrate"}))
def test_whoever_hangs_is_started_again(name: str) -> None:
    [container] = pod_of(name)["containers"]
    assert "livenessProbe" in container
    assert pod_of(name)["initContainers"][0]["command"][-1] == "await_schema", "nobody runs before the migrations"


def test_a_router_knows_the_broker_and_nothing_else_and_serves_where_it_is_asked() -> None:
    pod = pod_of("hearth-router")
    [container] = pod["containers"]
    assert container["env"] == [{"name": "REDIS_URL_FILE", "value": "/run/secrets/hearth/redis-url"}]
    secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert [[item["key"] for item in secret["items"]] for secret in secrets] == [["redis-url"]]
    options = dict(word[2:].split("=") for word in container["command"] if "=" in word)
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert (options["port"], options["metrics-port"]) == (ports["http"], ports["metrics"])
    assert {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")} == {
        "startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz",
    }  # fmt: skip
    drains = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert drains + float(options["grace-seconds"]) < pod["terminationGracePeriodSeconds"], "whoever streams is let end"
    known = subprocess.run(
        [sys.executable, "-m", "routing.dataplane", "--help"], capture_output=True, text=True, check=True, timeout=120
    )
    assert all(f"--{name}" in known.stdout for name in options)
