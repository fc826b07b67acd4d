"""A command that a person starts beside ``make run`` finds the same database and broker, without any setting."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from controlplane.embedded.postgres import running_url as database_url
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import ROOT, holder
from controlplane.embedded.valkey import running_url as broker_url

# What says so in a sentence instead of waiting for a database that is not there.
NEEDING = frozenset(("adopt", "changepassword", "createsuperuser", "dbshell", "dumpdata", "loaddata", "shell", "user"))


def environment_beside(arguments: Sequence[str]) -> dict[str, str]:
    """What ``manage.py`` with these arguments must add to its environment to reach the program that runs, if one does.

    EmbeddedError where the command needs a database, none was named, and nothing runs.
    """
    if _given("DATABASE_URL"):
        return {}
    state = Path(os.environ.get("HEARTH_STATE_DIR") or ROOT / ".run").resolve()
    found: dict[str, str] = {}
    if holder(state) is not None:
        found = {"DATABASE_URL": database_url(state), "REDIS_URL": broker_url(state)}
        found["SECRET_KEY_FILE"] = str(state / "secret-key") if (state / "secret-key").exists() else ""
    found = {name: value for name, value in found.items() if value and not _given(name.removesuffix("_FILE"))}
    needs = bool(arguments) and arguments[0] in NEEDING and not {"-h", "--help"}.intersection(arguments)
    if needs and "DATABASE_URL" not in found:
        raise EmbeddedError(
            f"Hearth does not run on {state}, so there is no database to ask. Start it first with 'make run', name "
            "the folder of one that runs with HEARTH_STATE_DIR, or set DATABASE_URL to a server of your own."
        )
    return found


def _given(name: str) -> bool:
    return bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))
