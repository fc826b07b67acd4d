"""``manage.py token``: a token for a pipeline, made where there is no browser."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from controlplane.accounts.actors import person_at_terminal
from controlplane.accounts.models import Scope, User
from controlplane.accounts.services import token_create
from controlplane.errors import HearthError


class Command(BaseCommand):
    help = "Make a token. Its secret alone is printed, this once; the rest is said on standard error."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("owner", help="somebody who may sign in; the token never does more than they may")
        parser.add_argument("name", help="what it is for")
        parser.add_argument("--scope", action="append", required=True, choices=Scope.values, help="may be repeated")
        parser.add_argument("--on", action="append", default=[], metavar="CLUSTER[.POOL]", help="where it holds")
        parser.add_argument("--days", type=int, default=30, help="until it ends (30)")

    def handle(self, *args: Any, **options: Any) -> None:
        owner = User.objects.filter(username=options["owner"], is_active=True).first()
        if owner is None:
            raise CommandError(f"There is no user {options['owner']}.")
        name = options["name"]
        if not 0 < len(name) <= 100 or not name.isprintable():
            raise CommandError("A name has 1 to 100 printable characters.")
        try:
            token, secret = token_create(
                actor=person_at_terminal(),
                user=owner,
                name=name,
                scopes=options["scope"],
                targets=options["on"],
                expires_at=timezone.now() + timedelta(days=min(max(options["days"], 0), 10_000)),
            )
        except HearthError as error:
            raise CommandError(f"{error.detail} {error.next_step}".strip()) from error
        self.stderr.write(f"{token.name} of {owner.username} ends at {token.expiry:%Y-%m-%d %H:%M} UTC.")
        self.stdout.write(secret)
