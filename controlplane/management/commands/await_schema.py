"""Wait until the database has every migration of this program: what stands before each process on a cluster.

One process that waits costs little; one that ends and is started again costs seconds of a core each time, which the
migration itself then lacks.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor

EVERY_SECONDS = 1.0


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
    connection = connections[DEFAULT_DB_ALIAS]
    try:
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as error:
        connection.close()
        return f"Waiting for the database: {str(error).strip() or type(error).__name__}"
    if not plan:
        return ""
    first = plan[0][0]
    return f"Waiting for {len(plan)} migration{'s' * (len(plan) > 1)}, {first.app_label}.{first.name} first."
