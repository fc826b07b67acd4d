"""The whole program as a person starts it, on a state of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from controlplane.embedded import ports
from controlplane.embedded.processes import ROOT

OWN = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "HEARTH_STATE_DIR", "DJANGO_SETTINGS_MODULE"}


class Program:
    """``manage.py run`` with the demo. Ctrl-C at the end stops everything that it started."""

    def __init__(self, folder: Path, *, nodes: int, more: Sequence[str] = ()) -> None:
        self.folder = folder
        [port] = ports.free_ports(1)
        self.address = f"http://127.0.0.1:{port}"
        env = {name: value for name, value in os.environ.items() if name not in OWN}
        self.argv = [sys.executable, str(ROOT / "manage.py"), "run", "--port", str(port), "--nodes", str(nodes), *more]
        # Nobody asks the engines here: two cores have enough to do.
        self.env = env | {"HEARTH_STATE_DIR": str(folder), "HEARTH_DEMO_TRAFFIC": "0"}

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.argv, cwd=ROOT, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("Everything runs"):
                return self
        self.__exit__(None, None, None)
        raise AssertionError(f"the program did not start:\n{said}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    @property
    def password(self) -> str:
        return (self.folder / "admin-password").read_text().strip()
