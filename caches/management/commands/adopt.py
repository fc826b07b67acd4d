"""``manage.py adopt CLUSTER``: take over what is published on a running cluster, after this database was lost."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from caches.domain.text import plural
from caches.services.adoption import Adoption, cluster_adopt
from controlplane.accounts.actors import person_at_terminal
from controlplane.clusters.models import Cluster
from controlplane.errors import HearthError


class Command(BaseCommand):
    help = "Read versions, their sources and their copies back from a cluster. Nothing on the cluster is changed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("cluster", help="its name, as in the list of clusters")
        parser.add_argument("--dry-run", action="store_true", help="say what would be adopted, and write nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        cluster = Cluster.objects.filter(name=options["cluster"]).first()
        if cluster is None:
            names = ", ".join(Cluster.objects.order_by("name").values_list("name", flat=True)) or "none yet"
            raise CommandError(f"There is no cluster {options['cluster']}. Clusters: {names}.")
        try:
            found = cluster_adopt(actor=person_at_terminal(), cluster_id=cluster.pk, dry_run=options["dry_run"])
        except HearthError as error:
            raise CommandError(f"{error.detail} {error.next_step}") from error
        self._tell(found)

    def _tell(self, found: Adoption) -> None:
        verb = "Would adopt" if found.dry_run else "Adopted"
        self.stdout.write(
            f"{verb} {plural(len(found.versions), 'version')}, {plural(len(found.connections), 'source connection')} "
            f"and {plural(found.copies, 'copy' if found.copies == 1 else 'copie')}; {found.known} known before."
        )
        for name in (*found.connections, *found.versions):
            self.stdout.write(f"  {name}")
        if found.connections and not found.dry_run:
            self.stdout.write("Credentials do not travel: store each connection's secret again (manage.py secret set).")
        for item in found.not_adopted:
            held = (
                f" On {', '.join(item.nodes[:5])}{' and others' if len(item.nodes) > 5 else ''}." if item.nodes else ""
            )
            self.stdout.write(f"Not adopted: {item.name or item.digest[:19]}: {item.reason} {item.next_step}{held}")
        for tree in found.orphans:
            self.stdout.write(f"Orphaned tree {tree.name}: {tree.bytes} bytes on {plural(len(tree.nodes), 'node')}.")
