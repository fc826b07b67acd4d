"""The machines of ``make run-kube`` from the command line: look at them, and provoke what happens to real ones."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.clusters.local.sizes import parse_size
from controlplane.embedded.kube.verbs import Request, ask
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import ROOT
from controlplane.errors import HearthError

_NODE_VERBS: Mapping[str, str] = {
    "stop": "power off: kubelet, containerd and every pod end without a word",
    "start": "the reverse of stop: the same machine with the same disk",
    "replace": "a new machine with an empty disk under the same name",
    "remove": "take the machine away with its disk",
    "unfill": "the reverse of fill",
}


class Command(BaseCommand):
    help = "Let machines of the Kubernetes that 'make run-kube' runs die, come back, fill up, join or leave."
    requires_system_checks = []  # it needs no database

    def add_arguments(self, parser: CommandParser) -> None:
        folder = Path(os.environ.get("HEARTH_STATE_DIR") or ROOT / ".run-kube") / "kube"
        parser.add_argument("--dir", type=Path, default=folder, help="the cluster's folder (.run-kube/kube)")
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=argparse.ArgumentParser)
        verbs.add_parser("list", help="the machines; the cluster's own view of them: kubectl get nodes")
        for verb, told in _NODE_VERBS.items():
            one = verbs.add_parser(verb, help=told)
            one.add_argument("name")
            if verb == "stop":
                one.add_argument("--keep-pods", action="store_true", help="only kubelet and containerd")
        fill = verbs.add_parser("fill", help="take bytes of the machine's disk with something that is not Hearth's")
        fill.add_argument("name")
        fill.add_argument("bytes", type=_size, help="e.g. 300MiB")
        add = verbs.add_parser("add", help="a new machine with an empty disk")
        add.add_argument("name")
        add.add_argument("--pool", default="pool-a", help="'' for none (pool-a)")
        add.add_argument("--capacity", type=_size, default=1024 * 2**20, help="size of its disk (1GiB)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.stdout.write(ask(options["dir"], _request(options)))
        except EmbeddedError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{options['dir']} cannot be used ({error.strerror}). Run this as root.") from error


def _request(options: Mapping[str, Any]) -> Request:
    verb, name = options["verb"], options.get("name", "")
    match verb:
        case "fill":
            return Request("fill", name, {"bytes": options["bytes"]})
        case "unfill":
            return Request("fill", name, {"bytes": 0})
        case "add":
            return Request("add", name, {"pool": options["pool"], "bytes": options["capacity"]})
        case "stop":
            return Request("stop", name, {"keep_pods": options["keep_pods"]})
        case _:
            return Request(verb, name)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except (ValueError, HearthError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
