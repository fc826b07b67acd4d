"""Where pods of this node ask for artifacts: a Unix socket in the store, one thread for each that is asking.

Anybody who sees the store may ask, and may only ask for what Hearth published: where the bytes come from is read from
the cluster, never from the pod.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from pathlib import Path

from caches.agent import asking
from caches.agent.asking import Answer, End, Found
from caches.agent.asks import Ask, Asks
from caches.agent.link import NodeLink
from caches.agent.store import Store, name_of
from controlplane.clusters.gateway import GatewayError, NotFound
from controlplane.errors import Permanent

log = logging.getLogger(__name__)
MAX_ASKING = 256
KEEP_ALIVE_SECONDS = 2.0  # a pod hears something at least this often, so that it can tell a dead agent


class Desk:
    """``open`` starts listening, ``close`` ends it. Never raises for what a pod does."""

    def __init__(self, store: Store, link: NodeLink, asks: Asks) -> None:
        self.path: Path = store.base / asking.SOCKET
        self._store, self._link, self._asks = store, link, asks
        self._listening: socket.socket | None = None
        self._places = threading.BoundedSemaphore(MAX_ASKING)

    def open(self) -> None:
        """Called while the store is locked: a socket that is there belongs to nobody any more."""
        unopened = self.path.with_name(f"{self.path.name}.new")
        unopened.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as undo:
            undo.callback(listening.close)
            # Through the folder's descriptor: a path may be longer than a socket's address can be.
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                listening.bind(
                    f"/proc/self/fd/{folder}/{unopened.name}" if Path("/proc/self/fd").exists() else str(unopened)
                )
            finally:
                os.close(folder)
            unopened.chmod(0o666)  # a served container need not be root
            listening.listen(MAX_ASKING)
            unopened.rename(self.path)  # whoever sees it is heard
            undo.pop_all()
        self._listening = listening
        threading.Thread(target=self._accept, args=(listening,), name="desk", daemon=True).start()

    def close(self) -> None:
        if self._listening is None:
            return
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._listening = None

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                pod, _ = listening.accept()
            except OSError:
                return  # closed
            if not self._places.acquire(blocking=False):
                pod.close()  # it helps itself, as if nobody had answered
                continue
            threading.Thread(target=self._serve, args=(pod,), name="asking", daemon=True).start()

    def _serve(self, pod: socket.socket) -> None:
        try:
            with pod:
                pod.settimeout(asking.ANSWER_SECONDS)
                self._answer(pod)
        except OSError:
            pass  # the pod is gone
        except Exception:
            log.exception("a pod could not be answered")
        finally:
            self._places.release()

    def _answer(self, pod: socket.socket) -> None:
        try:
            digest, who = asking.read_question(_read_line(pod))
            name_of(digest)
        except (ValueError, Permanent) as error:
            pod.sendall(asking.line_of(Answer(End.UNKNOWN, message=str(error)[:500])))
            return
        if self._asks.is_warm(digest):
            self._store.touch_used(digest)
            pod.sendall(asking.line_of(Answer(End.READY, Found.HIT)))
            return
        log.info("%s asks for %s", who or "a pod", digest)
        pod.sendall(asking.line_of(asking.Progress("Asked")))
        ask = Ask(digest, None)
        try:
            ask.origin = self._link.origin(digest)
        except NotFound:
            pass  # what is there can still be given
        except GatewayError as error:
            log.warning("the cluster did not say where %s is: %s", digest, error)
            ask.nowhere = "The cluster did not say where it is."
        self._asks.put(ask)
        try:
            self._follow(pod, ask)
        finally:
            self._asks.withdraw(ask)

    def _follow(self, pod: socket.socket, ask: Ask) -> None:
        while ask.answer is None:
            ask.changed.wait(KEEP_ALIVE_SECONDS)
            ask.changed.clear()
            if ask.answer is None:
                pod.sendall(asking.line_of(ask.progress or asking.Progress("Asked")))
        pod.sendall(asking.line_of(ask.answer))


def _read_line(pod: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        piece = pod.recv(asking.MAX_LINE - len(data))
        if not piece:
            raise ValueError("the line is too long or has no end")
        data += piece
    return data
