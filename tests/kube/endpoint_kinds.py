"""The endpoint kinds of deploy/endpoints on an API server, for as long as a test module needs them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controlplane.clusters.gateway import Throttled
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.install import DEFINITION, documents, install, object_path
from controlplane.embedded.processes import ROOT
from tests.kube.installed import POLICIES, answers, remove_policies
from tests.waiting import until

ENDPOINTS = ROOT / "deploy" / "endpoints"
EXAMPLES = ROOT / "deploy" / "examples"
MANIFESTS = (EXAMPLES / "inference-endpoint-config.yaml", EXAMPLES / "jumpstart-model.yaml")
API = "/apis/inference.sagemaker.aws.amazon.com/v1"


@contextmanager
def endpoint_kinds(client: KubeClient, *, policies: bool = False) -> Iterator[None]:
    """The definitions and rights are there, and gone again afterwards with every object of theirs."""
    objects = [item for item in documents(ENDPOINTS) if policies or item["kind"] not in POLICIES]
    install(client, objects)
    try:
        yield
    finally:
        remove_kinds(client)


def remove_kinds(client: KubeClient) -> None:
    """Everything of deploy/endpoints, and every object of those kinds; as if it had never been there."""
    objects = documents(ENDPOINTS)
    remove_policies(client, objects)
    for item in objects:
        if item["apiVersion"].startswith("rbac."):
            client.delete(object_path(client, item))
    until(lambda: not hearth_may(client), "nobody has a right to them any more")
    definitions = [item for item in objects if item["kind"] == DEFINITION]
    for item in definitions:
        release(client, item["spec"]["names"]["plural"])
        client.delete(object_path(client, item))
    for item in definitions:
        path = object_path(client, item)
        until(lambda path=path: not answers(client, path), "the definition is gone")  # type: ignore[misc]
    until(lambda: not answers(client, API), "the kinds are gone")


def release(client: KubeClient, plural: str) -> None:
    """Nobody is there any more who would take the finalizers away."""

    def released() -> bool:
        try:
            for item in client.get(f"{API}/{plural}")["items"]:
                path = f"{API}/namespaces/{item['metadata']['namespace']}/{plural}/{item['metadata']['name']}"
                client.merge(path, {"metadata": {"finalizers": None}}, manager="test")
        except Throttled:  # for moments, whenever a definition has come or gone
            return False
        return True

    until(released, f"no {plural} is held")


class Kubectl:
    """The real program, as the administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        found = shutil.which("kubectl", path=str(ROOT / ".venv" / "bin")) or shutil.which("kubectl")
        assert found is not None, "kubectl comes with the development requirements"
        self._argv = [found, "--kubeconfig", str(kubeconfig), "--request-timeout=120s"]

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        argv = [*self._argv, *arguments]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self(*arguments, "--output=json"))
        return found

    def table(self, *arguments: str) -> list[list[str]]:
        """The words of each line of ``kubectl get``."""
        return [line.split() for line in self("get", *arguments).splitlines()]


def hearth_may(client: KubeClient) -> bool:
    """Whether an account of Hearth's has a right to these kinds left: what a test of its rights would find too much."""
    group = API.split("/")[2]
    for account, verb in (("hearth", "list"), ("hearth-web", "patch")):
        asked = {"group": group, "version": "v1", "resource": names.CONFIGS, "verb": verb}
        document = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{account}", "resourceAttributes": asked,
            },
        }  # fmt: skip
        made = client.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", document, manager="test")
        if made["status"]["allowed"]:
            return True
    return False
