"""The program behind ``make run`` and ``make run-kube``: servers, migrations, the demo, the processes, until Ctrl-C.

The same processes as docker-compose.yml starts, plus the local fleet or a real Kubernetes; DATABASE_URL and REDIS_URL
(or files named by ``*_FILE``) replace the embedded servers.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from controlplane.embedded import ends, ports, spawn
from controlplane.embedded.files import write_private
from controlplane.embedded.problems import EmbeddedError, tail
from controlplane.embedded.processes import ROOT, AlreadyRunning, Spec, holder
from controlplane.embedded.readiness import readiness_of
from controlplane.embedded.servers import EmbeddedServers

if TYPE_CHECKING:
    from controlplane.embedded.kube_program import KubeSide

Say = Callable[[str], object]
_APP = "controlplane.celery"
_PATIENCE = 60.0  # seconds until the web application must answer; a cold start compiles every module once


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line chose. ``commands``: the management commands that exist. ``router_port`` 0: no router.

    ``fds``: of the sockets that listen on its ports. They are held to the end, and inherited by whoever serves there:
    what answers at an address that was announced is this program's own, also while a server starts again.
    """

    state: Path
    port: int
    nodes: int
    demo: bool
    commands: frozenset[str]
    kubernetes: bool = False  # three real nodes instead of the local fleet; ``nodes`` says nothing then
    router_port: int = 0
    metrics_port: int = 0  # where the router says /metrics
    fds: Mapping[int, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where the pages are."""
        return f"http://{ports.HOST}:{self.port}/"


def run(options: Options, *, say: Say, terminal: bool) -> None:
    """Start everything, print the address and the sign-in, keep it running until a signal, stop everything."""
    began = time.monotonic()
    running = holder(options.state)
    if running is not None:
        raise AlreadyRunning(
            f"Hearth already runs on {options.state} (process {running}){_known_address(options.state)}. "
            "Use that one, or stop it with Ctrl-C first; a second one needs its own HEARTH_STATE_DIR and port."
        )
    if options.nodes < 1:
        raise EmbeddedError(f"--nodes {options.nodes} leaves nothing to keep warm; use 1 or more.")
    make = "make run-kube" if options.kubernetes else "make run"
    remedy = f"Stop it, or choose another port: {make} PORT={options.port + 10}"
    with (
        ports.take_port(options.port, remedy) as web,
        _beside(options.port) as router,
        _anywhere() as metrics,
        _signals_interrupt(),
    ):
        taken = {one.getsockname()[1]: one.fileno() for one in (web, router, metrics)}
        numbers = {"router_port": router.getsockname()[1], "metrics_port": metrics.getsockname()[1]}
        options = replace(options, fds=taken, **numbers)
        try:
            _run(options, say, terminal, began)
        except KeyboardInterrupt:
            say("Stopped. What was stored is kept in " + str(options.state))


def _beside(port: int) -> socket.socket:
    """The router listens beside the pages where that is free, so that a person can guess it."""
    if port < 65_535 and ports.reserve([port + 1]):
        with suppress(EmbeddedError):  # somebody who reserves nothing was faster
            return ports.take_port(port + 1, "")
    return _anywhere()


def _anywhere() -> socket.socket:
    return ports.take_port(ports.free_port(), "Start again: another port is chosen then.")


def stop_running(state: Path, within: float = 60.0) -> None:
    """Stop the program that holds ``state`` and wait for it; nothing to do where none does."""
    pid = holder(state)
    if not pid:
        return
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # it ended by itself meanwhile
    except PermissionError:
        raise EmbeddedError(f"Process {pid} belongs to another user. Stop it as that user.") from None
    until = time.monotonic() + within
    # The program lets go of its own state first, and of its Kubernetes when that has put the machine back.
    while pid in (holder(state), holder(state / "kube")):
        if time.monotonic() > until:
            raise EmbeddedError(f"Process {pid} does not stop. End it with 'kill -9 {pid}'; nothing else stays behind.")
        time.sleep(0.1)


def _run(options: Options, say: Say, terminal: bool, began: float) -> None:
    say("Hearth is starting (the first time takes a little longer) …")
    servers = EmbeddedServers(
        options.state,
        postgres=not _given("DATABASE_URL"),
        valkey=not _given("REDIS_URL"),
        s3=options.demo,
        s3_later=True,
    )
    with ExitStack() as stack:
        kube = stack.enter_context(_kubernetes(options, say)) if options.kubernetes else None
        if kube is not None:
            kube.prepare()
        stack.enter_context(servers)
        try:
            (options.state / "static").mkdir(exist_ok=True)  # WhiteNoise warns about a folder that is missing
            readiness = readiness_of(options.address, began)
            _start(options, servers, kube, say, terminal)
            while True:
                for line in servers.supervisor.check() + (kube.check() if kube else []) + readiness.check():
                    say(line)
                time.sleep(0.5)
        finally:
            # A second Ctrl-C must not leave half of it behind.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            say("Stopping …")  # at once: on a busy machine the end takes a while, in which a person presses again
            (options.state / "address").unlink(missing_ok=True)


def _kubernetes(options: Options, say: Say) -> KubeSide:
    from controlplane.embedded.kube_program import KubeSide

    return KubeSide(options.state, say)


def _start(options: Options, servers: EmbeddedServers, kube: KubeSide | None, say: Say, terminal: bool) -> None:
    """What a sign-in needs comes first; the address is printed as soon as one would work, then the rest starts."""
    supervisor, env = servers.supervisor, _environment(options, servers)
    web, *others = _processes(options, env)
    supervisor.begin(web)  # it loads its modules while the tables are made
    with _command(options, env, "migrate", "--no-input", "--verbosity", "1"):
        pass
    password = options.state / "admin-password"
    demo = options.demo and "bootstrap_demo" in options.commands
    known = not demo or password.exists()  # the demo's first act is the sign-in, and its file says that it is made
    if kube is not None and not known:
        # The rest of the demo needs the nodes, and they take longer than a person wants to wait for a page.
        with _command(options, env, "bootstrap_demo", "--sign-in"):
            known = True
    if known:
        supervisor.await_ready(web.name)
        _greet(options, say, terminal)
        if kube is None:
            # What a page shows of yesterday is unknown until somebody has looked at the nodes.
            supervisor.begin(*(spec for spec in others if spec.name == "watcher"))
            others = [spec for spec in others if spec.name != "watcher"]
    if demo:
        servers.await_s3()
    if kube is not None:
        env.update(kube.start(servers.s3 if options.demo else None))
        # The agents get their image while the demo's models are uploaded.
        supervisor.start(*others)
    if demo:
        with _command(options, env, "bootstrap_demo") as making:
            while not known and making.poll() is None and not password.exists():
                time.sleep(0.05)
            if not known and not making.returncode:
                supervisor.await_ready(web.name)
                _greet(options, say, terminal)
            while making.poll() is None:
                for line in supervisor.check():
                    say(line)
                time.sleep(0.1)
    if kube is None:
        supervisor.start(*others)
    else:
        say(kube.greeting())


def _environment(options: Options, servers: EmbeddedServers) -> dict[str, str]:
    """What every process is told. Secrets travel here or in files, never among arguments."""
    env = {
        "HEARTH_STATE_DIR": str(options.state),
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONUNBUFFERED": "1",
    }
    if not _given("DATABASE_URL"):
        env["DATABASE_URL"] = servers.database_url
    if not _given("REDIS_URL"):
        env["REDIS_URL"] = servers.redis_url
    if not _given("SECRET_KEY"):
        env["SECRET_KEY_FILE"] = str(_secret_key(options.state))
    if options.demo:
        env["HEARTH_DEMO_S3_FILE"] = str(servers.s3_connection)
        env["HEARTH_DEMO_NODES"] = str(options.nodes)
    return env


def _processes(options: Options, env: Mapping[str, str]) -> Iterator[Spec]:
    python = sys.executable
    manage = [python, str(ROOT / "manage.py")]
    celery = [python, "-m", "celery", "--app", _APP]
    fd = options.fds[options.port]
    web = [python, "-m", "gunicorn", "controlplane.wsgi:application", "--bind", f"fd://{fd}", "--no-control-socket"]
    web += ["--worker-class", "gthread", "--workers", "2", "--threads", "8", "--graceful-timeout", "5"]
    web.append("--preload")  # loaded once for both workers: half the work before the first answer

    def answers() -> bool:
        return _answers(options.address)

    beat = options.state / "beat"
    beat.mkdir(mode=0o700, exist_ok=True)
    yield Spec("web", web, env, ready=answers, ready_within=_PATIENCE, fds=[fd])
    # Time limits of tasks need child processes; two suit the two cores of a laptop.
    queues = "control,actions,ingest"
    worker = [*celery, "worker", "--concurrency", "2", "--queues", queues, "--without-mingle", "--without-gossip"]
    yield Spec("worker", worker, env, stop_within=15.0)
    yield Spec("beat", [*celery, "beat", "--schedule", str(beat / "schedule"), "--pidfile", ""], env)
    if options.router_port:
        router = [python, "-m", "routing.dataplane", "--follow", "--config", str(options.state / "router.json")]
        # llama.cpp takes ten seconds to see that so long a word is too long, and four times as long for twice of it.
        router += ["--body-bytes", str(512 * 1024)]
        fds = [options.fds[one] for one in (options.router_port, options.metrics_port)]
        router += ["--host", ports.HOST, "--port", str(options.router_port), "--fd", str(fds[0])]
        router += ["--metrics-port", str(options.metrics_port), "--metrics-fd", str(fds[1])]
        yield Spec("router", router, env, fds=fds)
    if "watch_cluster" in options.commands:
        yield Spec("watcher", [*manage, "watch_cluster"], env)
    if options.demo and "fleet" in options.commands and not options.kubernetes:
        yield Spec("fleet", [*manage, "fleet", "run", "--nodes", str(options.nodes)], env, stop_within=20.0)
        if options.router_port and os.environ.get("HEARTH_DEMO_TRAFFIC", "1") != "0":
            # To the demo's endpoint by its name: never to another that somebody makes.
            place = f"http://{ports.HOST}:{options.router_port}/endpoints/chat"
            traffic = [python, "-m", "routing.engines.traffic", "--to", place, "--model", "chat"]
            yield Spec("traffic", [*traffic, "--metrics", f"http://{ports.HOST}:{options.metrics_port}/metrics"])


@contextmanager
def _command(options: Options, env: Mapping[str, str], name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A management command beside what the block does; leaving the block waits for it. Its output stays in the logs."""
    log = options.state / "logs" / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            spawn.command([sys.executable, str(ROOT / "manage.py"), name, *arguments], dies_by=signal.SIGTERM),
            cwd=ROOT,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
        process.wait()
    except BaseException:
        process.kill()
        ends.await_end(process)
        raise
    if process.returncode:
        raise EmbeddedError(f"'manage.py {name}' failed. Its last words, from {log}:\n{tail(log)}")


def _greet(options: Options, say: Say, terminal: bool) -> None:
    """The address and the sign-in, which work from now on. That the rest does, Readiness says."""
    (options.state / "address").write_text(options.address)
    say(f"\n  Hearth   {options.address}")
    password = options.state / "admin-password"
    if password.exists():
        # A password belongs on the person's screen, not into a file that collects this output.
        shown = password.read_text().strip() if terminal else f"the password is in {password}"
        say(f"  Sign in  admin   {shown}")
    if options.router_port:
        say(f"  Router   {ports.HOST}:{options.router_port}/v1 (OpenAI's API, for the endpoints that are served)")
    say(f"  Logs     {options.state / 'logs'}\n  Stop     Ctrl-C\n")


def _answers(address: str) -> bool:
    """Whether the application answers for itself; what it depends on is /readyz's business, shown on its pages."""
    try:
        with urllib.request.urlopen(f"{address}healthz", timeout=1):
            return True
    except urllib.error.HTTPError as answer:
        answer.close()
        return answer.code < 500
    except OSError:
        return False


def _secret_key(state: Path) -> Path:
    path = state / "secret-key"
    if not path.exists() or not path.read_text().strip():
        write_private(path, secrets.token_urlsafe(48))
    return path


def _given(name: str) -> bool:
    return bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))


def _known_address(state: Path) -> str:
    try:
        return f" at {(state / 'address').read_text().strip()}"
    except OSError:
        return ""


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and a closed terminal stop the program the way Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
