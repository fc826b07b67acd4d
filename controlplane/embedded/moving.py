"""A line about work that takes a while: it moves on a terminal; elsewhere a new one is said now and then."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Self

Say = Callable[[str], object]
_REPAINT = 0.5  # seconds
_SOON = 2.0  # seconds until the first line of a log
_REPEAT = 30.0  # seconds between the lines of a log


class Moving:
    """``with Moving("  building it", say) as line: line.detail = "half of it"``; the last line names the time it took.

    ``say`` takes whole lines. ``terminal`` is where the line moves, by default standard output if it is one.
    """

    def __init__(self, what: str, say: Say, *, terminal: IO[str] | None = None) -> None:
        self.what = what
        self.detail = ""
        self._say = say
        self._terminal = terminal or (sys.stdout if sys.stdout.isatty() else None)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._move, daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        if self._terminal is not None:
            self._paint("")
        if kind is None:
            self._say(f"{self.what}: done in {self._seconds()}")
        elif self._terminal is not None:
            self._say(f"{self.what}: stopped after {self._seconds()}")

    def _move(self) -> None:
        # What is done in a moment needs no line of its own before it is.
        pause = _SOON if self._terminal is None else _REPAINT
        while not self._ended.wait(pause):
            if self._terminal is not None:
                self._paint(f"{self.what}: {self._detail()}{self._seconds()}")
            elif pause == _SOON:
                self._say(f"{self.what} …")
                pause = _REPEAT
            else:
                self._say(f"{self.what}: {self._detail()}{self._seconds()}")

    def _detail(self) -> str:
        return f"{self.detail}, " if self.detail else ""

    def _paint(self, text: str) -> None:
        assert self._terminal is not None
        # Back to the start of the line, and nothing of a longer text stays; one that wraps could not be painted over.
        self._terminal.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
        self._terminal.flush()

    def _seconds(self) -> str:
        took = time.monotonic() - self._began
        return f"{took:.0f} s" if took < 90 else f"{took // 60:.0f} min {took % 60:.0f} s"
