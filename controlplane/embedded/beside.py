"""A command beside ``make run`` or ``make run-kube`` finds the same database and broker, without any setting."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from controlplane.embedded.postgres import running_url as database_url
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import ROOT, holder
from controlplane.embedded.valkey import running_url as broker_url

# What says so in a sentence instead of waiting for a database that is not there.
NEEDING = frozenset(
    ("adopt", "changepassword", "createsuperuser", "dbshell", "dumpdata", "loaddata", "shell", "token", "user")
)
OF_FOLDERS = frozenset(("run", "fleet"))  # about the fleet of folders, whatever else runs


def environment_beside(arguments: Sequence[str]) -> dict[str, str]:
    """What ``manage.py`` with these arguments must add to its environment to reach the program that runs, if one does.

    EmbeddedError where the command needs a database, none was named, and nothing runs.
    """
    if _given("DATABASE_URL"):
        return {}
    state, found = _state(arguments), {}
    if holder(state) is not None:
        found = {"DATABASE_URL": database_url(state), "REDIS_URL": broker_url(state)}
        found["SECRET_KEY_FILE"] = str(state / "secret-key") if (state / "secret-key").exists() else ""
        if state.name == ".run-kube":
            found["HEARTH_STATE_DIR"] = str(state)
    found = {name: value for name, value in found.items() if value and not _given(name.removesuffix("_FILE"))}
    needs = bool(arguments) and arguments[0] in NEEDING and not {"-h", "--help"}.intersection(arguments)
    if needs and "DATABASE_URL" not in found:
        raise EmbeddedError(
            f"Hearth does not run on {state}, so there is no database to ask. Start it first with 'make run', name "
            "the folder of one that runs with HEARTH_STATE_DIR, or set DATABASE_URL to a server of your own."
        )
    return found


def _state(arguments: Sequence[str]) -> Path:
    """The folder that was named, else that of the program which runs: on folders, or on Kubernetes."""
    if named := os.environ.get("HEARTH_STATE_DIR"):
        return Path(named).resolve()
    usual, kubernetes = ROOT / ".run", ROOT / ".run-kube"
    if OF_FOLDERS.isdisjoint(arguments[:1]) and holder(usual) is None and holder(kubernetes) is not None:
        return kubernetes
    return usual.resolve()


def _given(name: str) -> bool:
    return bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))
