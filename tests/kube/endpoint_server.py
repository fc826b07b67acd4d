"""A model server as far as tests go, its image, and a client that never stops asking its Service."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from controlplane.embedded.kube.cluster import KubeCluster
from tests.kube.real import InstalledKube

# It is ready once its model is there, says what it serves (after ?seconds=), and ends when it is told to.
SERVER = """
import http.server, json, os, signal, time, urllib.parse
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
ROOT = "/opt/ml/model"
class Handler(http.server.BaseHTTPRequestHandler):
    wbufsize = -1  # an answer goes out whole or not at all
    def do_GET(self):
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        time.sleep(float(asked.get("seconds", ["0"])[0]))
        files = {name: os.path.getsize(f"{ROOT}/{name}") for name in sorted(os.listdir(ROOT)) if name[0] != "."}
        said = {"files": files, "pod": os.uname().nodename, "build": os.environ["BUILD"]}
        said = json.dumps(said).encode()
        self.send_response(200 if files else 503)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *_):
        pass
port = int(os.environ.get("SAGEMAKER_BIND_TO_PORT", "8000"))
print("INFO [api_server.py:1] vLLM API server version 0.8.5", flush=True)
print("INFO [model_runner.py:1] Starting to load model /opt/ml/model...", flush=True)
server = http.server.ThreadingHTTPServer(("", port), Handler)
print("INFO [loader.py:1] Loading weights took 0.25 seconds", flush=True)
print("INFO:     Application startup complete.", flush=True)
server.serve_forever()
"""
RECIPE = """
ARG BASE=none
FROM ${BASE}
COPY server.py /server.py
ENV BUILD=%s
ENTRYPOINT ["python", "/server.py"]
"""


def build(cluster: KubeCluster, folder: Path, number: str) -> str:
    """Build and push it; ``number`` is what it says it is. Its name by digest."""
    (folder / "server.py").write_text(SERVER)
    recipe = folder / f"Dockerfile.{number}"
    recipe.write_text(RECIPE % number)
    return cluster.build_image(folder, recipe, f"vllm/vllm-openai:{number}")


@pytest.fixture(scope="session")
def server_image(installed_kube: InstalledKube, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The server in the registry of the nodes, by digest."""
    return build(installed_kube.cluster, tmp_path_factory.mktemp("server"), "1")


class Requests:
    """Asks a Service through the API server, each time over a new connection, until it is told to stop.

    ``failed`` has a line for each request that got no answer of the server, ``without`` the times when the Deployment
    had no pod available.
    """

    def __init__(self, cluster: KubeCluster, service: str, deployment: str) -> None:
        self._cluster, self._service, self._deployment = cluster, service, deployment
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answers: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.without: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(120)

    def pods(self, since: int = 0) -> set[str]:
        """Who answered since the answer of that number."""
        return {answer["pod"] for answer in self.answers[since:]}

    def is_whole(self) -> bool:
        """Whether nothing failed so far; AssertionError with what did."""
        assert self.failed == [] and self.without == [], (self.failed[:5], self.without[:5])
        return True

    def _ask(self) -> None:
        while not self._stop.wait(0.15):
            try:
                self.answers.append(self._get(self._service))
            except (OSError, ValueError, http.client.HTTPException) as error:  # HTTPError among them
                self.failed.append(f"{time.strftime('%X')} {_told(error)}")
            if len(self.answers) % 4 == 0:
                self._look()

    def _look(self) -> None:
        try:
            status = self._get(self._deployment)["status"]
        except (OSError, ValueError) as error:
            self.without.append(f"{time.strftime('%X')} {_told(error)}")
            return
        if not status.get("availableReplicas"):
            self.without.append(f"{time.strftime('%X')} {status}")

    def _get(self, path: str) -> dict[str, Any]:
        url = self._cluster.server + path
        with urllib.request.urlopen(url, timeout=60, context=self._cluster.client.tls) as answer:
            said: dict[str, Any] = json.load(answer)
        return said


def _told(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"{error.code} {error.read(300).decode(errors='replace')}"
    return str(error)
