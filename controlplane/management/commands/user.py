"""``manage.py user``: who may sign in, and as what. Passwords are generated or read, never given as arguments."""

from __future__ import annotations

import argparse
import secrets
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.accounts import users
from controlplane.accounts.access import grants_of
from controlplane.accounts.actors import person_at_terminal
from controlplane.accounts.models import Role, User
from controlplane.errors import HearthError

NO_ROLE = "None"


class Command(BaseCommand):
    help = "Add, list and remove users; give them roles and passwords."
    stealth_options = ("stdin",)

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=argparse.ArgumentParser)
        add = verbs.add_parser("add", help="somebody new, or somebody who was removed")
        add.add_argument("name")
        add.add_argument("--role", required=True, choices=Role.values)
        _where(add)
        verbs.add_parser("list", help="who there is, with their roles")
        role = verbs.add_parser("role", help="another role, there or everywhere; None takes it away")
        role.add_argument("name")
        role.add_argument("role", choices=[*Role.values, NO_ROLE])
        _where(role)
        password = verbs.add_parser("password", help="another password; sessions with the old one end")
        password.add_argument("name")
        verbs.add_parser("remove", help="may not sign in any more; tokens end").add_argument("name")
        for verb in (add, password):
            verb.add_argument(
                "--password-stdin", action="store_true", help="read it from standard input; otherwise one is generated"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._do(options)
        except HearthError as error:
            raise CommandError(f"{error.detail} {error.next_step}".strip()) from error

    def _do(self, options: dict[str, Any]) -> None:
        actor, verb, name = person_at_terminal(), options["verb"], options.get("name", "")
        match verb:
            case "list":
                self._list()
            case "add":
                password, shown = _password(options)
                where = options["on"]
                users.user_add(actor=actor, name=name, password=password, role=options["role"], target=where)
                self.stdout.write(f"{name} may sign in as {options['role']} {_place(where)}.{shown}")
            case "role":
                role = None if options["role"] == NO_ROLE else options["role"]
                users.user_set_role(actor=actor, name=name, role=role, target=options["on"])
                self.stdout.write(f"{name} has {'no role' if role is None else role} {_place(options['on'])} now.")
            case "password":
                password, shown = _password(options)
                users.user_set_password(actor=actor, name=name, password=password)
                self.stdout.write(f"{name} has another password; older sessions end.{shown}")
            case "remove":
                ended = users.user_remove(actor=actor, name=name)
                self.stdout.write(f"{name} may not sign in any more; {ended} tokens ended.")

    def _list(self) -> None:
        for user in User.objects.order_by("username"):
            grants = ", ".join(f"{grant.role} {_place(grant.target)}" for grant in grants_of(user)) or "no role"
            self.stdout.write(f"{user.username}  {grants if user.is_active else 'removed'}")


def _where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", default="", metavar="CLUSTER[.POOL]", help="where the role holds (everywhere)")


def _place(target: str) -> str:
    return f"on {target}" if target else "everywhere"


def _password(options: dict[str, Any]) -> tuple[str, str]:
    """The password, and what to print of it: a generated one is shown once, a given one never."""
    if options["password_stdin"]:
        line = (options.get("stdin") or sys.stdin).readline().rstrip("\r\n")
        if not line:
            raise CommandError("Nothing came from standard input. Give the password there, on one line.")
        return line, ""
    made = secrets.token_urlsafe(15)
    return made, f"\nPassword (shown this once): {made}"
