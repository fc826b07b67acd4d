"""What runs on this machine is asked directly where a proxy leads into the world."""

from __future__ import annotations

import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import build_opener

import pytest

from controlplane.embedded.direct import directly, open_direct


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def here() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def behind_a_dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


@pytest.mark.usefixtures("behind_a_dead_proxy")
def test_it_asks_here_without_the_proxy(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(urllib.error.URLError):
        build_opener().open(here, timeout=30)  # urlopen would remember the proxy for all that come after
    for name, value in directly({}).items():
        monkeypatch.setenv(name, value)
    with build_opener().open(here, timeout=30) as answer:
        assert answer.status == 204


@pytest.mark.usefixtures("behind_a_dead_proxy")
def test_it_asks_machines_that_run_here_without_the_proxy(here: str) -> None:
    with open_direct(here, timeout=30) as answer:
        assert answer.status == 204


@pytest.mark.parametrize(
    ("given", "excepted"),
    [
        ({}, "127.0.0.1,localhost,::1"),
        ({"no_proxy": ""}, "127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "corp.example"}, "corp.example,127.0.0.1,localhost,::1"),
        ({"no_proxy": "a.example, localhost", "NO_PROXY": "b.example"}, "a.example,localhost,b.example,127.0.0.1,::1"),
        ({"no_proxy": "*"}, "*,127.0.0.1,localhost,::1"),
    ],
)
def test_it_excepts_what_is_here_beside_what_was_excepted(given: dict[str, str], excepted: str) -> None:
    assert directly(given) == {"no_proxy": excepted, "NO_PROXY": excepted}
    assert directly(directly(given)) == directly(given)
