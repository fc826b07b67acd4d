"""An endpoint behind a router of its own process while it is scaled up, one of its servers is killed, and it is scaled
down: no request fails, and each pod gets requests from when it is ready until it is on its way out."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from unittest import mock

from django.db import connections

from controlplane.clusters.kubernetes import names
from controlplane.embedded.kube import cgroups
from routing.domain.expositions import Sample, read_samples
from routing.services.publishing import configuration_publish
from tests.kube.endpoint_walk import NAME, Walk
from tests.waiting import until

SLOW_SECONDS, SLOW_REQUESTS = 5.0, 12  # less than a pod drains
Json = dict[str, Any]


@dataclass
class Behind:
    """``added`` and ``left``: when each uid was first, and last ceased to be, in the router's document; seconds since
    the epoch. The router writes its document down once it is in force."""

    port: int
    page: str
    document: Path
    added: dict[str, float] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)

    def look(self) -> None:
        with suppress(OSError, ValueError, KeyError):
            document = json.loads(self.document.read_bytes())
            [endpoint] = [one for one in document["endpoints"] if one["name"] == NAME]
            now, there = time.time(), {one["id"] for one in endpoint["variants"][0]["instances"]}
            for uid in there - (self.added.keys() - self.left.keys()):
                self.added.setdefault(uid, now)
                self.left.pop(uid, None)
            for uid in self.added.keys() - self.left.keys() - there:
                self.left[uid] = now

    def members(self) -> set[str]:
        return self.added.keys() - self.left.keys()

    def in_flight(self) -> dict[str, float]:
        return {one.labels["instance"]: one.value for one in self._samples("hearth_routing_in_flight")}

    def waiting(self) -> float:
        """Requests that wait for an instance."""
        return sum(one.value for one in self._samples("hearth_routing_waiting"))

    def _samples(self, name: str) -> list[Sample]:
        with urllib.request.urlopen(self.page, timeout=60) as answer:
            return [one for one in read_samples(answer.read().decode()) if one.name == name]


@contextmanager
def router(folder: Path, redis_url: str) -> Iterator[Behind]:
    """A router that follows Redis, what the watcher's word for it sets off, and somebody who looks at its document."""
    document = folder / "router.json"
    command = [sys.executable, "-m", "routing.dataplane", "--follow", "--config", str(document)]
    wanted, stop = threading.Event(), threading.Event()

    def told(task: str) -> bool:
        assert task == "routing.publish"
        wanted.set()
        return True

    def publish() -> None:
        while not stop.is_set():
            if wanted.wait(0.2):
                wanted.clear()
                configuration_publish()
        connections.close_all()

    with (folder / "router.log").open("wb") as log, mock.patch("routing.sinks.publish", told):
        process = subprocess.Popen(
            [*command, "--port", "0", "--metrics-port", "0"],
            env={**os.environ, "REDIS_URL": redis_url}, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        ports = [int(process.stdout.readline().rpartition(" ")[2]) for _ in range(2)]
        made = Behind(ports[0], f"http://127.0.0.1:{ports[1]}/metrics", document)

        def look() -> None:
            while not stop.wait(0.02):
                made.look()

        threads = [threading.Thread(target=one) for one in (publish, look)]
        wanted.set()
        try:
            for thread in threads:
                thread.start()
            yield made
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
            process.terminate()
            process.communicate(timeout=60)


class Load:
    """Some clients that ask one after the other. ``answers``: when each was asked for, and which pod answered."""

    def __init__(self, port: int, clients: int = 3) -> None:
        self._port, self._stop = port, threading.Event()
        self._threads = [threading.Thread(target=self._go_on) for _ in range(clients)]
        self._slow: list[threading.Thread] = []
        self.answers: list[tuple[float, str]] = []
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in (*self._threads, *self._slow):
            thread.join(120)

    def slow(self, count: int) -> None:
        """Requests that take their time, all at once."""
        threads = [threading.Thread(target=self._ask, args=(f"/?seconds={SLOW_SECONDS}",)) for _ in range(count)]
        for thread in threads:
            thread.start()
        self._slow += threads

    def slow_ones_ended(self) -> bool:
        return not any(thread.is_alive() for thread in self._slow)

    def pods(self, since: float) -> set[str]:
        """Who answered what was asked for since then."""
        return {pod for asked, pod in self.answers if asked >= since}

    def _go_on(self) -> None:
        while not self._stop.wait(0.03):
            self._ask("/")

    def _ask(self, path: str) -> None:
        asked, client = time.time(), http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            client.request("GET", f"/endpoints/{NAME}{path}")
            answer = client.getresponse()
            said = answer.read()
            if answer.status != 200:
                self.failed.append(f"{time.strftime('%X')} {answer.status} {said[:300]!r}")
            else:
                self.answers.append((asked, json.loads(said)["pod"]))
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.failed.append(f"{time.strftime('%X')} {type(error).__name__} {error}")
        finally:
            client.close()


def scaled_behind_a_router(walk: Walk, folder: Path, redis_url: str, measured: Callable[[str, object], None]) -> None:
    """1 → 3, one killed, 3 → 1 → 0 → 1."""
    with router(folder, redis_url) as behind:
        _follows(walk, behind, 1)
        with Load(behind.port) as load:
            _three(walk, behind, load, measured)
            _killed(walk, behind, load)
            _drained(walk, behind, load, measured)
        assert load.failed == [] and len(load.answers) > 100
        assert set(behind.in_flight().values()) == {0.0}, "nothing is in flight at rest"
        _from_nothing(walk, behind, measured)


def _follows(walk: Walk, behind: Behind, count: int) -> list[Json]:
    """Wait until the router's instances are the endpoint's pods, all of them ready."""

    def is_so() -> bool:
        pods = [pod for pod in walk.pods() if _ready_at(pod) is not None]
        return len(pods) == count and {pod["metadata"]["uid"] for pod in pods} == behind.members()

    walk.hearth.until(is_so, f"the router has {count} instances", seconds=240)
    return walk.pods()


def _three(walk: Walk, behind: Behind, load: Load, measured: Callable[[str, object], None]) -> None:
    [first] = walk.pods()
    walk.kubectl("scale", f"{names.CONFIGS}/{NAME}", "--replicas=3")
    pods, since = _follows(walk, behind, 3), time.time()
    for pod in pods:
        if pod["metadata"]["uid"] != first["metadata"]["uid"]:
            ready = _ready_at(pod)
            assert ready is not None
            # The API server tells whole seconds: what is behind the point may be missing here.
            measured("ready_to_routed_seconds", round(behind.added[pod["metadata"]["uid"]] - ready, 2))
            assert behind.added[pod["metadata"]["uid"]] >= ready, "nobody is asked before it is ready"
    walk.hearth.until(lambda: load.pods(since) == _named(pods), "each of them is asked", seconds=120)
    assert load.failed == []


def _killed(walk: Walk, behind: Behind, load: Load) -> None:
    """A server dies without a word; its container is started again in the same pod."""
    pods = walk.pods()
    os.kill(_server(walk, pods[-1]["spec"]["nodeName"]), signal.SIGKILL)

    def is_back() -> bool:
        return any(one["restartCount"] for pod in walk.pods() for one in pod["status"].get("containerStatuses") or ())

    walk.hearth.until(is_back, "it is started again", seconds=120)
    _follows(walk, behind, 3)
    since = time.time()
    walk.hearth.until(lambda: load.pods(since) == _named(pods), "and asked again", seconds=120)
    assert load.failed == []


def _drained(walk: Walk, behind: Behind, load: Load, measured: Callable[[str, object], None]) -> None:
    pods = walk.pods()
    load.slow(SLOW_REQUESTS)
    until(lambda: sum(behind.in_flight().values()) >= SLOW_REQUESTS / 2, "they are in flight")
    asked = time.time()
    walk.kubectl("scale", f"{names.CONFIGS}/{NAME}", "--replicas=1")
    _follows(walk, behind, 1)
    walk.hearth.until(load.slow_ones_ended, "what was in flight ends", seconds=120)
    gone = {pod["metadata"]["name"]: behind.left[pod["metadata"]["uid"]] for pod in pods
            if pod["metadata"]["uid"] in behind.left}  # fmt: skip
    assert len(gone) == 2
    since = max(gone.values())
    walk.hearth.until(lambda: len([1 for at, _ in load.answers if at >= since]) > 50, "the last one is asked")
    late = [(pod, at - gone[pod]) for at, pod in load.answers if pod in gone and at > gone[pod]]
    assert late == [], "who is on its way out is asked nothing more"
    measured("scaled_down_to_left_seconds", [round(at - asked, 2) for at in gone.values()])
    assert load.failed == []


def _from_nothing(walk: Walk, behind: Behind, measured: Callable[[str, object], None]) -> None:
    """Whoever asks for an endpoint without a pod waits, and is answered once somebody has scaled it. A router waits
    for 30 s: who was told so asks again, as the answer says."""
    walk.kubectl("scale", f"{names.CONFIGS}/{NAME}", "--replicas=0")
    _follows(walk, behind, 0)
    told = list[int]()

    def ask() -> None:
        for _ in range(12):
            with suppress(urllib.error.HTTPError):
                with urllib.request.urlopen(f"http://127.0.0.1:{behind.port}/endpoints/{NAME}/", timeout=120) as answer:
                    told.append(answer.status)
                return
            told.append(503)

    client = threading.Thread(target=ask)
    client.start()
    until(lambda: behind.waiting() == 1, "it waits")
    asked = time.time()
    walk.kubectl("scale", f"{names.CONFIGS}/{NAME}", "--replicas=1")
    walk.hearth.until(lambda: not client.is_alive(), "it is answered", seconds=240)
    measured("from_nothing_to_answered_seconds", [round(time.time() - asked, 1), *told])
    assert told[-1:] == [200] and behind.waiting() == 0
    _follows(walk, behind, 1)


def _server(walk: Walk, node: str) -> int:
    """The process of a model server on the node."""
    for pid in cgroups.processes(walk.hearth.kube.nodes[node].cgroup):
        with suppress(OSError):
            if b"/server.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise AssertionError(f"no server runs on {node}")


def _named(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def _ready_at(pod: Json) -> float | None:
    """Since when it is ready; None when it is not."""
    for one in pod["status"].get("conditions") or ():
        if one["type"] == "Ready" and one["status"] == "True":
            return datetime.fromisoformat(one["lastTransitionTime"]).astimezone(UTC).timestamp()
    return None
