"""Wait until the database has every migration of this program: what stands before each process on a cluster.

One process that waits costs little; one that ends and is started again costs seconds of a core each time, which the
migration itself then lacks. The address is read again each time: a Secret that is corrected reaches the file of a
container that runs already.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor

EVERY_SECONDS = 1.0
ADDRESS = ("ENGINE", "HOST", "PORT", "NAME", "USER", "PASSWORD")


class Command(BaseCommand):
    help = "Wait until the database is migrated as far as this program needs; SIGTERM ends the waiting."
    requires_system_checks = []
    requires_migrations_checks = False

    def handle(self, *args: Any, **options: Any) -> None:
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        if not await_schema(lambda: stopping.wait(EVERY_SECONDS), self.stdout.write):
            raise SystemExit(1)


def await_schema(pause: Callable[[], bool], say: Callable[[str], object]) -> bool:
    """True when nothing is missing; ``pause`` waits a while and says with True that nobody wants to know any more.

    ``say`` hears each reason once.
    """
    told = ""
    while reason := missing():
        if reason != told:
            say(told := reason)
        if pause():
            return False
    return True


def missing() -> str:
    """What is not there yet, in a sentence; "" when everything is. A schema that is ahead lacks nothing."""
    try:
        address_read()
        executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except (OSError, ValueError, ImproperlyConfigured):  # their words may hold the password
        return "Waiting for the address of a database: DATABASE_URL, or the file of DATABASE_URL_FILE, holds none."
    except DatabaseError as error:
        connections[DEFAULT_DB_ALIAS].close()
        return f"Waiting for the database: {str(error).strip() or type(error).__name__}"
    if not plan:
        return ""
    first = plan[0][0]
    return f"Waiting for {len(plan)} migration{'s' * (len(plan) > 1)}, {first.app_label}.{first.name} first."


def address_read() -> None:
    """Connect from now on to what the file of DATABASE_URL_FILE says now, if there is one."""
    file = os.environ.get("DATABASE_URL_FILE")
    if not file:
        return
    found = environ.Env.db_url_config(Path(file).read_text())
    if not found.get("ENGINE"):
        raise ImproperlyConfigured("This is no address of a database.")
    address = {**{name: found[name] for name in ADDRESS}, "OPTIONS": found.get("OPTIONS", {})}
    used = connections.settings[DEFAULT_DB_ALIAS]
    if any(used[name] != value for name, value in address.items()):
        connections.close_all()
        used.update(address)
        with suppress(AttributeError):  # none was made where the address was none
            del connections[DEFAULT_DB_ALIAS]
