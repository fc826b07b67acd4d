"""Hearth's own processes on real nodes, installed as the runbook says, at work and through what happens to pods.

Images, probes, accounts, read-only roots and admission policies are the real ones of deploy/base.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import yaml
from redis import Redis

from caches.agent.store import name_of
from controlplane.clusters.kubernetes import names
from controlplane.embedded import ports
from controlplane.embedded.kube import cgroups
from controlplane.embedded.kube.node import KubeNode
from controlplane.embedded.seaweed import S3
from tests.kube.deployed import Site, Web, blocks
from tests.kube.endpoint_kinds import API, remove_kinds
from tests.kube.endpoint_server import server_image
from tests.kube.forward import Forward
from tests.kube.hearth import MIB, noise
from tests.kube.installed import answers
from tests.kube.real import InstalledKube, shared
from tests.kube.tutorial import AWAY, NODES_AND_STORE, SERVE, Tutorial
from tests.sources.conftest import Bucket, make_bucket
from tests.waiting import until

__all__ = ["server_image"]  # a fixture
pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(1800)]

DATABASE = "hearth_installed"
POOL = "serving"  # as the tutorial calls it
SIZE = 16 * MIB
ASKED = ("kinds", "object", "deployment")  # what a dry run asks of the API server


def at(url: str, place: str, path: str) -> str:
    """The same server at another place."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit((parts.scheme, f"{login}@{place}", path, "", ""))


@pytest.fixture
def inside(installed_kube: InstalledKube) -> Iterator[Callable[[str], str]]:
    """``inside(url)`` is host and port at which pods reach a server of this machine."""
    address = installed_kube.cluster.control.network.service_address
    with ExitStack() as stack:

        def let_in(url: str) -> str:
            parts = urlsplit(url)
            forward = stack.enter_context(Forward(address, (str(parts.hostname), int(parts.port or 0))))
            return urlsplit(forward.endpoint).netloc

        yield let_in


@pytest.fixture
def bucket(s3_server: S3) -> Bucket:
    return make_bucket(
        s3_server.endpoint, {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    )


@pytest.fixture
def site(
    installed_kube: InstalledKube, bucket: Bucket, valkey_url: str, inside: Callable[[str], str], tmp_path: Path
) -> Iterator[Site]:
    """An overlay and secrets, with a database and a broker of its own; nothing is installed yet."""
    kube, database = installed_kube.cluster, os.environ["DATABASE_URL"]
    made = Site(tmp_path, kube.kubeconfig)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {DATABASE}")
    made.write(
        image=installed_kube.image,
        roots=["/opt/dlami/nvme", str(kube.cache_path)],
        mount=shared(kube),
        database_url=at(database, inside(database), f"/{DATABASE}"),
        redis_url=at(valkey_url, inside(valkey_url), "/7"),
        secret_key=hashlib.sha256(os.urandom(32)).hexdigest(),
        metrics_token="sesame",
        models_json=json.dumps(bucket.secret),
    )
    client = installed_kube.client
    # What serves runs where accelerators are.
    gpu = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "1"}]
    client.patch(f"{names.NODES}/node-a/status", gpu, manager="test")
    yield made
    made.clear()
    client.delete(f"{names.DAEMON_SETS}/hearth-agent-{POOL}")
    for binding in ("hearth-endpoints", "hearth-services", "hearth-web-deployments"):
        client.delete(f"/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/{binding}")
    if answers(client, API):
        remove_kinds(client)
    client.merge(f"{names.NODES}/node-a", {"metadata": {"labels": {"example.com/pool": None}}}, manager="test")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
    with Redis.from_url(at(valkey_url, urlsplit(valkey_url).netloc.rpartition("@")[2], "/7")) as broker:
        broker.flushdb()


@pytest.fixture
def mount(installed_kube: InstalledKube) -> Iterator[Path]:
    """What is "mounted" on the nodes and in the worker, with one model."""
    folder = shared(installed_kube.cluster)
    (folder / "qwen").mkdir()
    for name, content in files("qwen").items():
        (folder / "qwen" / name).write_bytes(content)
    yield folder
    shutil.rmtree(folder / "qwen")


def files(model: str) -> dict[str, bytes]:
    return {f"model-{number}.safetensors": noise(f"installed/{model}/{number}", SIZE // 2) for number in range(2)}


def pinned(web: Web, model: str, connection: str, uri: str) -> str:
    """Register a model and pin it; the operation's id."""
    source = {"connection": connection, "uri": uri}
    succeeds(web, web.api("POST", f"models/{model}/versions", {"version": "v1", "source": source})["id"])
    wanted = {"model": model, "version": "v1", "pools": [f"prod.{POOL}"]}
    assert web.api("POST", "pins?dry_run=true", wanted)["refusals"] == []
    return str(web.api("POST", "pins", wanted)["id"])


def succeeds(web: Web, operation: str) -> None:
    def ended() -> bool:
        found = web.api("GET", f"operations/{operation}?wait=5")
        assert found["state"] not in ("Failed", "Canceled"), json.dumps(found)
        return bool(found["state"] == "Succeeded")

    until(ended, f"operation {operation} succeeds", seconds=240)


def tree(node: KubeNode, web: Web, model: str) -> Path:
    """Where the model is on a node's disk, if it is."""
    digest = web.api("GET", f"models/{model}/versions/v1")["digest"]
    found: Path = node.store / "hearth" / "weights" / name_of(digest)
    return found


def holds(tree: Path, model: str) -> bool:
    """Whether the very bytes are published there."""
    return {path.name: path.read_bytes() for path in tree.glob("*.safetensors")} == files(model)


def workers(nodes: list[KubeNode]) -> list[int]:
    """Processes of Hearth's workers, on whatever node they are."""
    found = []
    for pid in (pid for node in nodes for pid in cgroups.processes(node.cgroup)):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"controlplane.celery\0worker" in command:
            found.append(pid)
    return found


def serves_as_the_tutorial_says(tutorial: Tutorial, site: Site, web: Web) -> None:
    """What it promises: a cluster that answers, a pod that starts warm, a server that has its model. And routers, which
    lead there; and web, which may ask what another document would do."""
    _, made, _ = tutorial.walk(NODES_AND_STORE)
    cluster, pool, store = (json.loads(line) for line in made.splitlines() if line.startswith("{"))
    assert (cluster["error"], pool["name"]) == ("", f"prod.{POOL}"), "web has a token with which it can try the cluster"
    assert store["name"] == "models"
    *_, found, answer = tutorial.walk(SERVE)
    assert json.loads(found)["found"] == "hit"
    served = {name: len(content) for name, content in files("llama").items()}
    assert json.loads(answer)["files"] == served
    asks_before(web, (site.folder / "endpoint.yaml").read_text())
    site.add_routers()
    with site.forward("hearth-router") as router:
        path = "/endpoints/chat/health"
        until(lambda: router.request("GET", path).status == 200, "a router leads there", seconds=120)
        assert json.loads(router.request("GET", path).data)["files"] == served
    tutorial.walk(AWAY, slice(1))


def asks_before(web: Web, manifest: str) -> None:
    """A dry run in the very account of an installation's pages."""
    other, changed = yaml.safe_load(manifest), yaml.safe_load(manifest)
    other["metadata"]["name"] = "another"
    changed["spec"]["worker"]["image"] = "another:1"
    said = asked(web, other)
    assert {about: said[about][0] for about in ASKED} == dict.fromkeys(ASKED, "Fine"), said
    said = asked(web, changed)
    assert "1 of 1 replicas serve" in said["deployment"][1], said
    assert "kubectl-client-side-apply holds spec.worker.image" in said["object"][1], said


def asked(web: Web, document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """What the cluster said; asked again where it took its time."""
    said: dict[str, tuple[str, str]] = {}

    def answered() -> bool:
        body = {"cluster": "prod", "manifest": yaml.safe_dump(document)}
        found = web.api("POST", "endpoints?dry_run=true", body)["findings"]
        said.update({one["about"]: (one["answer"], one["said"]) for one in found})
        return not any("No answer within" in said[about][1] for about in ASKED)

    until(answered, "the cluster says something", seconds=120)
    return said


def test_it_is_installed_as_the_runbook_says_and_outlives_its_pods(
    installed_kube: InstalledKube,
    site: Site,
    bucket: Bucket,
    mount: Path,
    inside: Callable[[str], str],
    server_image: str,
) -> None:
    for name, content in files("llama").items():
        bucket.put(f"llama/{name}", content, ChecksumAlgorithm="SHA256")
    [install] = blocks("sh", "3. Secrets, then everything")
    said = site.sh(install.replace("--from-file=secret-key", "--from-file=secret-key --from-file=metrics-token"))
    password = re.findall(r"Password \(shown this once\): (\S+)", said)[-1]
    kube = installed_kube.cluster
    node = kube.nodes["node-a"]
    values = {
        "NODES": "node-a", "CACHE": str(kube.cache_path), "STORE": f"http://{inside(bucket.endpoint)}",
        "BUCKET": bucket.name, "MODEL": "llama", "SERVER": server_image, "PORT": str(ports.free_port()),
    }  # fmt: skip
    with site.forward() as web, Tutorial(site, values) as tutorial:
        page = web.request("GET", "/login")
        [style, *_] = re.findall(r'href="(/static/[^"]+\.css)"', page.data.decode())
        assert web.request("GET", style).status == 200, "the image has the static files"
        assert web.request("GET", "/login", headers={"Host": "elsewhere.example"}).status == 400
        assert web.request("GET", "/metrics").status == 401
        scraped = web.request("GET", "/metrics", headers={"Authorization": "Bearer sesame"})
        assert (scraped.status, b"hearth_" in scraped.data) == (200, True)
        web.sign_in("ada", password)

        serves_as_the_tutorial_says(tutorial, site, web)
        more = {"source_paths": [str(mount)], "status_interval_seconds": 1, "evict_grace_seconds": 0}
        web.api("PATCH", f"node-pools/prod.{POOL}", more)
        succeeds(web, pinned(web, "llama", "models", f"s3://{bucket.name}/llama"))
        trees = [tree(node, web, "llama")]
        assert holds(trees[0], "llama")
        assert web.api("POST", "clusters/prod/adopt?dry_run=true")["known"] == 1, "web may read what is published"

        # Both at once, in the middle of a pin: the other watcher takes over, the worker comes back and goes on.
        until(site.leader, "a watcher leads", seconds=120)
        leader = site.leader()
        web.api("POST", "source-connections", {"name": "fsx", "type": "Filesystem", "allowed": [str(mount)]})
        operation = pinned(web, "qwen", "fsx", f"file://{mount}/qwen")
        for pid in workers(list(kube.nodes.values())):
            os.kill(pid, signal.SIGKILL)
        site.kubectl(f"delete pod {leader} --force --grace-period=0")
        until(lambda: site.leader() not in ("", leader), "the other watcher leads", seconds=120)
        succeeds(web, operation)
        trees.append(tree(node, web, "qwen"))
        assert holds(trees[1], "qwen"), "by way of the file system that the worker and the node have mounted"

        for pin in web.api("GET", "pins")["items"]:
            web.api("DELETE", f"pins/{pin['id']}")
        token = (site.folder / "token").read_text()
        tutorial.walk(NODES_AND_STORE, slice(1))  # whatever became of the way to Hearth in between
        assert (site.folder / "token").read_text() == token, "one that is there is used"
        gone, _ = tutorial.walk(AWAY, slice(1, None))
        succeeds(web, json.loads(gone)["id"])
        assert not [tree for tree in trees if tree.exists()], "agents remove their files themselves"
        agents = site.sh("kubectl -n hearth-nodes get daemonset -o name")
        assert f"hearth-agent-{POOL}" not in agents
