"""The certificate that a router serves with. It is renewed while the router runs, so its files are looked at again."""

from __future__ import annotations

import logging
import os
import ssl

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
Stamps = tuple[tuple[int, int, int], ...]


class Certificate:
    """``context`` serves connections that come with what the files held last. Raises OSError for files that cannot be
    used."""

    def __init__(self, chain: str, key: str | None) -> None:
        self._chain, self._key = chain, key
        self._seen = self._stamps()
        self.context = self._loaded()

    def look(self) -> None:
        """Take what is there now. Files that do not fit, as while they are being replaced, are tried again when they
        are others."""
        try:
            seen = self._stamps()
            if seen == self._seen:
                return
            self._seen = seen
            self._loaded()  # elsewhere first: a key that does not fit would take the certificate in force away
            self.context.load_cert_chain(self._chain, self._key)
        except OSError as error:  # also what TLS says of them
            log.error("the certificate stays as it is: %s", error)
        else:
            log.info("another certificate is in force")

    def _loaded(self) -> ssl.SSLContext:
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.load_cert_chain(self._chain, self._key)
        return made

    def _stamps(self) -> Stamps:
        found = (os.stat(path) for path in (self._chain, self._key) if path)
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)
