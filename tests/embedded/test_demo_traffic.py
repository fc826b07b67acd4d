"""The demo's traffic: beside its router and its local fleet, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.embedded import program
from controlplane.embedded.program import Options


@pytest.mark.parametrize(
    ("asked", "value", "there"),
    [
        ({"router_port": 8124}, None, True),
        ({"router_port": 8124}, "1", True),
        ({"router_port": 8124}, "0", False),
        ({}, None, False),
        ({"router_port": 8124, "demo": False}, None, False),
        ({"router_port": 8124, "kubernetes": True}, None, False),
    ],
)
def test_it_asks_the_demos_own_endpoint_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, int], value: str | None, there: bool
) -> None:
    monkeypatch.delenv("HEARTH_DEMO_TRAFFIC", raising=False)
    if value is not None:
        monkeypatch.setenv("HEARTH_DEMO_TRAFFIC", value)
    commands, fds = frozenset({"fleet", "watch_cluster"}), {8123: 7, 8124: 8, 8125: 9}
    usual = Options(state=tmp_path, port=8123, nodes=3, demo=True, commands=commands, metrics_port=8125, fds=fds)
    made = {spec.name: spec for spec in program._processes(replace(usual, **asked), {"SECRET_KEY_FILE": "/x"})}  # type: ignore[arg-type]
    assert ("traffic" in made) is there
    if there:
        assert "http://127.0.0.1:8124/endpoints/chat" in made["traffic"].argv and made["traffic"].env == {}
        told, router = list(made["traffic"].argv), list(made["router"].argv)
        metrics = router[router.index("--metrics-port") + 1]
        assert told[-2:] == ["--metrics", f"http://127.0.0.1:{metrics}/metrics"], "it waits until there is an instance"
        assert list(made)[-1] == "traffic", "it comes when all else was started"
