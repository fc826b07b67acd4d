"""`manage.py run`: the whole of Hearth on this machine, one address printed, Ctrl-C stops it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import get_commands
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.program import Options, run, stop_running


class Command(BaseCommand):
    """Starts servers and processes; needs no database to exist."""

    help = "Start PostgreSQL, Valkey, a demo S3 server, the web application and a local fleet. Ctrl-C stops it all."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """The few things a person chooses."""
        parser.add_argument("--port", type=int, default=8000, help="where the pages are served (8000)")
        parser.add_argument("--nodes", type=int, default=8, help="nodes of the local fleet (8)")
        parser.add_argument("--kubernetes", action="store_true", help="three real nodes instead of the local fleet")
        parser.add_argument("--no-demo", action="store_true", help="no S3 server, no fleet and no demo models")
        parser.add_argument("--stop", action="store_true", help="stop the one that runs, and wait until it has")

    def handle(self, *args: Any, **options: Any) -> None:
        """Problems end as one sentence, without a traceback."""
        state: Path = settings.STATE_DIR
        try:
            if options["stop"]:
                stop_running(state)
                return
            chosen = Options(
                state=state,
                port=options["port"],
                nodes=options["nodes"],
                demo=not options["no_demo"],
                commands=frozenset(get_commands()),
                kubernetes=options["kubernetes"],
            )
            run(chosen, say=self._say, terminal=self.stdout.isatty())
        except EmbeddedError as error:
            raise CommandError(str(error)) from error

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()  # whoever reads it from a file or a pipe wants to see how far it is
