"""``python -m routing.dataplane --config FILE --port 8080``: router processes, without Django."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from routing.dataplane import certificates
from routing.dataplane.certificates import Authorities, Certificate
from routing.dataplane.exposing import Exposing
from routing.dataplane.router import BODY_BYTES, MOST_CLIENTS, Router, Shared, every
from routing.dataplane.scraping import Scraper
from routing.dataplane.telling import Teller
from routing.dataplane.workers import is_orphan, run_workers

ORPHAN_SECONDS = 1.0
OWN_FILES = 64  # open files that are neither a client's nor an instance's
GARBAGE = (20_000, 20, 20)  # as gc.set_threshold has them


async def serve(options: argparse.Namespace) -> None:
    served, trusted = _tls(options)
    take_open_files()
    clients = options.clients or most_clients()
    shared = Shared(upstream_tls=trusted.context, body_bytes=options.body_bytes, most_clients=clients)
    router = Router(options.config, tls=served.context if served else None, shared=shared)
    taken = socket.socket(fileno=options.fd) if options.fd is not None else None
    port = await router.start(options.host, options.port, taken=taken)
    print(f"routing on port {port}", flush=True)
    exposing, work = Exposing(shared), list[asyncio.Task[None]]()
    if options.metrics_port is not None:
        taken = socket.socket(fileno=options.metrics_fd) if options.metrics_fd is not None else None
        place = await exposing.start(options.metrics_host, options.metrics_port, taken=taken)
        print(f"metrics on port {place}", flush=True)
    if options.metrics_socket is not None:
        await exposing.start_at(options.metrics_socket)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    _settle()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    if options.follow:
        work.append(loop.create_task(_follow(router, exposing, f"{options.host}:{port}")))
    work.append(loop.create_task(every(certificates.LOOK_SECONDS, lambda: look_again(shared, served, trusted))))
    work.append(loop.create_task(_end_with_parent(stopped)))
    await stopped.wait()
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await exposing.stop()
    await router.stop(options.grace_seconds)


def _tls(options: argparse.Namespace) -> tuple[Certificate | None, Authorities]:
    """To serve with, and to reach instances with. Raises OSError, which names the option."""
    served, name = None, "--certificate and --key"
    try:
        if options.certificate:
            served = Certificate(options.certificate, options.key)
        name = "--upstream-ca"
        return served, Authorities(options.upstream_ca)
    except OSError as error:
        raise OSError(f"{name} cannot be used: {error}") from None


def look_again(shared: Shared, served: Certificate | None, trusted: Authorities) -> None:
    """At the files of both: whoever comes and whoever is asked from now on meets what they hold."""
    if served is not None:
        served.look()
    trusted.look()
    shared.upstream_tls = trusted.context


def take_open_files() -> None:
    """As many as this process may: each client and each request needs one, and the usual 1024 are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems name a limit here that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_clients() -> int:
    """As many as half of the open files allow: a request needs a connection to an instance as well."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CLIENTS
    return max(1, min(MOST_CLIENTS, (soft - OWN_FILES) // 2))


def _settle() -> None:
    """Requests leave no cycles behind, only connections do: look for them seldom, and never again among what stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)


async def _follow(router: Router, exposing: Exposing, address: str) -> None:
    # Only here: whoever has no Redis needs no client for it.
    from routing.dataplane.following import Follower, broker_url
    from routing.dataplane.talking import Talker

    fleet = router.shared.fleet
    teller = Teller(fleet, address=address)
    scraper = Scraper(fleet, lambda: router.shared.upstream_tls)

    async def work(connection: Any) -> None:
        await teller.tell(connection)
        await scraper.turn(connection)

    follower = Follower(broker_url(), lambda: fleet.config.version, router.take, work)
    exposing.following = lambda: follower.connected
    talking = asyncio.get_running_loop().create_task(Talker(broker_url(), fleet, teller.name).run())
    try:
        await follower.run()
    finally:
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
        scraper.stop()


async def _end_with_parent(stopped: asyncio.Event) -> None:
    """A worker whose parent was killed must not serve on unseen."""
    while not is_orphan():
        await asyncio.sleep(ORPHAN_SECONDS)
    stopped.set()


def main() -> int:
    parser = argparse.ArgumentParser(prog="router", description="Routes prompts to the instance with their prefix")
    parser.add_argument("--config", type=Path, required=True, help="file of endpoints, policies and instances")
    parser.add_argument("--follow", action="store_true", help="take what is published in REDIS_URL (or REDIS_URL_FILE)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one")
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)  # of a socket that listens there: its parent's
    parser.add_argument("--workers", type=int, default=1, help="processes that share the port (1)")
    parser.add_argument("--metrics-port", type=int, help="serve /metrics there, for all workers together")
    parser.add_argument("--metrics-host", default="127.0.0.1")
    parser.add_argument("--metrics-fd", type=int, help=argparse.SUPPRESS)  # as --fd
    parser.add_argument("--metrics-socket", type=Path, help=argparse.SUPPRESS)  # a worker's, for its parent
    parser.add_argument("--certificate", help="serve TLS with this chain (PEM)")
    parser.add_argument("--key", help="the certificate's key (PEM)")
    parser.add_argument("--upstream-ca", help="trust these for instances that serve TLS (PEM)")
    parser.add_argument("--body-bytes", type=int, default=BODY_BYTES, help="refuse greater bodies (64 MiB)")
    parser.add_argument("--clients", type=int, help="refuse more at once (half of the open files, at most 50,000)")
    parser.add_argument("--grace-seconds", type=float, default=30.0, help="how long requests may run on after a stop")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    for name in ("workers", "clients"):
        if (number := getattr(options, name)) is not None and number < 1:
            parser.error(f"--{name} is 1 or more")
    if options.fd is not None and options.workers > 1:
        parser.error("--fd is for one worker: several share a port that they take themselves")
    if options.follow and (why := _no_broker()):
        parser.error(why)
    if options.workers > 1:
        metrics = (options.metrics_host, options.metrics_port) if options.metrics_port is not None else None
        try:
            return run_workers(options.workers, _for_one(options), options.host, options.port, metrics)
        except OSError as error:
            logging.error("the router cannot start: %s", error)
            return 1
    try:
        uvloop.run(serve(options))
    except OSError as error:  # also what TLS says of certificates: a port, a file or an address that cannot be had
        logging.error("the router cannot start: %s", error)
        return 1
    return 0


def _no_broker() -> str:
    """Why nothing can be followed, "" when it can: better said at the start than never."""
    from routing.dataplane.following import broker_url

    try:
        return "" if broker_url() else "--follow needs REDIS_URL, or a file that REDIS_URL_FILE names"
    except (OSError, ValueError) as error:
        return f"--follow: REDIS_URL_FILE cannot be read ({type(error).__name__})"


def _for_one(options: argparse.Namespace) -> list[str]:
    """What each of several workers is told beside where it listens."""
    told = ["--config", str(options.config), "--grace-seconds", str(options.grace_seconds)]
    told += ["--body-bytes", str(options.body_bytes)]
    told += ["--clients", str(options.clients)] if options.clients else []
    told += ["--follow"] if options.follow else []
    for name in ("certificate", "key", "upstream_ca"):
        if value := getattr(options, name):
            told += [f"--{name.replace('_', '-')}", value]
    return told


if __name__ == "__main__":
    raise SystemExit(main())
