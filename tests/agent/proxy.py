"""A TCP hop in front of a real server that falls silent in the middle of a body, as a stuck load balancer does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Stalling:
    """Forwards everything; each of the first ``stalls`` answers goes silent after ``after`` bytes and stays open."""

    def __init__(self, host: str, port: int, *, after: int, stalls: int) -> None:
        self._to, self._after = (host, port), after
        self._left, self.stalled = stalls, 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._sockets += [near, far]
                threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(64 * 1024):
                passed += len(data)
                if answers and passed > self._after and self._take_stall():
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _take_stall(self) -> bool:
        with self._lock:
            if not self._left:
                return False
            self._left -= 1
            self.stalled += 1
            return True
