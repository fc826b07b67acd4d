"""What the router is measured beside: obtained into a cache folder, each peer in an environment of its own.

Debian's packages are unpacked there and not installed; wheels get a virtual environment each. What cannot be had is
named, and the bench runs without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CACHE = Path(os.environ.get("HEARTH_BENCH_CACHE") or Path.home() / ".cache" / "hearth-bench")
DEBIAN = (
    "wrk", "libluajit-5.1-2", "nginx", "haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1",
)  # fmt: skip
WHEELS = {"sglang-router": "sglang-router==0.3.2", "vllm-router": "vllm-router==0.1.17", "smg": "smg==1.13.0"}
PREFIX_BYTES, THRESHOLD = 2048, 32
ROOT = Path(__file__).resolve().parents[2]
SECONDS_TO_INSTALL = 600


@dataclass(frozen=True, slots=True)
class Router:
    """How one is started: ``command`` from its port, the backends' ports and a folder of its own."""

    name: str
    command: Callable[[int, Sequence[int], Path], Sequence[str]]
    env: Mapping[str, str] = field(default_factory=dict)


class Missing(Exception):
    """It cannot be had here; the message says why."""


def debian_binary(name: str) -> Path:
    """A program of this machine, or of Debian's packages in the cache. Raises Missing."""
    for folder in ("/usr/bin", "/usr/sbin", "/usr/local/bin"):
        if (Path(folder) / name).exists():
            return Path(folder) / name
    root = CACHE / "debian"
    found = next((path for path in root.glob(f"usr/*/{name}") if path.is_file()), None)
    if found is None:
        _unpack(root)
        found = next((path for path in root.glob(f"usr/*/{name}") if path.is_file()), None)
    if found is None:
        raise Missing(f"{name}: Debian's packages cannot be downloaded here")
    return found


def debian_env() -> dict[str, str]:
    """For programs from the cache, whose libraries lie beside them."""
    folders = (CACHE / "debian" / "usr" / "lib").glob("*-linux-gnu")
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


def _unpack(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    try:
        if not any(Path("/var/lib/apt/lists").glob("*_Packages*")) and os.geteuid() == 0:
            subprocess.run(["apt-get", "update"], check=True, capture_output=True, timeout=120)
        for package in DEBIAN:
            subprocess.run(["apt-get", "download", package], cwd=root, check=True, capture_output=True, timeout=120)
        for package_file in root.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package_file), str(root)], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return  # whoever looks for a program says that it is missing


def wheel(name: str) -> Path:
    """The folder of programs of a peer's own environment. Raises Missing."""
    folder = CACHE / name / WHEELS[name].replace("==", "-")
    if not (folder / "done").exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
            subprocess.run(
                [str(folder / "bin" / "pip"), "install", "--quiet", WHEELS[name]],
                check=True, capture_output=True, timeout=SECONDS_TO_INSTALL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"{WHEELS[name]}: it cannot be installed here ({type(error).__name__})") from None
        (folder / "done").touch()
    return folder / "bin"


def routers() -> tuple[list[Router], list[str]]:
    """All that can be had, ours first; and a sentence for each that cannot."""
    found, missing = [Router("hearth", _hearth)], list[str]()
    makers: dict[str, Callable[[], Router]] = {
        "haproxy": lambda: Router("haproxy", _haproxy(debian_binary("haproxy")), debian_env()),
        "nginx": lambda: Router("nginx", _nginx(debian_binary("nginx")), debian_env()),
        "sglang-router": lambda: Router("sglang-router", _sglang(wheel("sglang-router"))),
        "vllm-router": lambda: Router("vllm-router", _vllm(wheel("vllm-router"))),
        "smg": lambda: Router("smg", _smg(wheel("smg"))),
    }
    for make in makers.values():
        try:
            found.append(make())
        except Missing as why:
            missing.append(str(why))
    return found, missing


def _hearth(port: int, backends: Sequence[int], folder: Path) -> Sequence[str]:
    policy = {
        "RoutingStrategy": "PREFIX_AWARE",
        "PrefixAwareRoutingConfig": {"PrefixLength": PREFIX_BYTES, "ConcurrencyThreshold": THRESHOLD},
    }
    instances = [{"id": f"backend-{number}", "address": f"127.0.0.1:{at}"} for number, at in enumerate(backends)]
    variant = {"name": "default", "policy": policy, "instances": instances}
    endpoint = {"name": "bench", "secret": "00112233445566778899aabbccddeeff", "variants": [variant]}
    (folder / "router.json").write_text(json.dumps({"version": 1, "endpoints": [endpoint]}))
    return [sys.executable, "-m", "routing.dataplane", "--config", str(folder / "router.json"), "--port", str(port)]


def _haproxy(program: Path) -> Callable[[int, Sequence[int], Path], Sequence[str]]:
    def command(port: int, backends: Sequence[int], folder: Path) -> Sequence[str]:
        servers = "\n".join(f"    server b{number} 127.0.0.1:{at}" for number, at in enumerate(backends))
        (folder / "haproxy.cfg").write_text(f"""
global
    nbthread 1
    tune.bufsize 131072
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend in
    bind 127.0.0.1:{port}
    option http-buffer-request
    default_backend out
backend out
    balance hash req.body,bytes(0,{PREFIX_BYTES})
    hash-type consistent
    hash-balance-factor 125
    http-reuse always
{servers}
""")
        return [str(program), "-db", "-f", str(folder / "haproxy.cfg")]

    return command


def _nginx(program: Path) -> Callable[[int, Sequence[int], Path], Sequence[str]]:
    def command(port: int, backends: Sequence[int], folder: Path) -> Sequence[str]:
        servers = " ".join(f"server 127.0.0.1:{at};" for at in backends)
        http = f"""
    map $request_body $prefix {{ "~(?s)^(?<beginning>.{{0,{PREFIX_BYTES}}})" $beginning; }}
    upstream out {{ hash $prefix consistent; {servers} keepalive 128; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://out; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}"""
        return nginx_command(program, folder, http)

    return command


def nginx_command(program: Path, folder: Path, http: str) -> Sequence[str]:
    """One worker that logs nothing and keeps whole bodies in memory."""
    (folder / "temporary").mkdir(exist_ok=True)
    paths = " ".join(
        f"{kind}_temp_path {folder}/temporary;" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(f"""
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log crit;
{"user root;" if os.geteuid() == 0 else ""}
events {{ worker_connections 2048; }}
http {{
    access_log off; keepalive_requests 1000000000; client_body_buffer_size 128k; {paths}
    {http}
}}
""")
    return [str(program), "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]


def _workers(backends: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{at}" for at in backends]


def _sglang(programs: Path) -> Callable[[int, Sequence[int], Path], Sequence[str]]:
    return lambda port, backends, folder: [
        str(programs / "sglang-router"), "launch", "--host", "127.0.0.1", "--port", str(port),
        "--policy", "cache_aware", "--prometheus-host", "127.0.0.1", "--prometheus-port", str(port + 1),
        "--log-level", "error", "--worker-urls", *_workers(backends),
    ]  # fmt: skip


def _vllm(programs: Path) -> Callable[[int, Sequence[int], Path], Sequence[str]]:
    return lambda port, backends, folder: [
        str(programs / "vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware",
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(port + 1), "--log-level", "error",
        "--worker-urls", *_workers(backends),
    ]  # fmt: skip


def _smg(programs: Path) -> Callable[[int, Sequence[int], Path], Sequence[str]]:
    return lambda port, backends, folder: [
        str(programs / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", "prefix_hash",
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(port + 1), "--log-level", "error",
        "--worker-urls", *_workers(backends),
    ]  # fmt: skip
