"""Connections to an API server that leave nothing open when the server dies while they are made.

A peer that resets a connection between its beginning and the handshake lets the library forget the half-made socket.
It is closed when garbage is collected, which takes long in a quiet process: a server that restarts under many requests
would cost a descriptor for each.
"""

from __future__ import annotations

import errno
import ssl

import urllib3
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs

# With these the maker of the socket goes on.
_NOT_CONNECTED = (errno.ENOTCONN, errno.EINVAL)


class _Socket(ssl.SSLSocket):
    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except OSError as error:
            if self.version() is None and error.errno not in _NOT_CONNECTED:
                self.close()
            raise


class _Connection(HTTPSConnection):
    def connect(self) -> None:
        if self.ssl_context is None:
            context = create_urllib3_context(cert_reqs=resolve_cert_reqs(self.cert_reqs))
            context.sslsocket_class = _Socket
            if not self.ca_certs:
                context.load_default_certs()
            self.ssl_context = context
        super().connect()


class _Connections(HTTPSConnectionPool):
    ConnectionCls = _Connection


def closing(pool: urllib3.PoolManager) -> urllib3.PoolManager:
    """The same pool, whose TLS connections are of this kind."""
    pool.pool_classes_by_scheme = {**pool.pool_classes_by_scheme, "https": _Connections}
    return pool
