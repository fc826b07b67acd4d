"""A base image for Python programs out of this machine's own files, for where no image registry can be reached.

It holds what ``python:slim`` would: an interpreter with its standard library and pip, the C libraries that wheels
expect, a shell, a few tools, certificates. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path

from controlplane.embedded.problems import EmbeddedError

_TOOLS: tuple[str, ...] = (
    *("sh", "env", "install", "mkdir", "rm", "cat", "ls", "cp", "mv", "ln", "chmod", "chown", "touch", "date"),
    *("sleep", "id", "true", "df", "du", "head", "tail", "sort", "uname", "useradd", "groupadd"),
)
# What wheels may be linked with, besides what the tools and the interpreter need.
_LIBRARIES: tuple[str, ...] = (
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "libresolv.so.2",
    "libm.so.6",
)
_LIBRARIES += ("libgcc_s.so.1", "libstdc++.so.6", "libz.so.1", "libnss_files.so.2", "libnss_dns.so.2")
_LEFT_OUT: tuple[str, ...] = (
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "__pycache__",
    "site-packages",
)
_LEFT_OUT += ("dist-packages", "config-*")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/shadow": "root:*:20000:0:99999:7:::\n",
    "etc/gshadow": "root:*::\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/ld.so.conf": "/usr/local/lib\n",
}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def fingerprint() -> str:
    """Differs when the machine's interpreter or libraries do, or this recipe."""
    content = hashlib.sha256(Path(__file__).read_bytes())
    content.update(f"{sys.version}{platform.machine()}{platform.libc_ver()}".encode())
    for path in (Path(sys.executable).resolve(), CERTIFICATES):
        content.update(hashlib.sha256(path.read_bytes()).digest() if path.exists() else b"-")
    return content.hexdigest()[:16]


def write(root: Path) -> None:
    """Lay the tree of the image out in an empty folder: about 100 MB."""
    for folder in ("etc", "root", "var/tmp", "var/log", "run", "proc", "sys", "dev", "usr/sbin"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    for folder in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / folder).mkdir(exist_ok=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for name, text in _FILES.items():
        (root / name).write_text(text)
    if CERTIFICATES.exists():
        (root / "etc/ssl/certs").mkdir(parents=True)
        shutil.copyfile(CERTIFICATES, root / str(CERTIFICATES)[1:])
    programs = [_tool(name) for name in _TOOLS]
    for name, path in zip(_TOOLS, programs, strict=True):
        shutil.copy(path, root / "usr/bin" / name)
    interpreter = _write_python(root / "usr/local")
    extensions = (root / "usr/local/lib").rglob("*.so")
    _write_libraries(root, [*programs, interpreter, *extensions])
    _run(["ldconfig", "-r", str(root)])


def _write_python(local: Path) -> Path:
    """The interpreter below ``/usr/local``, where it finds its library by its own place; returns the original."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = Path(sys.executable).resolve()
    (local / "bin").mkdir(parents=True)
    shutil.copy(interpreter, local / "bin" / f"python{version}")
    for name in ("python3", "python"):
        (local / "bin" / name).symlink_to(f"python{version}")
    library = local / "lib" / f"python{version}"
    ignore = shutil.ignore_patterns(*_LEFT_OUT)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=ignore)
    for shared in (Path(sys.base_prefix) / "lib").glob(f"libpython{version}.so*"):
        shutil.copy(shared, local / "lib" / shared.name)
    (library / "site-packages").mkdir()
    with zipfile.ZipFile(_pip()) as wheel:
        wheel.extractall(library / "site-packages")
    return interpreter


def _write_libraries(root: Path, users: Iterable[Path]) -> None:
    known = dict(re.findall(r"^\s+(\S+) .* => (\S+)$", _run(["ldconfig", "-p"]), re.MULTILINE))
    wanted = {Path(known[name]) for name in _LIBRARIES if name in known}
    for user in users:
        # The static ones among them have none and say so with an error.
        done = subprocess.run(["ldd", str(user)], capture_output=True, text=True, check=False, timeout=30)
        wanted.update(Path(found) for found in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", done.stdout, re.MULTILINE))
    for library in wanted:
        folder = "usr/lib64" if library.name.startswith("ld-linux") and "64" in str(library.parent) else "usr/lib"
        shutil.copy(library, root / folder / library.name)


def _tool(name: str) -> Path:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise EmbeddedError(f"The base image needs {name}, which this machine lacks.")
    return Path(found)


def _pip() -> Path:
    """The wheel of pip that comes with the interpreter."""
    places = (Path(sysconfig.get_path("stdlib")) / "ensurepip" / "_bundled", Path("/usr/share/python-wheels"))
    for place in places:
        for wheel in sorted(place.glob("pip-*.whl")):
            return wheel
    raise EmbeddedError("This Python comes without pip. Install it: sudo apt-get install python3-venv")


def _run(argv: list[str]) -> str:
    argv[0] = shutil.which(argv[0], path="/usr/sbin:/usr/bin:/sbin:/bin") or argv[0]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
