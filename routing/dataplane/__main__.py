"""``python -m routing.dataplane --config FILE --port 8080``: one router process, without Django."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import ssl
import sys
from pathlib import Path

import uvloop

from routing.dataplane.router import Router, Shared
from routing.dataplane.telling import Teller


async def serve(options: argparse.Namespace) -> None:
    tls = None
    if options.certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(options.certificate, options.key)
    shared = Shared(upstream_tls=ssl.create_default_context(cafile=options.upstream_ca))
    router = Router(options.config, tls=tls, shared=shared)
    port = await router.start(options.host, options.port)
    print(f"routing on port {port}", flush=True)
    follower = _follower(router, f"{options.host}:{port}") if options.follow else None
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    await stopped.wait()
    if follower is not None:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
    await router.stop(options.grace_seconds)


def _follower(router: Router, address: str) -> asyncio.Task[None]:
    # Only here: whoever has no Redis needs no client for it.
    from routing.dataplane.following import Follower, broker_url

    fleet = router.shared.fleet
    teller = Teller(fleet, address=address)
    follower = Follower(broker_url(), lambda: fleet.config.version, router.take, teller.tell)
    return asyncio.get_running_loop().create_task(follower.run())


def main() -> int:
    parser = argparse.ArgumentParser(prog="router", description="Routes prompts to the instance with their prefix")
    parser.add_argument("--config", type=Path, required=True, help="file of endpoints, policies and instances")
    parser.add_argument("--follow", action="store_true", help="take what is published in REDIS_URL (or REDIS_URL_FILE)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one")
    parser.add_argument("--certificate", help="serve TLS with this chain (PEM)")
    parser.add_argument("--key", help="the certificate's key (PEM)")
    parser.add_argument("--upstream-ca", help="trust these for instances that serve TLS (PEM)")
    parser.add_argument("--grace-seconds", type=float, default=30.0, help="how long requests may run on after a stop")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    uvloop.run(serve(options))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
