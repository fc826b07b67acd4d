"""Ports and disks: free ones are found, a taken one is explained."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from controlplane.embedded import ports
from controlplane.embedded.problems import EmbeddedError, require_space


def test_it_finds_different_free_ports() -> None:
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    assert all(ports.is_free(port) for port in found)


def test_it_gives_nobody_a_port_that_another_program_has_chosen_until_that_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing listens there yet: between the choice and the server that uses it pass seconds."""
    choose = "from controlplane.embedded import ports; print(ports.free_port(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", choose], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        monkeypatch.setattr(ports, "_CHOICES", range(port, port + 1))
        assert ports.is_free(port)
        assert ports.free_ports(1) == []
        assert not ports.reserve([port])
        other.communicate("\n", timeout=60)
    assert ports.free_ports(1) == [port]
    assert ports.free_ports(1) == [], "nor is this program given it twice"
    assert ports.reserve([port]), "which may use what it was given"


def test_it_chooses_by_looking_where_no_choice_can_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    ports._reservations.cache_clear()
    try:
        assert len(ports.free_ports(2)) == 2
    finally:
        ports._reservations.cache_clear()


def test_it_names_who_holds_a_port_and_what_to_do() -> None:
    with socket.socket() as listener:
        listener.bind((ports.HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(EmbeddedError) as refused:
            ports.require_port(port, "Choose another: make run PORT=8010")
    text = str(refused.value)
    assert f"Port {port} on 127.0.0.1 is taken by " in text
    assert text.endswith("Choose another: make run PORT=8010")
    if Path("/proc/net/tcp").exists():
        assert f"(process {os.getpid()})" in text


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_it_refuses_what_is_no_port(port: int) -> None:
    with pytest.raises(EmbeddedError, match="is no port"):
        ports.require_port(port, "")


def test_it_says_how_much_space_is_missing(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"GB free and Hearth needs 1000000000\.0 GB.*HEARTH_STATE_DIR"):
        require_space(tmp_path, 10**18)
