"""The agent of one node, as a process.

``--fleet FOLDER --node NAME --uid UID`` on the local fleet, ``--kubernetes --node NAME --root FOLDER`` in a pod.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from caches.agent import alive, links
from caches.agent.runner import Replaced, Runner
from caches.agent.store import Store, StoreBusy
from caches.agent.tuning import Tuning

EXIT_REPLACED = 3  # another incarnation of the node took over
EXIT_BUSY = 4  # another agent holds the store
EXIT_NO_STORE = 5  # the store's folder cannot be used


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="caches.agent", description=__doc__)
    links.add_arguments(parser)
    parser.add_argument("--root", type=Path, help="folder that holds the store (default: the node's folder)")
    parser.add_argument("--segment-bytes", type=int, help="unit of resume (default: 16 MiB)")
    parser.add_argument("--lock-wait", type=float, help="seconds to wait for another agent to leave the store")
    options = parser.parse_args(argv)
    beat = alive.heartbeat()
    beat()
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
    if problem := links.problem(options):
        parser.error(problem)
    stopping = threading.Event()
    stops: list[Callable[[], None]] = [stopping.set]
    for number in (signal.SIGTERM, signal.SIGINT):
        # From a thread: a handler interrupts the very code that may hold the lock of the event it would set.
        signal.signal(number, lambda *_: threading.Thread(target=lambda: [stop() for stop in stops]).start())
    link = links.link_for(options, stopping, beat)
    if link is None:
        return 0  # asked to stop before it knew who it is
    store, open_source = Store(links.root_of(options)), links.open_source_for(options)
    runner = Runner(link=link, store=store, open_source=open_source, tuning=tuning, beat=beat)
    stops.append(runner.stop)
    if stopping.is_set():  # asked between the two lines
        return 0
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
