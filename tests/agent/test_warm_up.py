"""The warm-up request against a real server: sent when that is ready, repeated while it makes sense, never for ever."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from caches.agent import warm_up as module
from caches.agent.warm_up import warm_up


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers ``/health`` and ``/generate`` with the next of these; the last one again and again."""

    answers: ClassVar[dict[str, list[int]]] = {}
    asked: ClassVar[list[tuple[str, str, str]]] = []

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.asked.append((f"{self.command} {self.path}", body, self.headers.get("Content-Type", "")))
        found = self.answers[self.path]
        self.send_response(found.pop(0) if len(found) > 1 else found[0])
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    Engine.answers, Engine.asked = {"/health": [200], "/generate": [200]}, []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def run(port: int, **asked: Any) -> dict[str, Any]:
    said = {"path": "/generate", "body": '{"prompt": "Hi"}', "seconds": 60, "port": port, "health": "/health", **asked}
    return warm_up(said, pause=0.001)


def test_it_is_sent_once_the_server_is_ready(port: int) -> None:
    Engine.answers["/health"] = [503, 503, 200]
    found = run(port)
    assert (found["warm"], found["tries"], found["message"]) == (True, 1, "HTTP 200")
    assert [asked for asked, _, _ in Engine.asked] == ["GET /health"] * 3 + ["POST /generate"]
    assert Engine.asked[-1][1:] == ('{"prompt": "Hi"}', "application/json")
    assert "Hi" not in json.dumps(found)


def test_a_path_alone_is_asked_for(port: int) -> None:
    assert run(port, body="", health="")["warm"] and Engine.asked == [("GET /generate", "", "")]


@pytest.mark.parametrize(
    ("answers", "warm", "tries", "said"),
    [
        ([500, 429, 503, 201], True, 4, "HTTP 201"),
        ([404], False, 1, "The server refused it: HTTP 404"),
        ([500, 422], False, 2, "The server refused it: HTTP 422"),
        ([301], False, 1, "No good answer within 0 seconds: HTTP 301"),
    ],
)
def test_it_is_repeated_while_that_may_help(port: int, answers: list[int], warm: bool, tries: int, said: str) -> None:
    Engine.answers["/generate"] = answers
    found = run(port, seconds=0 if answers == [301] else 60)
    assert (found["warm"], found["tries"], found["message"]) == (warm, tries, said)


def test_a_server_that_went_away_ends_it_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_is_ready", lambda port, health: True)
    found = run(1, seconds=0)
    assert not found["warm"] and "ConnectionRefused" in found["message"]


@pytest.mark.parametrize(("status", "code"), [(200, 0), (404, 1)])
def test_its_end_says_how_it_went_and_makes_the_pod_ready(
    port: int, status: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Engine.answers["/generate"] = [status]
    monkeypatch.setattr("signal.signal", lambda *_: None)
    said = {"path": "/generate", "body": "", "seconds": 60, "port": port, "health": ""}
    monkeypatch.setenv("HEARTH_WARM_UP", json.dumps(said))
    assert module.main(tmp_path / "done", tmp_path / "message") == code
    assert (tmp_path / "done").exists() and json.loads((tmp_path / "message").read_text())["warm"] is (code == 0)


def test_started_again_it_only_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "done").touch()
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def told() -> None:
        raise SystemExit(0)

    monkeypatch.setattr("signal.pause", told)
    with pytest.raises(SystemExit):
        module.main(tmp_path / "done", tmp_path / "message")
    assert not (tmp_path / "message").exists()
