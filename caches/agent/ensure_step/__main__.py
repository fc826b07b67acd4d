"""``python -m caches.agent.ensure_step --digest sha256:… --store … --model … --mount …``: see the package."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from caches.agent.asking import Answer, End, Found, Progress
from caches.agent.ensure_step import fetch, model_folder
from caches.agent.ensure_step.ask import ask_agent
from caches.agent.ensure_step.options import Options, read_options
from caches.agent.ensure_step.reasons import NO_STORE, by_itself, not_given
from caches.agent.store import Store, StoreBusy, name_of
from controlplane.errors import HearthError

log = logging.getLogger("hearth-ensure")
EXIT_FAILED = 1
EXIT_USAGE = 2
LOCK_SECONDS = 1.0
# How an agent says that it may give the artifact later; NO_ROOM and FAILED are ends of a fetch.
LATER = (End.UNKNOWN, End.PAUSED, End.LEAVING, End.STOPPING)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The termination message: what was found (Found, or ``failed``, or ``waiting`` where nothing was fetched because
    nobody could yet), bytes read for it, seconds, the store they came from; ``message``: why the node's store was not
    used, or why there is nothing."""

    found: str
    bytes: int = 0
    seconds: float = 0.0
    source: str = ""
    message: str = ""


class NotYetError(OSError):
    """There is nothing, and nobody tried: it is asked for again."""


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    start = time.monotonic()
    try:
        options = read_options(arguments)
        name_of(options.digest)
    except (ValueError, HearthError) as error:
        log.error("%s", error)
        return EXIT_USAGE
    try:
        outcome = ensure(options)
    except (HearthError, OSError) as error:
        said = _said(error)
        log.error("%s is not present: %s", options.digest, said)
        found = "waiting" if isinstance(error, NotYetError) else "failed"
        _report(options, Outcome(found, seconds=time.monotonic() - start, message=said[:500]))
        return EXIT_FAILED
    outcome = replace(outcome, seconds=round(time.monotonic() - start, 6))
    log.info("%s: %s, %d bytes in %.3f s", options.digest, outcome.found, outcome.bytes, outcome.seconds)
    _report(options, outcome)
    return 0


def ensure(options: Options) -> Outcome:
    """Make the artifact present; what was found, without the seconds. HearthError or OSError when it is not."""
    store = Store.at(options.store)
    answer = ask_agent(options.store, options.digest, options.who, tell=_tell, silence_seconds=options.answer_seconds)
    if answer is not None and answer.end is End.READY:
        if (marker := store.marker(options.digest)) is not None:
            model_folder.link_files(options.model, options.mount, marker.files)
            return Outcome(answer.found, answer.bytes, source=answer.source)
        answer = None  # another store than the agent's is mounted here, or the tree went this very moment
    if answer is not None:
        return _local(options, not_given(answer), later=_is_later(answer))
    return _without_agent(options, store)


def _without_agent(options: Options, store: Store) -> Outcome:
    """Nobody answers: what is warm is used, what is cold is fetched into the store if it can be locked."""
    if not fetch.has_agent_store(options.store):
        return _local(options, NO_STORE)
    if (marker := fetch.whole(store, options.digest)) is not None:
        log.info("no agent answers; the copy is whole")
        model_folder.link_files(options.model, options.mount, marker.files)
        return Outcome(Found.HIT)
    if options.source is None:
        return _local(options, "no agent answers", later=True)
    try:
        manifest = fetch.manifest_by_pod(options.source, options.secret, options.digest)
    except HearthError as error:
        raise OSError(by_itself(error, options, "no agent answers")) from error
    try:
        with store.lock(LOCK_SECONDS):
            log.info("no agent answers; fetching into the store")
            had = fetch.has_begun(store, options.digest)
            marker, count = fetch.fetch(
                store, manifest, options.source, options.secret, high_watermark=options.high_watermark, tell=_count
            )
            store.touch_used(options.digest)
    except (StoreBusy, HearthError, OSError) as error:
        return _local(options, f"the store cannot take it: {_said(error)}")
    model_folder.link_files(options.model, options.mount, marker.files)
    return Outcome(Found.PARTIAL if had else Found.MISS, count, source=options.source.connection.name)


def _is_later(answer: Answer) -> bool:
    """Whether it may be given later and nothing was read for it."""
    return answer.end in LATER and not answer.bytes


def _local(options: Options, why: str, *, later: bool = False) -> Outcome:
    """Into the pod's own folder: slower for the next pod, but this one starts. ``why`` not into the node's store, and
    whether that may be otherwise ``later``."""
    log.info("%s", why)
    if options.source is None:
        said = f"the pod was given no source of its own (HEARTH_SOURCE), so it cannot fetch by itself; {why}"
        raise NotYetError(said) if later else OSError(said)
    log.info("fetching into the pod")
    own = Store(options.model / model_folder.OWN)
    try:
        own.prepare()
        manifest = fetch.manifest_by_pod(options.source, options.secret, options.digest)
        with own.lock(LOCK_SECONDS):
            marker, count = fetch.fetch(own, manifest, options.source, options.secret, high_watermark=1.0, tell=_count)
    except (HearthError, OSError) as error:
        raise OSError(by_itself(error, options, why)) from error
    target = model_folder.own_target(own.tree(options.digest), options.model)
    model_folder.link_files(options.model, target, marker.files)
    return Outcome(Found.LOCAL, count, source=options.source.connection.name, message=why[:500])


def _said(error: Exception) -> str:
    return error.detail if isinstance(error, HearthError) else str(error)


def _tell(progress: Progress) -> None:
    if progress.bytes_total:
        eta = f", {progress.eta:.0f} s left" if progress.eta is not None else ""
        log.info("%s: %d of %d bytes%s", progress.state, progress.bytes_done, progress.bytes_total, eta)


def _count(done: int, total: int) -> None:
    log.info("%d of %d bytes", done, total)


def _report(options: Options, outcome: Outcome) -> None:
    try:
        options.report.write_text(json.dumps(asdict(outcome)) + "\n")
    except OSError as error:
        log.warning("the outcome could not be written down: %s", error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
