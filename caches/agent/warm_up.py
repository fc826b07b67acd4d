"""Sends the warm-up request of an endpoint's pod to the model server beside it, once that is ready.

When it knows how that went it leaves a mark, which makes the pod ready, and ends with what it found as its termination
message; started again it finds the mark and only waits. Neither a refusal nor a server without a good answer keeps a
pod out for ever: after its time it serves, and the message says that it was not warmed up. Bodies are written nowhere.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

MARK = Path("/hearth-warm-up/done")
MESSAGE = Path("/dev/termination-log")
HOST = "127.0.0.1"
PAUSE_SECONDS = 1.0
LATER = frozenset({408, 425, 429})  # of the 400s, those that may be other ones a moment later


def warm_up(asked: Mapping[str, Any], *, pause: float = PAUSE_SECONDS) -> dict[str, Any]:
    """Wait until the server is ready, send the request, and say how it went: ``warm``, ``seconds``, ``message``."""
    port = int(asked["port"])
    while not _is_ready(port, str(asked["health"])):
        time.sleep(pause)  # its own readiness keeps the pod out as well
    began = time.monotonic()
    deadline, tries, said = began + float(asked["seconds"]), 0, ""
    while True:
        tries += 1
        status, said = _send(port, str(asked["path"]), str(asked["body"]), deadline)
        if 200 <= status < 300:
            return _found(True, began, tries, said)
        if 400 <= status < 500 and status not in LATER:
            return _found(False, began, tries, f"The server refused it: {said}")
        if time.monotonic() + pause >= deadline:
            return _found(False, began, tries, f"No good answer within {asked['seconds']} seconds: {said}")
        time.sleep(pause)


def _found(warm: bool, began: float, tries: int, message: str) -> dict[str, Any]:
    return {"warm": warm, "seconds": round(time.monotonic() - began, 3), "tries": tries, "message": message}


def _is_ready(port: int, health: str) -> bool:
    try:
        if not health:
            socket.create_connection((HOST, port), timeout=5).close()
            return True
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        try:
            connection.request("GET", health)
            return 200 <= connection.getresponse().status < 400
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False


def _send(port: int, path: str, body: str, deadline: float) -> tuple[int, str]:
    """Its status, 0 for none, and the same in words."""
    connection = http.client.HTTPConnection(HOST, port, timeout=max(0.1, deadline - time.monotonic()))
    headers = {"Content-Type": "application/json"} if body[:1] in ("{", "[") else {}
    try:
        connection.request("POST" if body else "GET", path, body.encode() if body else None, headers)
        answer = connection.getresponse()
        while answer.read(65536):  # to its end: the first token may be long before the last one
            if time.monotonic() > deadline:
                return 0, "the answer did not end"
        return answer.status, f"HTTP {answer.status}"
    except (OSError, http.client.HTTPException) as error:
        return 0, f"{type(error).__name__}: {error}"[:200]
    finally:
        connection.close()


def main(mark: Path = MARK, message: Path = MESSAGE) -> int:
    signal.signal(signal.SIGTERM, _ended)
    if mark.exists():
        while True:
            signal.pause()
    found = warm_up(json.loads(os.environ["HEARTH_WARM_UP"]))
    text = json.dumps(found)
    message.write_text(text)
    mark.write_text(text)
    print(text, flush=True)
    return 0 if found["warm"] else 1


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
