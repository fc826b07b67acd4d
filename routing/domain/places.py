"""Where one router sent a key last: what engines hold of a talk is where its last turn went, not where it belongs."""

from __future__ import annotations

REMEMBERED = 16_384  # keys, for as many again the older half of what is held is forgotten
TOLD = 256  # keys that are kept for the other routers until they are told; what finds no room they do not hear


class Places:
    """In constant memory, at constant cost. What is said of a key holds while it belongs to the same instance: one that
    another instance takes over, or gets back, goes there. One thread."""

    __slots__ = ("_most", "_old", "_untold", "_young")

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._most = remembered
        # A name alone: it went where it belongs. Otherwise where it belongs, and where it went.
        self._young: dict[int, str | tuple[str, str]] = {}
        self._old: dict[int, str | tuple[str, str]] = {}
        self._untold: dict[int, tuple[str, str]] | None = None

    def of(self, digest: int, home: str) -> str:
        """The instance that had it last; "" of a key that is new here, or did not belong to ``home`` then."""
        found = self._young.get(digest) or self._old.get(digest)
        if found == home:
            return home
        return found[1] if isinstance(found, tuple) and found[0] == home else ""

    def put(self, digest: int, home: str, instance: str) -> None:
        if self._untold is not None and len(self._untold) < TOLD and self.of(digest, home) != instance:
            self._untold[digest] = home, instance
        self._young[digest] = home if instance == home else (home, instance)
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}

    def hear(self, digest: int, home: str, instance: str) -> None:
        """What some router said of it: all hear the same in the same order, their own words too, so all end alike."""
        self._young[digest] = home if instance == home else (home, instance)
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}

    def untold(self) -> list[tuple[int, str, str]]:
        """Keys whose place changed since this was asked last, where they belong, and where they went. What changed
        before it was ever asked is nobody's news."""
        told, self._untold = self._untold or {}, {}
        return [(digest, home, instance) for digest, (home, instance) in told.items()]

    def __len__(self) -> int:
        return len(self._old.keys() | self._young.keys())
