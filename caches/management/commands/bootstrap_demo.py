"""``manage.py bootstrap_demo``: what ``make run`` shows. Running it again changes nothing that is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from caches.services.demo.places import KubePlace
from caches.services.demo.setting_up import DemoStore, admin_create, demo_bootstrap
from controlplane.errors import HearthError


class Command(BaseCommand):
    help = (
        "Make the demo: the user admin, the local fleet, two sources, a few small models and their pins. "
        "HEARTH_DEMO_S3_FILE names a JSON file with the address and keys of an S3 server; or HEARTH_S3_ENDPOINT "
        "gives its address, and the secret demo-s3 its keys. Without either the models on S3 are left out. "
        "HEARTH_DEMO_KUBECONFIG and HEARTH_DEMO_CACHE_PATH name a Kubernetes cluster instead of the local fleet."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--sign-in", action="store_true", help="make the user admin, and nothing else yet")

    def handle(self, *args: Any, **options: Any) -> None:
        nodes = os.environ.get("HEARTH_DEMO_NODES", "8")
        if not nodes.isdecimal():
            raise CommandError("HEARTH_DEMO_NODES must be a number of nodes.")
        try:
            if options["sign_in"]:
                admin_create(self.stdout.write)
                return
            demo_bootstrap(store=_store(), nodes=int(nodes), say=self.stdout.write, kube=_kube())
        except HearthError as error:
            raise CommandError(f"{error.detail} {error.next_step}".strip()) from error


def _store() -> DemoStore | None:
    if file := os.environ.get("HEARTH_DEMO_S3_FILE"):
        try:
            found = json.loads(Path(file).read_text())
            keys = {"access_key_id": found["access_key"], "secret_access_key": found["secret_key"]}
            return DemoStore(endpoint=found["endpoint"], region=found.get("region", ""), keys=keys)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # Without the cause: it may quote the keys.
            raise CommandError(f"HEARTH_DEMO_S3_FILE cannot be used ({type(error).__name__}): {file}") from None
    if endpoint := os.environ.get("HEARTH_S3_ENDPOINT"):
        return DemoStore(endpoint=endpoint, region="us-east-1", keys=None)
    return None


def _kube() -> KubePlace | None:
    kubeconfig, cache_path = (os.environ.get(f"HEARTH_DEMO_{name}") for name in ("KUBECONFIG", "CACHE_PATH"))
    if not kubeconfig:
        return None
    if not cache_path:
        raise CommandError("HEARTH_DEMO_CACHE_PATH must name the folder in which the cluster's nodes keep models.")
    return KubePlace(Path(kubeconfig), cache_path)
