"""Two routers with the same configuration choose the same instance, and the same next ones, for every request."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.agreement import decided
from tests.dataplane.world import PREFIX, SECRET


def written(
    path: Path, *, secret: str = SECRET, shuffled: int = 0, routers: int = 1, hot: tuple[str, ...] = ()
) -> Path:
    instances = [{"id": f"pod-{number}", "address": f"127.0.0.1:{9000 + number}"} for number in range(7)]
    random.Random(shuffled).shuffle(instances)
    policy = {**PREFIX, "RoutingExtensions": {"body_key": True}}
    variant = {"name": "default", "policy": policy, "instances": instances, "hot": list(hot)}
    endpoint = {"name": "chat", "secret": secret, "models": ["llama"], "variants": [variant]}
    path.write_text(json.dumps({"version": 1, "routers": routers, "endpoints": [endpoint]}))
    return path


@pytest.mark.thorough
def test_two_processes_agree_on_a_hundred_thousand_requests(tmp_path: Path) -> None:
    """Each has its own order of instances in its file, its own seed of hashes and its own draws."""
    asked = [
        [written(tmp_path / "one.json", shuffled=1), "1"],
        [written(tmp_path / "other.json", shuffled=2, routers=4), "2"],
    ]
    command = [sys.executable, "-W", "error", "-m", "tests.dataplane.agreement"]
    routers = [
        subprocess.Popen(
            [*command, str(config), "100000"], env={**os.environ, "PYTHONHASHSEED": str(seed)}, stdout=subprocess.PIPE
        )
        for config, seed in asked
    ]
    one, other = (json.loads(router.communicate(timeout=240)[0]) for router in routers)
    assert one == other
    counts: dict[str, int] = one["shares"]
    assert sum(counts.values()) == 100_000 and len(counts) == 7


def test_they_agree_because_of_what_the_file_says(tmp_path: Path) -> None:
    """The order of instances and the number of routers change no choice; the secret does."""
    one = _told(written(tmp_path / "one.json", shuffled=1))
    assert _told(written(tmp_path / "two.json", shuffled=2, routers=4)) == one
    other = _told(written(tmp_path / "three.json", secret=SECRET[::-1]))
    assert other["digest"] != one["digest"] and sum(other["shares"].values()) == 1000


def _told(config: Path) -> dict[str, Any]:
    return decided(config, 1000)
