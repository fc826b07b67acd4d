"""Work that takes longer than a tick runs in a thread and is collected by the loop, the only one that decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from caches.agent.limits import Stopped

T = TypeVar("T")


class Job(Generic[T]):
    """``run`` is called once. Afterwards exactly one of ``result`` and ``error`` is set, unless the job was stopped."""

    def __init__(self, name: str, run: Callable[[], T], wake: Callable[[], None]) -> None:
        self._run, self._wake = run, wake
        self.result: T | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _main(self) -> None:
        try:
            self.result = self._run()
        except BaseException as error:  # nothing may be lost in a thread: the loop reports it
            self.error = error
        finally:
            self.done.set()
            self._wake()


class Commit:
    """The moment of no return: either the job gets past it, or whoever stops it knows that it never will."""

    def __init__(self, stopped: threading.Event) -> None:
        self._lock = threading.Lock()
        self._stopped = stopped

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._stopped.is_set():
                raise Stopped
            yield

    def stop(self) -> None:
        """Returns once the job is past the moment or can no longer reach it."""
        with self._lock:
            self._stopped.set()
