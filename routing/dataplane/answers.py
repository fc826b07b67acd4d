"""Answers of engines whose heads come again, and what is said to clients instead."""

from __future__ import annotations

from routing.dataplane.heads import Header, passed_on, response_head
from routing.dataplane.known import Match, Pattern, pattern_of
from routing.dataplane.telling import Ear
from routing.domain.dialects_usage import TokenUse


class KnownAnswer:
    """One head that an engine answers with. ``listens``: what follows may tell of tokens."""

    __slots__ = ("_close", "_given", "_head", "_headers", "_match", "_reason", "listens", "pattern", "status")

    def __init__(self, pattern: Pattern, status: int, reason: bytes, headers: list[Header]) -> None:
        self.pattern, self.status = pattern, status
        self._reason, self._headers = reason, passed_on(headers)
        self.listens = Ear.of(status, headers) is not None
        self._given = headers
        self._match: Match | None = None
        self._close, self._head = False, b""

    @staticmethod
    def of(data: bytes, status: int, reason: bytes, headers: list[Header]) -> KnownAnswer | None:
        """``data``: a whole answer and nothing else. None for one that is not known again: without a length, or no
        success."""
        if not 200 <= status < 300 or status == 204:
            return None
        if not any(name.lower() == b"content-length" for name, _ in headers):
            return None
        pattern = pattern_of(data[: data.find(b"\r\n\r\n") + 4], dates=True)
        match = pattern.match(data) if pattern is not None else None
        if pattern is None or match is None or match.end + match.length != len(data):
            return None
        return KnownAnswer(pattern, status, reason, headers)

    def head(self, match: Match, *, close: bool) -> bytes:
        """What the client gets for it."""
        if match is not self._match or close is not self._close:
            headers = self._headers
            if match.date:
                headers = [(name, match.date if name.lower() == b"date" else value) for name, value in headers]
            self._head = response_head(
                self.status, self._reason, headers, length=match.length, chunked=False, close=close
            )
            self._match, self._close = match, close
        return self._head

    def use(self, body: bytes) -> TokenUse | None:
        """What the answer says of tokens."""
        ear = Ear.of(self.status, self._given)
        if ear is None:
            return None
        ear.hear(body)
        return ear.use()
