"""``manage.py trial``: provoke launches of each kind on the local fleet, and say what they took."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from caches.domain.launches.trials import MOST_RUNS
from caches.selectors.catalogue import version_get
from caches.services.launches.trials import DEFAULT_RUNS, DEFAULT_TARGET, cluster_for_trials, trial_start
from controlplane.accounts.actors import person_at_terminal
from controlplane.errors import HearthError
from controlplane.operations.models import FINAL_STATES, Operation, OperationKind, OperationState
from controlplane.operations.services import operation_cancel
from controlplane.web.formats import duration_text, plural
from controlplane.web.tones import words_of

LOOK_SECONDS = 1.0


class Command(BaseCommand):
    pause = staticmethod(time.sleep)
    help = "A controlled trial: warm, cold and new-node launches in random order, on nodes of its own."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=argparse.ArgumentParser)
        run = verbs.add_parser("run", help="start one, and follow it until it has ended (Ctrl-C cancels it)")
        run.add_argument("model")
        run.add_argument("version")
        run.add_argument("--runs", type=int, default=DEFAULT_RUNS, help=f"of each kind, {MOST_RUNS} at most")
        run.add_argument("--seed", type=int, default=None, help="of the order (a new one each time, which is said)")
        run.add_argument("--target", type=float, default=DEFAULT_TARGET, help="seconds until ready, to be good enough")
        run.add_argument("--cluster", default="", help="the local fleet (the only one)")
        run.add_argument("--json", action="store_true", help="the whole result, for programs")
        show = verbs.add_parser("show", help="what one found")
        show.add_argument("operation", type=UUID)
        show.add_argument("--json", action="store_true", help="for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["verb"] == "show":
                self._show(_trial(options["operation"]), as_json=options["json"])
                return
            version = version_get(model=options["model"], version=options["version"])
            operation = trial_start(
                actor=person_at_terminal(),
                cluster=cluster_for_trials(options["cluster"]),
                version=version,
                runs=options["runs"],
                seed=options["seed"] if options["seed"] is not None else time.time_ns() % 1_000_000,
                target_seconds=options["target"],
            )
        except HearthError as error:
            raise CommandError(f"{error.detail} {error.next_step}".strip()) from error
        self._show(self._follow(operation), as_json=options["json"])

    def _follow(self, operation: Operation) -> Operation:
        """Say how far it is whenever that changes."""
        self.stderr.write(f"Trial {operation.pk}, seed {operation.params['seed']}.")
        said = ""
        try:
            while operation.state not in FINAL_STATES:
                if operation.message != said:
                    said = operation.message
                    self.stderr.write(said)
                self.pause(LOOK_SECONDS)
                operation.refresh_from_db()
        except KeyboardInterrupt:
            operation_cancel(actor=person_at_terminal(), operation_id=operation.pk)
            raise CommandError("Cancelled; what it made is being taken away.") from None
        return operation

    def _show(self, operation: Operation, *, as_json: bool) -> None:
        if operation.state != OperationState.SUCCEEDED or operation.result is None:
            raise CommandError(f"The trial is {operation.state}. {operation.message}".strip())
        if as_json:
            self.stdout.write(json.dumps(operation.result, indent=2))
            return
        for line in lines_of(operation.result):
            self.stdout.write(line)


def lines_of(result: dict[str, Any]) -> list[str]:
    """The result for people."""
    runs = plural(result["runs"], "launch", "launches")
    lines = [f"{result['version']}: {runs} of each kind in random order (seed {result['seed']})"]
    for one in result.get("not_measured", ()):  # results of before do not say it
        took = f"ready after {duration_text(one['ready_seconds'])}" if one["ready_seconds"] is not None else "not ready"
        found = f"weights {one['weights'].lower()}"
        lines.append(f"  One more prepared them and is not measured: {words_of(one['event_class'])}, {found}, {took}")
    for kind in result["kinds"]:
        seconds = kind["seconds"]
        spread = f"{duration_text(min(seconds))} to {duration_text(max(seconds))}" if seconds else "never ready"
        lines.append(
            f"  {words_of(kind['event_class']):24} median {duration_text(kind['median_seconds']):>8}, {spread}; "
            f"{kind['within_target']} of {kind['runs']} within {duration_text(result['target_seconds'])}; "
            f"{kind['hits']} hit; an accelerator would have idled {duration_text(kind['idle_seconds'])}"
        )
    told = result["conditions"]
    lines.append(
        f"  on {told.get('host')}: {told.get('cores')} cores, load {told.get('load')} to {told.get('load_after')}, "
        f"{told.get('engine')}, {told.get('other_engines')} other engines, {told.get('nodes')} nodes"
    )
    return [*lines, *(f"  {caveat}" for caveat in result["caveats"])]


def _trial(key: UUID) -> Operation:
    found = Operation.objects.filter(pk=key, kind=OperationKind.LAUNCH_TRIAL).first()
    if found is None:
        raise CommandError("There is no such trial. They are among the operations: /operations?kind=LaunchTrial")
    return found
