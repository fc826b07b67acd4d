"""An API server that refuses, hangs, cuts or falls silent: errors that say so, in bounded time and few requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.clusters.gateway import Gone, Kind, Refused, Throttled, Unreachable
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.link import KubernetesLink
from controlplane.clusters.kubernetes.watches import listed
from tests.contracts.kube import KubeContractCluster
from tests.contracts.observing import DIGEST, changes, spec, status
from tests.kube.faulty import Answer, Cut, Fault, FaultyProxy, Hang, Held, Silence
from tests.waiting import until

pytestmark = pytest.mark.faults


def always(fault: Fault) -> Callable[[str, str], Fault]:
    return lambda method, path: fault


def once(fault: Fault, part: str = "") -> Callable[[str, str], Fault | None]:
    left = [fault]
    return lambda method, path: left.pop() if left and part in path else None


def gateway_through(proxy: FaultyProxy, **options: float) -> KubernetesGateway:
    return KubernetesGateway("through-the-proxy", client=proxy.client(**options))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Answer(401), Refused),
        (Answer(403), Refused),
        (Answer(410), Gone),
        (Answer(429, headers={"Retry-After": "7"}), Throttled),
        (Answer(500), Unreachable),
        (Answer(503, b"<html>"), Unreachable),
        (Answer(200, b"no json"), Unreachable),
        (Answer(200, b"[1]"), Unreachable),
        (Answer(302, b"", {"Location": "http://127.0.0.1:9/elsewhere"}), Refused),
        (Hang(), Unreachable),
        (Cut(), Unreachable),
        (Cut(after_bytes=40), Unreachable),
        (Silence(after_bytes=40), Unreachable),
    ],
    ids=["401", "403", "410", "429", "500", "503", "text", "array", "redirect", "hang", "cut", "cut-midway", "silent"],
)
def test_it_says_what_it_was_answered_and_asks_no_second_time(
    contract: KubeContractCluster, proxy: FaultyProxy, fault: Fault, error: type[Exception]
) -> None:
    uid = contract.add_node("n-1")
    # Who answers is waited for as ever: on a busy machine half a second is nothing.
    gateway = gateway_through(proxy, read_seconds=0.5 if isinstance(fault, Hang | Silence) else 30.0)
    proxy.rule = always(fault)
    calls: tuple[Callable[[], object], ...] = (
        lambda: gateway.list(Kind.NODE),
        lambda: gateway.consumers("n-1", uid),
        lambda: gateway.set_node_labels("n-1", uid, {"a": "b"}),
        lambda: gateway.apply_node_cache(spec("n-1", uid, DIGEST)),
    )
    for call in calls:
        before = len(proxy.seen)
        started = time.monotonic()
        with pytest.raises(error):
            call()
        assert time.monotonic() - started < 25.0, "as long as it was told to wait for an answer, which never came"
        assert len(proxy.seen) - before <= 3, "a list starts again twice at most; nothing else repeats itself"


def test_it_tells_how_long_to_wait(contract: KubeContractCluster, proxy: FaultyProxy) -> None:
    proxy.rule = always(Answer(429, headers={"Retry-After": "7"}))
    with pytest.raises(Throttled) as error:
        gateway_through(proxy).list(Kind.NODE)
    assert error.value.retry_after_seconds == 7.0


def test_it_asks_for_new_credentials_once(contract: KubeContractCluster, proxy: FaultyProxy) -> None:
    proxy.rule = once(Answer(401))
    assert gateway_through(proxy).list(Kind.NODE_CACHE).items == ()
    assert len(proxy.seen) == 2


def test_it_hears_that_a_watch_died_without_a_word(contract: KubeContractCluster, proxy: FaultyProxy) -> None:
    gateway = gateway_through(proxy)
    token = gateway.list(Kind.NODE).token
    proxy.rule = always(Silence())
    started = time.monotonic()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Unreachable):
        patch.setattr("controlplane.clusters.kubernetes.watches.SLACK_SECONDS", 1.0)
        list(gateway.watch(Kind.NODE, token, 1.0))
    assert time.monotonic() - started < 45.0, "before the silence ended"


def test_it_tells_no_half_of_a_change(contract: KubeContractCluster, proxy: FaultyProxy) -> None:
    gateway = gateway_through(proxy)
    token = gateway.list(Kind.NODE).token
    contract.add_node("n-1")
    proxy.rule = always(Cut(after_bytes=100))
    assert changes(gateway, Kind.NODE, token) == [], "the line was cut in the middle"
    proxy.rule = lambda method, path: None
    told = changes(gateway, Kind.NODE, token, at_least=1)
    assert [getattr(event.object, "name", "") for event in told][:1] == ["n-1"]


def test_it_hears_gone_also_from_within_a_watch(contract: KubeContractCluster, proxy: FaultyProxy) -> None:
    gateway = gateway_through(proxy)
    token = gateway.list(Kind.NODE).token
    error = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
    proxy.rule = always(Answer(200, error))
    with pytest.raises(Gone):
        list(gateway.watch(Kind.NODE, token, 0.0))
    proxy.rule = always(Answer(200, b'{"type":"ADDED"}\n'))
    with pytest.raises(Unreachable):
        list(gateway.watch(Kind.NODE, token, 0.0))


def test_it_starts_a_list_again_that_was_compacted_between_two_pages(
    contract: KubeContractCluster, proxy: FaultyProxy
) -> None:
    for number in range(3):
        contract.add_node(f"n-{number}")
    client = proxy.client()
    proxy.rule = once(Answer(410), "continue=")
    found, version = listed(client, names.NODES, {}, lambda item: item["metadata"]["name"], page_items=1)
    assert found == ["n-0", "n-1", "n-2"]
    assert version.isdigit()
    continued = ["continue=" in path for _, path in proxy.seen]
    assert continued[:3] == [False, True, False], "from the beginning"
    assert all(continued[3:]), "once"


def test_it_repeats_a_request_whose_idle_connection_had_been_closed(
    contract: KubeContractCluster, proxy: FaultyProxy
) -> None:
    uid = contract.add_node("n-1")
    gateway = gateway_through(proxy)
    for call in (
        lambda: gateway.list(Kind.NODE),
        lambda: gateway.set_node_labels("n-1", uid, {"hearth.dev/x": "y"}),
    ):
        proxy.rule = once(Cut())
        call()


def test_an_agent_goes_on_when_its_watch_breaks(contract: KubeContractCluster, proxy: FaultyProxy) -> None:
    uid = contract.add_node("n-1")
    link = KubernetesLink(proxy.client(), "n-1", uid)
    try:
        known = contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
        assert link.wait(0, 60.0) is True
        proxy.rule = always(Answer(503))
        contract.client.merge(f"{names.NODES}/n-1", {"metadata": {"labels": {"x": "y"}}}, manager="test")
        with pytest.raises(Unreachable):
            link.report(status("n-1", uid, generation=known))
        proxy.rule = lambda method, path: None
        link.report(status("n-1", uid, generation=known))
        contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST, pool="pool-b"))
        until(lambda: _wakes(link, known), "it hears of the change", seconds=150)
    finally:
        link.close()


def test_an_agent_keeps_what_its_watch_told_while_a_list_was_on_its_way(
    contract: KubeContractCluster, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list shows what was before the change; the watch will not tell the change again."""
    uid = contract.add_node("n-1")
    known = contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    link = KubernetesLink(proxy.client(), "n-1", uid)
    held = Held(threading.Event())
    try:
        assert link.wait(0, 60.0) is True
        until(lambda: proxy.paths("GET", "watch=true"), "it watches")
        proxy.rule = lambda method, path: None if "watch=true" in path else held
        with monkeypatch.context() as patch, ThreadPoolExecutor(1) as other:
            patch.setattr("controlplane.clusters.kubernetes.own_cache.FRESH_SECONDS", 0.0)
            asked = other.submit(link.desired)
            assert held.answered.wait(60), "it asks"
            patch.undo()
            changed = contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST, pool="pool-b"))
            until(lambda: link.wait(known, 1.0), "the watch tells")
            held.until.set()
            found = asked.result()
        assert found is not None
        assert found.generation == changed
        assert link.wait(known, 0.0) is True
    finally:
        held.until.set()
        link.close()


def _wakes(link: KubernetesLink, known: int) -> bool:
    try:
        return link.wait(known, 1.0)
    except (Unreachable, Throttled):
        return False


def test_an_agent_that_is_refused_keeps_quiet(contract: KubeContractCluster, proxy: FaultyProxy) -> None:
    """Requests counted: a storm of refusals must not be answered with a storm."""
    uid = contract.add_node("n-1")
    link = KubernetesLink(proxy.client(), "n-1", uid)
    proxy.rule = always(Answer(429, headers={"Retry-After": "300"}))
    try:
        for _ in range(10):  # as an agent does, again and again
            with pytest.raises(Throttled):
                link.wait(0, 0.1)
            with pytest.raises(Throttled):
                link.desired()
        assert len(proxy.seen) == 1
    finally:
        link.close()


def test_an_agent_asks_again_when_it_may(contract: KubeContractCluster, proxy: FaultyProxy) -> None:
    uid = contract.add_node("n-1")
    contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    link = KubernetesLink(proxy.client(), "n-1", uid)
    proxy.rule = once(Answer(429, headers={"Retry-After": "1"}))
    try:
        with pytest.raises(Throttled):
            link.desired()
        until(lambda: _wakes(link, 0), "it hears what is wanted")
    finally:
        link.close()
