"""``python -m caches.agent --fleet <folder> --node <name> --uid <uid>``: the agent of one node of the local fleet."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from caches.agent.runner import Replaced, Runner
from caches.agent.store import Store, StoreBusy
from caches.agent.tuning import Tuning
from caches.sources import open_source
from controlplane.clusters.local.link import LocalLink

EXIT_REPLACED = 3  # another incarnation of the node took over
EXIT_BUSY = 4  # another agent holds the store
EXIT_NO_STORE = 5  # the store's folder cannot be used


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="caches.agent", description=__doc__)
    parser.add_argument("--fleet", type=Path, required=True, help="folder of the local fleet")
    parser.add_argument("--node", required=True, help="name of the node")
    parser.add_argument("--uid", required=True, help="uid of this incarnation of the node")
    parser.add_argument("--root", type=Path, help="folder that holds the store (default: the node's folder)")
    parser.add_argument("--segment-bytes", type=int, help="unit of resume (default: 16 MiB)")
    parser.add_argument("--lock-wait", type=float, help="seconds to wait for another agent to leave the store")
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=os.environ.get("LOG_LEVEL", "INFO"),
        format=f"%(asctime)s %(levelname)s {options.node} %(name)s: %(message)s",
        stream=sys.stderr,
    )
    tuning = Tuning()
    if options.segment_bytes:
        tuning = replace(tuning, segment_bytes=max(4096, options.segment_bytes))
    if options.lock_wait is not None:
        tuning = replace(tuning, lock_wait_seconds=max(0.0, options.lock_wait))
    runner = Runner(
        link=LocalLink(options.fleet, options.node, options.uid),
        store=Store(options.root or options.fleet / "nodes" / options.node),
        open_source=open_source,
        tuning=tuning,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # From a thread: a handler interrupts the very code that may hold the lock of the event it would set.
        signal.signal(number, lambda *_: threading.Thread(target=runner.stop).start())
    return _run(runner)


def _run(runner: Runner) -> int:
    try:
        runner.run()
    except Replaced as error:
        return _say(EXIT_REPLACED, f"this node is another one now, nothing more is written: {error}")
    except StoreBusy as error:
        return _say(EXIT_BUSY, f"{error}; stop it first, two writers never share a store")
    except OSError as error:
        return _say(EXIT_NO_STORE, f"the store cannot be used: {error}")
    return 0


def _say(code: int, message: str) -> int:
    logging.getLogger(__name__).error("%s", message)
    return code


if __name__ == "__main__":
    status = main(sys.argv[1:])
    logging.shutdown()
    os._exit(status)  # a thread that still waits for a stalled source must not hold the process
