"""``manage.py secret``: credentials for source connections and webhooks, as files that only the worker reads."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from caches.sources.secrets import delete_secret, secret_names, write_secret


class Command(BaseCommand):
    help = "Store, list or delete secrets. Their content comes from standard input, never from arguments."
    requires_system_checks = []  # it needs no database
    stealth_options = ("stdin",)

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        store = verbs.add_parser("set", help="read key=value lines from standard input, e.g. access_key_id=…")
        store.add_argument("name")
        verbs.add_parser("list", help="the names, never the content")
        verbs.add_parser("delete", help="remove one").add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            match options["verb"]:
                case "set":
                    content = _content(options.get("stdin") or sys.stdin)
                    write_secret(options["name"], content)
                    self.stdout.write(f"Stored {options['name']} with {', '.join(sorted(content))}.")
                case "list":
                    for name in secret_names():
                        self.stdout.write(name)
                case "delete":
                    if not delete_secret(options["name"]):
                        raise CommandError(f"There is no secret {options['name']}.")
                    self.stdout.write(f"Deleted {options['name']}.")
        except ValueError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"The secrets' folder cannot be used: {error.strerror}.") from error


def _content(lines: Any) -> dict[str, str]:
    """Lines of ``key=value``; empty lines and # comments are skipped. Never quotes a line in an error."""
    content: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip().isidentifier() or not value.strip():
            raise CommandError(f"Line {number} is not of the form key=value.")
        content[key.strip()] = value.strip()
    if not content:
        raise CommandError("Nothing came from standard input. Give lines such as access_key_id=… there.")
    return content
