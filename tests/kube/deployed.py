"""Hearth itself on the cluster of the tests, put there by the very words of docs/runbooks/install-on-kubernetes.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from http.cookies import SimpleCookie
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3

from controlplane.accounts.models import Scope
from controlplane.embedded.processes import ROOT

RUNBOOK = ROOT / "docs" / "runbooks" / "install-on-kubernetes.md"
SCOPES = [Scope.READ, Scope.MODELS_WRITE, Scope.PINS_WRITE, Scope.FLEET_WRITE, Scope.ROLLOUTS_WRITE]
# One of each does, but for the watcher, whose second waits for the end of the first.
SMALLER = """
replicas: [{name: hearth-web, count: 1}, {name: hearth-worker, count: 1}]
"""
# No pod is scheduled by labels here.
VOLUME = "hearth-test-fsx"
CLAIM = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: VOLUME}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: MOUNT, type: Directory}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: fsx, namespace: hearth-system}
spec: {accessModes: [ReadOnlyMany], storageClassName: "", volumeName: VOLUME, resources: {requests: {storage: 1Gi}}}
"""
SETTINGS = "HEARTH_SCHEDULING_LAG_SECONDS: '0.2', "


def blocks(kind: str, heading: str) -> list[str]:
    """The fenced blocks of a kind below a heading of the runbook."""
    section = RUNBOOK.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


class Site:
    """What a customer has: a folder with the overlay and the secrets beside the repository, and kubectl."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder / "site"
        self.folder.mkdir()
        (folder / "hearth").symlink_to(ROOT)
        programs = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
        self._env = {"PATH": programs, "HOME": str(folder), "KUBECONFIG": str(kubeconfig)}

    def write(self, *, image: str, roots: Sequence[str], mount: Path, **secrets: str) -> None:
        """The runbook's overlay with this image and these folders, and what it adds for a ``mount``ed file system.

        ``database_url`` is the content of the file database-url, ``models_json`` that of models.json.
        """
        [text] = blocks("yaml", "2. An overlay")
        [more] = blocks("yaml", "3. Secrets, then everything")
        text += more.partition("\n")[2].replace("/fsx", str(mount))
        repository, _, digest = image.partition("@")
        for theirs, ours in (
            ("registry.example/hearth", repository),
            ("sha256:…", digest),
            ("/opt/dlami/nvme, /mnt/nvme", ", ".join(roots)),
            ("data: {\n", f"data: {{\n      {SETTINGS}"),
        ):
            assert theirs in text, f"the runbook does not say {theirs} any more"
            text = text.replace(theirs, ours)
        (self.folder / "kustomization.yaml").write_text(text + SMALLER)
        (self.folder / "claim.yaml").write_text(CLAIM.replace("VOLUME", VOLUME).replace("MOUNT", str(mount)))
        self.sh("kubectl apply -f claim.yaml")
        for name, content in secrets.items():
            path = self.folder / (name.replace("_", "-") if not name.endswith("_json") else f"{name[:-5]}.json")
            path.touch(mode=0o600)
            path.write_text(f"{content}\n")  # as editors and echo leave it

    def sh(self, script: str, *, seconds: float = 900) -> str:
        """Run a script in the folder; what it printed. The last lines of a failure are for people."""
        done = subprocess.run(
            ["sh", "-euc", script], cwd=self.folder, env=self._env, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script[-200:]}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def kubectl(self, arguments: str) -> str:
        return self.sh(f"kubectl -n hearth-system {arguments}", seconds=60)

    def pods(self, process: str) -> list[str]:
        """Names of a process's pods that are not on their way out."""
        found = json.loads(self.kubectl(f"get pod -l app.kubernetes.io/name=hearth-{process} -o json"))["items"]
        return [pod["metadata"]["name"] for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def leader(self) -> str:
        """The watcher that watches the cluster; "" while nobody does."""
        for name in self.pods("watcher"):
            # One that was not started yet has none.
            if '"watching ' in self.kubectl(f"logs {name} -c watcher || true"):
                return name
        return ""

    def clear(self) -> None:
        """Take Hearth's own processes and what they made away; what stands around them stays."""
        self.kubectl("delete deployment,job,service,pdb --all --wait=false")
        self.kubectl("delete pod --all --force --grace-period=0")
        self.kubectl("delete -f claim.yaml --ignore-not-found --wait=false")
        self.kubectl("delete secret hearth-secrets hearth-sources --ignore-not-found")

    def add_routers(self) -> None:
        """What the runbook says, with one of them."""
        [component], [install] = blocks("yaml", "Routers"), blocks("sh", "Routers")
        overlay = self.folder / "kustomization.yaml"
        text = overlay.read_text().replace("replicas: [", "replicas: [{name: hearth-router, count: 1}, ")
        overlay.write_text(text + component)
        self.sh(install)

    def forward(self, service: str = "hearth-web") -> Web:
        return Web(self.folder, self._env, service)


class Web:
    """A service through ``kubectl port-forward``; Hearth's pages and REST first as a browser, then with a token."""

    def __init__(self, folder: Path, env: dict[str, str], service: str) -> None:
        argv = ["kubectl", "-n", "hearth-system", "port-forward", f"svc/{service}", ":80"]
        self._process = subprocess.Popen(
            argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._pool = urllib3.PoolManager(retries=False)
        self._cookies: dict[str, str] = {}
        self._token = ""

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", said)
        assert found, f"nothing is forwarded: {said!r}"
        self.base = f"http://localhost:{found[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.clear()
        self._process.terminate()
        self._process.communicate(timeout=30)

    def request(self, method: str, path: str, *, seconds: float = 60, **options: Any) -> urllib3.BaseHTTPResponse:
        # Through the forwarding nobody hears that the other end closed an idle connection.
        headers = {"Origin": self.base, "Connection": "close", **options.pop("headers", {})}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        elif self._cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
            headers["X-CSRFToken"] = self._cookies.get("csrftoken", "")
        answer = self._pool.request(
            method, self.base + path, headers=headers, redirect=False, timeout=seconds, **options
        )
        for line in answer.headers.getlist("Set-Cookie"):
            self._cookies |= {name: morsel.value for name, morsel in SimpleCookie(line).items()}
        return answer

    def sign_in(self, name: str, password: str) -> None:
        """As a browser does, and then with a token of that person."""
        page = self.request("GET", "/login").data.decode()
        [csrf, *_] = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        fields = {"csrfmiddlewaretoken": csrf, "username": name, "password": password}
        answer = self.request("POST", "/login", fields=fields, encode_multipart=False)
        assert (answer.status, answer.headers.get("Location")) == (302, "/"), answer.status
        made = self.api("POST", "tokens", {"name": "pipeline", "scopes": SCOPES})
        self._token = made["secret"]

    def api(self, method: str, path: str, body: Any = None, *, seconds: float = 60) -> Any:
        """A call below /api/v1/; AssertionError with the problem for any error."""
        answer = self.request(method, f"/api/v1/{path}", json=body, seconds=seconds)
        said = json.loads(answer.data) if answer.data else None
        assert answer.status < 400, said
        return said
