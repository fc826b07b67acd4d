"""What people do to the machines of a running cluster, asked for from another process.

Only the process that runs the cluster may touch its nodes. So a request is a file in ``<cluster>/requests``, and the
owner answers it with another one: what happened, in a sentence. A request that nobody took is taken back.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.embedded.files import write_private
from controlplane.embedded.kube.api import ApiError
from controlplane.embedded.kube.cluster import KubeCluster
from controlplane.embedded.kube.node import MEBIBYTE, KubeNode
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import holder

POOL_LABEL = "hearth.dev/pool"
_PATIENCE = 120.0  # seconds: a new machine needs two, a slow one more
_SMALLEST = 8 * MEBIBYTE
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Request:
    """A verb for one node (``list`` has none), and what it needs."""

    verb: str
    node: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def ask(folder: Path, request: Request, *, within: float = _PATIENCE) -> str:
    """Let the owner of the cluster in ``folder`` do it; returns its answer. EmbeddedError when it refuses."""
    requests = folder.absolute() / "requests"
    if holder(folder) is None or not requests.is_dir():
        raise EmbeddedError(f"No Kubernetes cluster runs in {folder}. Start one: make run-kube")
    name = secrets.token_hex(6)
    asked, answered = requests / f"{name}.ask", requests / f"{name}.answer"
    write_private(asked, json.dumps({"verb": request.verb, "node": request.node, "details": dict(request.details)}))
    until = time.monotonic() + within
    try:
        while not answered.exists():
            if holder(folder) is None:
                raise EmbeddedError("The cluster was stopped before it answered.")
            if time.monotonic() > until:
                raise EmbeddedError(f"The cluster did not answer within {within:.0f} s. Its window shows what it does.")
            time.sleep(0.05)
        answer = json.loads(answered.read_text())
    finally:
        asked.unlink(missing_ok=True)
        answered.unlink(missing_ok=True)
    if not answer["done"]:
        raise EmbeddedError(answer["said"])
    return str(answer["said"])


class Machines:
    """The owner's side: answers requests, and keeps stopped machines stopped."""

    def __init__(self, cluster: KubeCluster) -> None:
        self._cluster = cluster
        self._requests = cluster.folder / "requests"
        self._stopped: set[str] = set()
        self._requests.mkdir(mode=0o700, exist_ok=True)
        for left in self._requests.iterdir():  # by an earlier owner
            left.unlink()

    def check(self) -> list[str]:
        """Restart what died by itself, answer every request; returns a sentence for each. Call it again and again."""
        off = [f"{name}-{program}" for name in self._stopped for program in ("kubelet", "containerd")]
        said = self._cluster.supervisor.check(but=off)
        for asked in sorted(self._requests.glob("*.ask")):
            try:
                found = json.loads(asked.read_text())
                request = Request(str(found["verb"]), str(found["node"]), dict(found["details"]))
                sentence = self.do(request)
                done = True
            except FileNotFoundError:
                continue  # taken back
            except (EmbeddedError, OSError) as error:
                sentence, done = str(error), False
            except (ValueError, LookupError, TypeError) as error:
                sentence, done = f"This is no request ({type(error).__name__}).", False
            asked.unlink(missing_ok=True)
            write_private(asked.with_suffix(".answer"), json.dumps({"done": done, "said": sentence}))
            if done and request.verb != "list":
                said.append(sentence)
        return said

    def do(self, request: Request) -> str:
        """Do it and say what was done. EmbeddedError when it cannot be done."""
        if request.verb == "list":
            return self._table()
        if request.verb == "add":
            return self._add(request.node, request.details)
        verb = _VERBS.get(request.verb)
        if verb is None:
            raise EmbeddedError(f"{request.verb} is nothing that can be done to a machine.")
        node = self._cluster.nodes.get(request.node)
        if node is None:
            there = ", ".join(sorted(self._cluster.nodes))
            raise EmbeddedError(f"There is no machine {request.node}. There are: {there}.")
        return verb(self, node, request.details)

    def _add(self, name: str, details: Mapping[str, Any]) -> str:
        if not _NAME.fullmatch(name):
            raise EmbeddedError("A machine's name has lower case letters, digits and dashes, at most 42.")
        size = int(details["bytes"])
        if size < _SMALLEST:
            raise EmbeddedError(f"A machine's store has at least {_SMALLEST // MEBIBYTE} MiB.")
        labels = {POOL_LABEL: str(details["pool"])} if details.get("pool") else {}
        try:
            self._cluster.add_node(name, labels=labels, disk_bytes=size)
        except ApiError as error:
            raise EmbeddedError(f"{name} did not become a node: {error}") from error
        return f"{name} joined with an empty store of {size // MEBIBYTE} MiB."

    def stop(self, node: KubeNode, details: Mapping[str, Any]) -> str:
        """Power off: kubelet, containerd and every pod end without a word; with ``pods`` kept only the first two."""
        self._on(node, wanted=True)
        node.kill(pods=not details.get("keep_pods"))
        self._stopped.add(node.name)
        what = "lost kubelet and containerd; its pods still run" if details.get("keep_pods") else "lost power"
        return f"{node.name} {what}. Bring it back with: python manage.py kube start {node.name}"

    def start(self, node: KubeNode, details: Mapping[str, Any]) -> str:
        """The same machine with the same store."""
        self._on(node, wanted=False)
        node.start()
        self._stopped.discard(node.name)
        return f"{node.name} is back with what was in its store."

    def replace(self, node: KubeNode, details: Mapping[str, Any]) -> str:
        """Another machine under the same name."""
        new = node.replace()
        self._stopped.discard(node.name)
        return f"{node.name} is another machine now ({new.uid}), with an empty store."

    def remove(self, node: KubeNode, details: Mapping[str, Any]) -> str:
        """For good."""
        node.remove()
        self._stopped.discard(node.name)
        return f"{node.name} is gone with its store."

    def fill(self, node: KubeNode, details: Mapping[str, Any]) -> str:
        """Something that is not Hearth's takes room; 0 bytes give it back."""
        size = int(details["bytes"])
        node.fill(size)
        return (
            f"{size // MEBIBYTE} MiB of {node.name}'s store are somebody else's now." if size else f"{node.name} freed."
        )

    def _on(self, node: KubeNode, *, wanted: bool) -> None:
        if (node.name not in self._stopped) is not wanted:
            raise EmbeddedError(f"{node.name} {'is dead already' if wanted else 'runs already'}.")

    def _table(self) -> str:
        lines = [("NAME", "POOL", "STATE", "STORE", "FREE", "ADDRESS")]
        for name, node in sorted(self._cluster.nodes.items()):
            size, free = node.store_bytes()
            lines.append(
                (
                    name,
                    node.options.labels.get(POOL_LABEL, "-"),
                    "stopped" if name in self._stopped else "runs",
                    f"{size // MEBIBYTE} MiB",
                    f"{free // MEBIBYTE} MiB",
                    node.address,
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
        return "\n".join("  ".join(cells).rstrip() for cells in padded)


_VERBS: Mapping[str, Callable[[Machines, KubeNode, Mapping[str, Any]], str]] = {
    "stop": Machines.stop,
    "start": Machines.start,
    "replace": Machines.replace,
    "remove": Machines.remove,
    "fill": Machines.fill,
}
