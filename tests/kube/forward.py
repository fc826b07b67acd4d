"""A TCP hop by which pods reach a server that listens on loopback; it counts what each node was sent."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Self

PIECE = 256 * 1024


class Forward:
    """Listens on ``address`` (of the cluster's own network) and passes everything on to ``target``."""

    def __init__(self, address: str, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server((address, 0), backlog=64)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._sent: Counter[str] = Counter()  # by the first three numbers of the address that asked
        self.endpoint = f"http://{address}:{self._listener.getsockname()[1]}"

    def sent(self, node_address: str) -> int:
        """Bytes sent to the pods of a node, whose own address is given."""
        with self._lock:
            return self._sent[_network(node_address)]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            ends = [self._listener, *self._open]
        for end in ends:
            _close(end)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, (peer, _) = self._listener.accept()
                threading.Thread(target=self._serve, args=(near, str(peer)), daemon=True).start()

    def _serve(self, near: socket.socket, peer: str) -> None:
        try:
            far = socket.create_connection(self._target, timeout=60)
        except OSError:
            return _close(near)
        far.settimeout(None)
        with self._lock:
            self._open |= {near, far}
        back = threading.Thread(target=self._pump, args=(near, far, ""), daemon=True)
        back.start()
        self._pump(far, near, _network(peer))
        back.join()
        with self._lock:
            self._open -= {near, far}

    def _pump(self, source: socket.socket, target: socket.socket, count_for: str) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE):
                target.sendall(data)
                if count_for:
                    with self._lock:
                        self._sent[count_for] += len(data)
        # Whoever is gone takes the other one along.
        _close(source)
        _close(target)


def _network(address: str) -> str:
    return address.rpartition(".")[0]


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
