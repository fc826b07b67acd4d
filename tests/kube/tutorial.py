"""docs/tutorial.md as somebody walks it who has read nothing else: each command as it is printed, with their values."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from controlplane.embedded.processes import ROOT
from tests.kube.deployed import Site

TUTORIAL = ROOT / "docs" / "tutorial.md"
VALUES = "1. Your values"
INSTALL = "2. Install Hearth"
NODES_AND_STORE = "3. Tell it about your nodes and your store"
SERVE = "4. Serve a model"
AWAY = "5. Take it away again"


def printed(kind: str, heading: str) -> list[str]:
    """The fenced blocks of a kind below a heading."""
    section = TUTORIAL.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def with_values(values: Mapping[str, str]) -> str:
    """The block that a reader changes, with these values right of the ``=``."""
    [text] = printed("sh", VALUES)
    for name, value in values.items():
        text, count = re.subn(rf"^{name}=.*$", lambda _, line=f"{name}='{value}'": line, text, flags=re.MULTILINE)  # type: ignore[misc]
        assert count == 1, f"the tutorial does not ask for {name}"
    return text


class Tutorial:
    """A shell in the reader's folder. What it left in the background ends with the block."""

    def __init__(self, site: Site, values: Mapping[str, str]) -> None:
        self._site, self._values = site, with_values(values)
        self._forwarding = site.folder / "forward.pid"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forwarding.exists():  # the last block has taken it away
            os.kill(int(self._forwarding.read_text()), signal.SIGTERM)

    def walk(self, heading: str, blocks: slice = slice(None)) -> list[str]:
        """Run every block below the heading, or these of them; what each of them printed."""
        return [self._site.sh(f"{self._values}\n{block}") for block in printed("sh", heading)[blocks]]
