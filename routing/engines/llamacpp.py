"""``python -m routing.engines.llamacpp --weights FOLDER --name NAME``: llama.cpp as a server, on the CPU.

An OpenAI API with streaming, cached tokens in its usage, and /metrics. It keeps one prompt in each of its slots: that
is its prefix cache. Its start is logged, until it serves; prompts never are. Needs the wheel ``xllamacpp``.
"""

from __future__ import annotations

import argparse
import ctypes
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from routing.domain.dialects import read_metrics

SLOTS, SLOT_TOKENS = 4, 2048
OUTPUT_TOKENS = 64  # where a request does not say
HTTP_THREADS = 8
EXIT_UNFIT = 3
FINISH_SECONDS = 30.0  # of whom is told to end, for what it answers
LOOK_SECONDS = 0.1
# llama.cpp's own levels: what it says of its start, and nothing at all.
TOLD_STARTING, TOLD_SERVING = 4, -1


class Unfit(Exception):
    """It cannot serve here, and starting it again changes nothing."""


def weights_file(folder: Path) -> Path:
    """The one GGUF file of a model's folder. Raises Unfit."""
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise Unfit(f"{folder} has {len(found)} files of type GGUF; llama.cpp serves a model that is one.")
    return found[0]


def serve(options: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT, and until what is being answered then is whole. Raises Unfit, or RuntimeError where
    llama.cpp cannot load the model."""
    try:
        import xllamacpp
    except ImportError:
        raise Unfit("llama.cpp is not installed here (the wheel xllamacpp, in requirements/embedded.txt).") from None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights_file(options.weights))
    parameters.model_alias = {options.name}
    parameters.hostnames, parameters.port = [options.host], options.port
    parameters.n_parallel, parameters.n_ctx = options.slots, options.slots * options.slot_tokens
    parameters.n_predict = OUTPUT_TOKENS
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options.threads
    parameters.n_threads_http, parameters.n_gpu_layers = HTTP_THREADS, 0
    # Prompts that left their slot are gone: what is measured is the cache of the slots alone.
    parameters.cache_ram_mib = 0
    parameters.endpoint_metrics, parameters.ui = True, False
    quieten = _quieten_of(xllamacpp)
    parameters.verbosity = TOLD_STARTING if quieten is not None else TOLD_SERVING
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    # llama.cpp counts from its first line on: this one says when that is.
    print(f"{datetime.now(UTC).isoformat(timespec='microseconds')} 0.00.000.000 I llama.cpp begins", flush=True)
    server = xllamacpp.Server(parameters)
    if quieten is not None:
        quieten(TOLD_SERVING)
    address = urlsplit(server.listening_address).netloc
    print(f"llama.cpp on {address}", flush=True)
    if options.address_file is not None:
        made = options.address_file.with_name(f"{options.address_file.name}.new")
        made.write_text(address)
        made.replace(options.address_file)
    stopped.wait()
    finish(f"http://{address}/metrics")


def finish(metrics: str) -> None:
    """Returns when no request is under way, or after FINISH_SECONDS. An answer leaves a moment after its slot is free,
    so nothing is under way when that was seen twice."""
    deadline, free = time.monotonic() + FINISH_SECONDS, 0
    while free < 2 and time.monotonic() < deadline:
        free = free + 1 if _under_way(metrics) == 0 else 0
        time.sleep(LOOK_SECONDS)


def _under_way(metrics: str) -> float:
    """Requests in slots and those that wait for one; -1 while that is not known."""
    try:
        with urllib.request.urlopen(metrics, timeout=2) as reply:
            found = read_metrics(reply.read().decode())
    except (OSError, ValueError, HTTPException):
        return -1
    return -1 if found.running is None else found.running + (found.waiting or 0)


def _quieten_of(xllamacpp: Any) -> Callable[[int], object] | None:
    """What sets how much is logged from now on: requests are not to be. None where the wheel has no such thing, and
    then nothing is logged from the beginning."""
    try:
        found = ctypes.CDLL(xllamacpp.xllamacpp.__file__)["_Z30common_log_set_verbosity_tholdi"]
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_int], None
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="llamacpp", description="Serves a GGUF model with llama.cpp")
    parser.add_argument("--weights", type=Path, required=True, help="folder with one .gguf file")
    parser.add_argument("--name", default="model", help="what clients call it")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--address-file", type=Path, help="where host:port is written once it serves")
    parser.add_argument("--slots", type=int, default=SLOTS, help="requests at once, and prompts that are kept")
    parser.add_argument("--slot-tokens", type=int, default=SLOT_TOKENS, help="of a prompt and its answer")
    parser.add_argument("--threads", type=int, default=1)
    try:
        serve(parser.parse_args())
    except Unfit as error:
        print(error, file=sys.stderr)
        return EXIT_UNFIT
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
