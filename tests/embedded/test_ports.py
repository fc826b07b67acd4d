"""Ports and disks: free ones are found, a taken one is explained."""

from __future__ import annotations

import errno
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
            ports.take_port(port, "Choose another: make run PORT=8010")
    text = str(refused.value)
    assert f"Port {port} on 127.0.0.1 is taken by " in text
    assert text.endswith("Choose another: make run PORT=8010")
    if Path("/proc/net/tcp").exists():
        assert f"(process {os.getpid()})" in text


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_it_refuses_what_is_no_port(port: int) -> None:
    with pytest.raises(EmbeddedError, match="is no port"):
        ports.take_port(port, "")


def test_it_keeps_a_port_that_it_took_until_it_is_closed() -> None:
    with ports.take_port(ports.free_port(), "") as taken:
        port = taken.getsockname()[1]
        assert not ports.is_free(port) and not ports.reserve([port])
        with pytest.raises(EmbeddedError, match=rf"^Port {port} on 127\.0\.0\.1 is taken by .*Stop it\.$"):
            ports.take_port(port, "Stop it.")
        with socket.create_connection((ports.HOST, port), timeout=60):
            pass  # whoever comes before the server does waits for it
    assert ports.is_free(port)


def test_it_gives_a_port_to_one_of_two_that_want_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system lets two bind a port while none listens there."""
    port, quick = ports.free_port(), socket.socket()
    quick.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    class Slow(socket.socket):
        def listen(self, backlog: int = 1) -> None:
            quick.bind((ports.HOST, port))
            quick.listen()
            super().listen(backlog)

    with quick, monkeypatch.context() as at_once:
        at_once.setattr(socket, "socket", Slow)
        with pytest.raises(EmbeddedError, match=f"Port {port} on 127.0.0.1 is taken by "):
            ports.take_port(port, "")


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system does not tell who listens")
def test_it_names_who_took_a_port_and_not_the_server_that_inherited_it() -> None:
    serve = [sys.executable, "-c", "input()"]
    with ports.take_port(ports.free_port(), "") as taken:
        fds = [taken.fileno()]
        with subprocess.Popen(serve, stdin=subprocess.PIPE, pass_fds=fds, text=True) as server:
            assert ports._owner(taken.getsockname()[1]).endswith(f"(process {os.getpid()})")
            server.communicate("\n", timeout=60)


def test_it_names_the_oldest_whatever_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of processes begin again from the lowest."""
    table = {"9": ("gunicorn: (a) b", 700), "30000": ("python", 200), "31000": ("other", 100)}
    for pid, (name, began) in table.items():
        (tmp_path / pid / "fd").mkdir(parents=True)
        (tmp_path / pid / "fd" / "3").symlink_to("socket:[77]" if pid != "31000" else "socket:[78]")
        (tmp_path / pid / "stat").write_text(f"{pid} ({name}) S 1 {'0 ' * 17}{began} 0 0\n")
    monkeypatch.setattr(ports, "_listening_inodes", lambda _: {"77"})
    monkeypatch.setattr(ports, "_PROCESSES", tmp_path)
    assert ports._owner(8000) == "python (process 30000)"


def test_it_says_why_a_port_cannot_be_used_although_nobody_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(socket.socket, "listen", none_left)
    with pytest.raises(EmbeddedError, match=r"cannot be used: No buffer space available\. Free some"):
        ports.take_port(ports.free_port(), "Free some.")


def test_it_says_how_much_space_is_missing(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"GB free and Hearth needs 1000000000\.0 GB.*HEARTH_STATE_DIR"):
        require_space(tmp_path, 10**18)
