"""What a router serves TLS with, and whom it trusts of instances that do.

Both are renewed while it runs, so their files are looked at again.
"""

from __future__ import annotations

import logging
import os
import ssl

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
GONE = (0, 0, 0)


class _Files:
    """``context`` is made of what they held last. Raises OSError for files that cannot be used."""

    name = ""

    def __init__(self, *paths: str | None) -> None:
        self._paths = [path for path in paths if path]
        self._seen = self._stamps()
        self.context = self._loaded()

    def look(self) -> None:
        """Take what is there now. Files that cannot be used, as while they are being replaced, are said once and tried
        again when they are others."""
        if (seen := self._stamps()) == self._seen:
            return
        self._seen = seen
        try:
            self._take(self._loaded())
        except OSError as error:  # also what TLS says of them
            log.error("the %s stays as it is: %s", self.name, error)
        else:
            log.info("another %s is in force", self.name)

    def _loaded(self) -> ssl.SSLContext:
        raise NotImplementedError

    def _take(self, made: ssl.SSLContext) -> None:
        self.context = made

    def _stamps(self) -> list[tuple[int, int, int]]:
        return [_stamp(path) for path in self._paths]


class Certificate(_Files):
    """``context`` serves connections that come with what the files held last, and stays the same object."""

    name = "certificate"

    def __init__(self, chain: str, key: str | None) -> None:
        self._chain, self._key = chain, key
        super().__init__(chain, key)

    def _loaded(self) -> ssl.SSLContext:
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.load_cert_chain(self._chain, self._key)
        return made

    def _take(self, made: ssl.SSLContext) -> None:
        # Loaded elsewhere first: a key that does not fit would take the certificate in force away.
        self.context.load_cert_chain(self._chain, self._key)


class Authorities(_Files):
    """``context`` trusts whom the file named last, of connections that are made from now on; without a file whom the
    system trusts. Another one each time: who was trusted before would stay in the same."""

    name = "upstream CA bundle"

    def __init__(self, bundle: str | None) -> None:
        self._bundle = bundle
        super().__init__(bundle)

    def _loaded(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._bundle)


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return GONE
    return found.st_mtime_ns, found.st_size, found.st_ino
