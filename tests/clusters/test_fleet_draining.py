"""Engines that are no longer wanted: out of the membership first, then told to end, then gone; processes here are those
of test_engines.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import Kind
from controlplane.clusters.local.scaling import endpoint_scale
from controlplane.clusters.local.serving import endpoint_end, endpoint_serve
from tests.clusters.test_engines import Here, alive, here  # noqa: F401  # a fixture
from tests.contracts.observing import DIGEST

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes that end with their parent")
HOUR = 3600.0
# Told to end, it finishes what it has: that is done when there is a file "done".
ANSWERS = """
while [ $# -gt 1 ]; do [ "$1" = --address-file ] && file="$2"; shift; done
trap 'touch "$0.told"; while [ ! -e "$0.done" ]; do sleep 0.02; done; exit 0' TERM
echo $$ >>"$(dirname "$file")/pids"
printf 127.0.0.1:$$ >"$file.new" && mv "$file.new" "$file"
while :; do sleep 0.02; done
"""


def ready(of: Here) -> int:
    found: int = of.endpoint().status["readyReplicas"]
    return found


def test_routers_hear_of_an_engine_that_leaves_long_before_it_is_told_to_end(here: Here) -> None:  # noqa: F811
    here.engines.drain_seconds = HOUR
    endpoint_serve(here.fleet.store, "chat", DIGEST, replicas=2)
    here.until_ready(2)
    token = here.gateway.list(Kind.CONSUMER).token
    endpoint_scale(here.fleet, "chat", 1)
    here.until(lambda seen: ready(here) == 1, "one is left, and the endpoint says so")
    (leaving,) = [one for one in here.seen() if one.leaving]
    assert not leaving.ready and len(here.seen()) == 2, "its weights are in use"
    seen = [one.object for one in here.gateway.watch(Kind.CONSUMER, token, 0.0)]
    assert [one for one in seen if isinstance(one, Consumer)] == [leaving], "it was said once"
    for _ in range(3):
        here.tick()
    assert alive(here.pids(leaving)[-1]), "whoever did not hear of it yet is answered"
    here.engines.drain_seconds = 0.0
    (left,) = here.until(lambda seen: len(seen) == 1, "it is gone")
    assert left.ready and alive(here.pids(left)[-1]) and ready(here) == 1


def test_an_engine_that_is_told_to_end_may_finish_what_it_answers(here: Here) -> None:  # noqa: F811
    script = here.folder / "serves"
    script.write_text(ANSWERS)
    here.engines.end_seconds = HOUR
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    (engine,) = here.until_ready(1)
    endpoint_scale(here.fleet, "chat", 0)
    here.until(lambda _: Path(f"{script}.told").exists(), "it is told to end")
    for _ in range(3):
        here.tick()
    assert here.seen() and alive(here.pids(engine)[-1]), "it answers still"
    Path(f"{script}.done").touch()
    here.until(lambda seen: not seen, "it is gone once it has")


def test_who_never_finishes_is_ended_all_the_same(here: Here) -> None:  # noqa: F811
    (here.folder / "serves").write_text(ANSWERS)
    here.engines.end_seconds = 0.0
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    (engine,) = here.until_ready(1)
    pid = here.pids(engine)[-1]
    endpoint_scale(here.fleet, "chat", 0)
    here.until(lambda seen: not seen, "it is gone")
    assert not alive(pid)


def test_one_that_comes_back_meanwhile_is_another_engine(here: Here) -> None:  # noqa: F811
    here.engines.drain_seconds = HOUR
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    (before,) = here.until_ready(1)
    endpoint_scale(here.fleet, "chat", 0)
    here.until(lambda seen: seen[0].leaving, "it leaves")
    endpoint_scale(here.fleet, "chat", 1, node="b-2")
    seen = here.until(lambda seen: sum(one.ready for one in seen) == 1, "another one serves")
    (after,) = [one for one in seen if one.ready]
    assert after.uid != before.uid and after.node_name == "b-2" and len(seen) == 2


def test_nobody_waits_for_an_engine_that_nobody_is_routed_to(here: Here) -> None:  # noqa: F811
    """One of an endpoint that is no more, one of a trial, one that does not answer yet, one on a dead machine."""
    here.engines.drain_seconds = HOUR
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    here.until_ready(1)
    endpoint_end(here.fleet.store, "chat")
    here.until(lambda seen: not seen, "its endpoint is no more")
    endpoint_serve(here.fleet.store, "trial", DIGEST, at_once=True)
    here.until_ready(1)
    endpoint_scale(here.fleet, "trial", 0)
    here.until(lambda seen: not seen, "nobody routes to it")
    (here.folder / "serves.crash").touch()
    endpoint_serve(here.fleet.store, "chat", DIGEST)
    here.until(lambda seen: any("ended with code 7" in line for line in here.said), "it cannot serve")
    endpoint_scale(here.fleet, "chat", 0)
    here.until(lambda seen: not seen, "it never answered")
    (here.folder / "serves.crash").unlink()
    endpoint_scale(here.fleet, "chat", 1)
    (engine,) = here.until_ready(1)
    endpoint_scale(here.fleet, "chat", 0)
    here.until(lambda seen: seen[0].leaving, "it leaves")
    here.fleet.stop(engine.node_name)
    here.until(lambda seen: not seen, "its machine is off")
