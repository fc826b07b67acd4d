"""What a watcher needs of memory for launches that are open and change over and over. Asserts nothing of size or time.

The way from an API server's lines to rows is the one that people run: gateway, readers, watcher, every sink, assembly.
``HEARTH_BENCH_OPEN`` changes how many launches are open (the product's figure is the default).
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest

from caches.models import Launch
from caches.services.launches.assembly import launches_assemble
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.models import ClusterType
from controlplane.clusters.watching import ClusterWatcher
from tests import factories
from tests.clusters.played_pods import PlayedPods
from tests.waiting import until

pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True)]

OPEN = int(os.environ.get("HEARTH_BENCH_OPEN", "5000"))
CHANGES = 8
PATIENCE = 900.0


def test_the_watchers_memory_with_many_open_launches(capsys: pytest.CaptureFixture[str], valkey_url: str) -> None:
    cluster = factories.cluster(name="prod", type=ClusterType.KUBERNETES)
    played = PlayedPods(OPEN)
    gateway = KubernetesGateway("played", client=played)  # type: ignore[arg-type]  # what is asked of the client
    said = [("before", *_memory(fresh=True))]
    watcher = ClusterWatcher(cluster_id=cluster.pk, name="prod", gateway=lambda: gateway, watch_seconds=1.0)
    watcher.start()
    begun = time.monotonic()
    try:
        until(lambda: Launch.objects.count() == OPEN, seconds=PATIENCE)
        said.append((f"{OPEN:,} launches listed and open", *_memory()))
        for change in range(1, CHANGES + 1):
            for number in range(OPEN):
                played.put("MODIFIED", number)
            _taken_in(watcher, played)
            said.append((f"every pod changed {change} times", *_memory()))
        for number in range(OPEN):
            played.put("DELETED", number)
        _taken_in(watcher, played)
        until(lambda: not launches_assemble(), seconds=PATIENCE)
        said.append(("all of them gone", *_memory()))
    finally:
        watcher.stop()
        watcher.join(60)
    ended = Launch.objects.filter(ended_at__isnull=False).count()
    with capsys.disabled():
        print(f"\n{OPEN:,} open launches, {CHANGES} changes of each pod, in {time.monotonic() - begun:.0f} s;", end=" ")
        print(f"{Launch.objects.count():,} launches by the end, {ended:,} of them ended; load {os.getloadavg()[0]:.1f}")
        for words, now, peak in said:
            print(f"  {words:<34} {now:>6.1f} MiB, at most {peak:>6.1f} MiB since before")
    assert ended >= OPEN


def _taken_in(watcher: ClusterWatcher, played: PlayedPods) -> None:
    """Read by the watch, and out of the queue."""
    until(lambda: played.waits == 0, seconds=PATIENCE)
    until(lambda: watcher._queue.empty() and watcher.idle_seconds() < 0.5, seconds=PATIENCE)


def _memory(*, fresh: bool = False) -> tuple[float, float]:
    """MiB that the process has, and has had at most since ``fresh``."""
    gc.collect()
    if fresh:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)
             if name in ("VmRSS", "VmHWM")}  # fmt: skip
    return found["VmRSS"], found["VmHWM"]
