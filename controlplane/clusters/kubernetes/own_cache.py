"""One node's own NodeCache, kept up to date by a watch that costs a node one open request instead of one a second."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.clusters.gateway import GatewayError, Gone, Throttled, Unreachable
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.watches import listed, watched

Json = Mapping[str, Any]
WATCH_SECONDS = 240.0
FRESH_SECONDS = 100.0  # the API server sends a bookmark every minute; after this silence it is asked
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Copy:
    """What was last seen: ``stored`` None where there is no such object."""

    stored: Json | None
    version: str

    def is_later_than(self, other: Copy) -> bool:
        """False also where versions are no numbers."""
        return self.version.isdecimal() and other.version.isdecimal() and int(self.version) > int(other.version)


class OwnCache:
    """Thread-safe. The first question lists; from then on a thread watches until ``close``."""

    def __init__(self, client: KubeClient, node_name: str, *, watch_seconds: float = WATCH_SECONDS) -> None:
        self._client, self._name, self._watch_seconds = client, node_name, watch_seconds
        self._changed = threading.Condition()
        self._copy: Copy | None = None
        self._heard_at = 0.0
        self._not_before = 0.0  # the API server asked for patience until then
        self._error: GatewayError | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop watching; the thread ends with its request."""
        self._closed.set()

    def current(self) -> Json | None:
        """The object as last seen, asked for where the watch is broken or has been silent for too long."""
        with self._changed:
            copy, fresh = self._copy, self._is_fresh()
        if copy is None or not fresh:
            copy = self._list()
        self._start()
        return copy.stored

    def wait(self, differs: Callable[[Json | None], bool], timeout_seconds: float) -> bool:
        """Block until ``differs(object)`` (True) or the time is up (False). Raises what broke the watch."""
        deadline = time.monotonic() + timeout_seconds
        self.current()
        with self._changed:
            while True:
                if self._copy is not None and differs(self._copy.stored):
                    return True
                if self._error is not None:
                    raise Unreachable(str(self._error))
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)

    def seen(self) -> Json | None:
        """The object as last seen, without asking anybody."""
        with self._changed:
            return None if self._copy is None else self._copy.stored

    def _is_fresh(self) -> bool:
        return self._error is None and time.monotonic() - self._heard_at < FRESH_SECONDS

    def _query(self) -> Mapping[str, object]:
        return {"fieldSelector": f"metadata.name={self._name}"}

    def _list(self, *, begins_watch: bool = False) -> Copy:
        """Throttled without a request before the time that the API server named: whoever waits here asks often."""
        if (left := self._not_before - time.monotonic()) > 0:
            raise Throttled("The API server asked for patience.", left)
        with self._changed:
            before = self._copy
        try:
            found, version = listed(self._client, names.NODE_CACHES, self._query(), lambda item: item)
        except Throttled as error:
            self._be_patient(error)
            raise
        copy = Copy(found[0] if found else None, version)
        with self._changed:
            told_meanwhile = self._copy is not before and not begins_watch
            if told_meanwhile and self._copy is not None and self._copy.is_later_than(copy):
                return self._copy  # a watch tells each change once: what it told must not be forgotten
            self._take(copy)
        return copy

    def _take(self, copy: Copy) -> None:
        with self._changed:
            self._copy, self._heard_at, self._error = copy, time.monotonic(), None
            self._changed.notify_all()

    def _start(self) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="own node cache", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        failures = 0
        version = ""
        while not self._closed.is_set():
            try:
                version = version or self._list(begins_watch=True).version
                version = self._watch(version)
                failures = 0
            except GatewayError as error:
                version = ""
                failures += 1
                if isinstance(error, Throttled):
                    self._be_patient(error)
                if not isinstance(error, Gone):
                    self._broken(error)
                self._closed.wait(_pause(failures, error))
            except Exception as error:
                # What nobody foresaw must not end the watch for good.
                log.exception("watching the NodeCache failed unexpectedly")
                version = ""
                failures += 1
                self._broken(Unreachable(type(error).__name__))
                self._closed.wait(_pause(failures, None))

    def _be_patient(self, error: Throttled) -> None:
        self._not_before = time.monotonic() + error.retry_after_seconds

    def _broken(self, error: GatewayError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _watch(self, version: str) -> str:
        for told in watched(self._client, names.NODE_CACHES, self._query(), version, self._watch_seconds):
            version = told.version
            if self._closed.is_set():
                break
            if told.type == "BOOKMARK":
                with self._changed:
                    self._heard_at = time.monotonic()
                continue
            self._take(Copy(None if told.type == "DELETED" else told.object, version))
        return version


def _pause(failures: int, error: GatewayError | None) -> float:
    seconds: float = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10))
    seconds *= random.uniform(0.5, 1.0)
    if isinstance(error, Throttled):
        seconds = max(seconds, error.retry_after_seconds + random.uniform(0.0, FIRST_PAUSE_SECONDS))
    return seconds
