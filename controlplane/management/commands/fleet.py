"""The local fleet from the command line: run it, look at it, and provoke what happens to real machines.

Every command works through the fleet's store, so a running fleet follows within a second.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection

from controlplane.clusters import codec
from controlplane.clusters.fleet_audit import Facts, fleet_changed, fleet_facts
from controlplane.clusters.gateway import Conflict, GatewayError, NotFound
from controlplane.clusters.local.engines import DEFAULT_ENGINE, Engines
from controlplane.clusters.local.fleet import DEFAULT_POOLS, FleetNode, LocalFleet, PoolLayout
from controlplane.clusters.local.nodes import POOL_LABEL
from controlplane.clusters.local.scaling import NotServed, endpoint_scale, engine_kill
from controlplane.clusters.local.serving import (
    ENDPOINT_LABEL,
    MOST_REPLICAS,
    endpoint_end,
    endpoint_serve,
    engines_all,
)
from controlplane.clusters.local.sizes import format_size, parse_size
from controlplane.clusters.local.supervisor import DEFAULT_AGENT, Supervisor
from controlplane.errors import HearthError


class Command(BaseCommand):
    help = "Run the local fleet and make its nodes come, go, fill up or become unreachable."
    requires_system_checks = []  # it needs no database

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dir", type=Path, default=settings.STATE_DIR / "fleet", help="the fleet's folder")
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=argparse.ArgumentParser)
        run = verbs.add_parser("run", help="start the nodes' agents and keep them running; Ctrl-C stops them")
        run.add_argument("--nodes", type=_count, default=8, help="nodes made at the first start (8)")
        run.add_argument("--agent", default="", help=argparse.SUPPRESS)
        run.add_argument("--engine", default="", help=argparse.SUPPRESS)
        _sizes(run)
        verbs.add_parser("list", help="the nodes").add_argument("--json", action="store_true", help="for programs")
        add = verbs.add_parser("add", help="a new, empty node")
        add.add_argument("name")
        add.add_argument("--pool", default=DEFAULT_POOLS[0].name)
        add.add_argument("--capacity", type=_size, default=DEFAULT_POOLS[0].capacity_bytes, help="e.g. 512MiB")
        for verb, (_, told) in _NODE_VERBS.items():
            verbs.add_parser(verb, help=told).add_argument("name")
        fill = verbs.add_parser("fill", help="take bytes of the node's disk with something that is not Hearth's")
        fill.add_argument("name")
        fill.add_argument("bytes", type=_size, help="e.g. 300MiB")
        for verb, told in (("use", "let an engine on the node use an artifact"), ("unuse", "end that engine")):
            using = verbs.add_parser(verb, help=told)
            using.add_argument("name")
            using.add_argument("digest", type=_digest, help="sha256:…")
        serve = verbs.add_parser("serve", help="have engines serve an artifact under a name, on nodes that keep it")
        serve.add_argument("name", help="of the endpoint")
        serve.add_argument("digest", type=_digest, help="sha256:…")
        serve.add_argument("--replicas", type=_replicas, default=1, help="engines (1)")
        serve.add_argument("--model", default="", help="what clients call it (the endpoint's name)")
        serve.add_argument("--pool", default="", help="whose nodes may have an engine (any)")
        verbs.add_parser("unserve", help="the reverse of serve").add_argument("name")
        scale = verbs.add_parser("scale", help="more or fewer engines of what is served")
        scale.add_argument("name", help="of the endpoint")
        scale.add_argument("replicas", type=_replicas, help="engines")
        scale.add_argument("--node", default="", help="where new ones go (where a copy is, else where it is quiet)")
        kill = verbs.add_parser("kill", help="crash an engine; it is started again")
        kill.add_argument("name", help="the engine's, or its endpoint's")
        verbs.add_parser("engines", help="the engines, where they are and where they answer")

    def handle(self, *args: Any, **options: Any) -> None:
        fleet = LocalFleet(options["dir"])
        try:
            if options["verb"] == "run":
                self._run(fleet, options)
                return
            warning = _pool_warning(fleet, options) if options["verb"] == "add" else ""
            looks = options["verb"] in ("list", "engines")
            before = None if looks else fleet_facts(fleet, options["verb"], options["name"])
            answer = _answer(fleet, options)
            self.stdout.write(answer)
            if warning:
                self.stderr.write(warning)
            if not looks:
                self._write_down(fleet, options, before, answer)
        except NotServed as error:
            raise CommandError(f"{error} See them with: manage.py fleet engines") from None
        except NotFound as error:
            raise CommandError(f"{error} See them with: manage.py fleet list") from None
        except Conflict as error:
            raise CommandError(f"{error} Choose another name, or remove it first.") from None
        except GatewayError as error:
            raise CommandError(str(error)) from None
        except HearthError as error:
            raise CommandError(f"{error.detail} {error.next_step}") from None
        except OSError as error:
            reason = f"{options['dir']} cannot be used ({error.strerror})"
            raise CommandError(f"{reason}. Give another folder with --dir.") from None

    def _run(self, fleet: LocalFleet, options: Mapping[str, Any]) -> None:
        stop: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: stop.append(received))
        fresh = fleet.create(nodes=options["nodes"], pools=options["pools"] or DEFAULT_POOLS)
        count = len(fleet.nodes())
        self._say(f"fleet: {count} nodes {'made' if fresh else 'found'} in {fleet.folder}")
        if not fresh and count != options["nodes"]:
            self._say("fleet: --nodes counts at the first start only; use 'fleet add' and 'fleet remove'")
        agent = shlex.split(options["agent"]) or DEFAULT_AGENT
        engines = Engines(fleet, engine=shlex.split(options["engine"]) or DEFAULT_ENGINE, say=self._say)
        Supervisor(fleet, agent=agent, engines=engines, say=self._say).run(lambda: bool(stop))
        self._say("fleet: stopped")

    def _write_down(self, fleet: LocalFleet, options: Mapping[str, Any], before: Facts | None, answer: str) -> None:
        """In the audit trail, where there is one: a fleet works without a database too."""
        if connection.connection is None:
            connection.settings_dict["OPTIONS"].pop("pool", None)  # it would wait for a database that is not there
        try:
            fleet_changed(fleet=fleet, verb=options["verb"], name=options["name"], before=before, message=answer)
        except DatabaseError as error:
            reason = str(error).strip().partition("\n")[0]
            self.stderr.write(f"Not written to the audit trail, because the database does not answer: {reason}")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


_NODE_VERBS: Mapping[str, tuple[Callable[[LocalFleet, str], str], str]] = {
    "remove": (lambda f, n: f"{f.remove(n).name} removed with its disk", "take the node away with its disk"),
    "replace": (lambda f, n: f"{n} is {f.replace(n).uid} now, with an empty disk", "new machine under the same name"),
    "cordon": (lambda f, n: f"{f.cordon(n).name} cordoned", "let nothing new be scheduled on the node"),
    "uncordon": (lambda f, n: f"{f.uncordon(n).name} uncordoned", "the reverse of cordon"),
    "stop": (lambda f, n: f"{f.stop(n).name} stopped: unreachable until 'fleet start {n}'", "make it unreachable"),
    "start": (lambda f, n: f"{f.start(n).name} started", "the reverse of stop"),
    "unfill": (lambda f, n: f"{f.fill(n, 0).name} freed", "the reverse of fill"),
}


def _answer(fleet: LocalFleet, options: Mapping[str, Any]) -> str:
    verb, name = options["verb"], options.get("name", "")
    if verb in _NODE_VERBS:
        return _NODE_VERBS[verb][0](fleet, name)
    if verb == "list":
        return _json(fleet) if options["json"] else _table(fleet)
    if verb == "add":
        node = fleet.add(name, pool=options["pool"], capacity_bytes=options["capacity"])
        return f"{name} added to {options['pool']} with {format_size(node.capacity_bytes)} ({node.uid})"
    if verb == "fill":
        fleet.fill(name, options["bytes"])
        return f"{format_size(options['bytes'])} of {name} taken"
    if verb == "serve":
        chosen = {key: options[key] for key in ("replicas", "model", "pool")}
        endpoint = endpoint_serve(fleet.store, name, options["digest"], **chosen)
        return f"{endpoint.name} is served by {endpoint.replicas} engines ({endpoint.uid})"
    if verb == "unserve":
        return f"{name} is served no more" if endpoint_end(fleet.store, name) else f"{name} was not served"
    if verb == "scale":
        endpoint = endpoint_scale(fleet, name, options["replicas"], node=options["node"])
        return f"{endpoint.name} is served by {endpoint.replicas} engines ({endpoint.uid})"
    if verb == "kill":
        engine = engine_kill(fleet, name)
        return f"{engine.name.rpartition('/')[2]} on {engine.node_name} is killed, and starts again"
    if verb == "engines":
        return _engines(fleet)
    if verb == "use":
        return f"{fleet.use(name, options['digest']).name} uses it"
    return f"{name} uses it no more" if fleet.unuse(name, options["digest"]) else f"{name} did not use it"


def _pool_warning(fleet: LocalFleet, options: Mapping[str, Any]) -> str:
    """A pool may be made after its nodes, and only Hearth knows it: so a name that no node has is said, not refused."""
    name, pool = options["name"], options["pool"]
    pools = sorted({row.node.labels[POOL_LABEL] for row in fleet.nodes() if POOL_LABEL in row.node.labels})
    if pool in pools or (not pools and pool in {layout.name for layout in DEFAULT_POOLS}):
        return ""
    return (
        f"Warning: no other node is in {pool} (there are {', '.join(pools) or 'none yet'}). Nothing is warmed "
        f"on {name} until a pool selects {POOL_LABEL}={pool}; make that pool, or remove the node and name another."
    )


def _state(row: FleetNode) -> str:
    if row.node.stopped:
        return "stopped"
    ready = {True: "ready", False: "not ready", None: "unknown"}[row.ready]
    return ready if row.node.schedulable else f"{ready}, cordoned"


def _table(fleet: LocalFleet) -> str:
    lines = [("NAME", "POOL", "STATE", "CAPACITY", "OTHER", "IN USE", "UID")]
    lines += [
        (
            row.node.name,
            row.node.labels.get(POOL_LABEL, "-"),
            _state(row),
            format_size(row.node.capacity_bytes),
            format_size(row.other_bytes),
            str(len(row.consumers)),
            row.node.uid,
        )
        for row in fleet.nodes()
    ]
    return _aligned(lines) if len(lines) > 1 else "No nodes. Add one with: manage.py fleet add NAME"


def _engines(fleet: LocalFleet) -> str:
    lines = [("NAME", "ENDPOINT", "NODE", "STATE", "RESTARTS", "ADDRESS", "UID")]
    with fleet.store.read() as session:
        engines = sorted(engines_all(session).values(), key=lambda one: one.name)
    for one in engines:
        state = "ready" if one.ready else "leaving" if one.leaving else "not ready"
        name = one.name.rpartition("/")[2]
        where = one.address if one.ready else "-"
        lines.append((name, one.labels[ENDPOINT_LABEL], one.node_name, state, str(one.restart_count), where, one.uid))
    return _aligned(lines) if engines else "No engines. Have some with: manage.py fleet serve NAME DIGEST"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _json(fleet: LocalFleet) -> str:
    rows = [
        {
            **codec.encode(row.node),
            "ready": row.ready,
            "state": _state(row),
            "otherBytes": row.other_bytes,
            "consumers": codec.encode(row.consumers),
        }
        for row in fleet.nodes()
    ]
    return json.dumps(rows, indent=2)


def _sizes(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--pool",
        dest="pools",
        action="append",
        type=_layout,
        default=[],
        metavar="NAME=SIZE",
        help="a pool of the first start and its nodes' disk size, again for each (pool-a=1GiB, pool-b=512MiB)",
    )


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    return _number(text, "nodes from 0 to 1000")


def _replicas(text: str) -> int:
    return _number(text, f"engines from 0 to {MOST_REPLICAS}")


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 4 or int(text) > 1000:
        raise argparse.ArgumentTypeError(f"write a number of {what}")
    return int(text)


def _digest(text: str) -> str:
    algorithm, _, value = text.partition(":")
    if algorithm != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise argparse.ArgumentTypeError("write the artifact's digest: sha256: and 64 hexadecimal digits")
    return text


def _layout(text: str) -> PoolLayout:
    name, _, size = text.partition("=")
    return PoolLayout(name, _size(size), "nvme")
