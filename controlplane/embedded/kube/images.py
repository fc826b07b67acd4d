"""Container images built from a Dockerfile on this machine, cached by what went into them.

Layers, package caches and the base image live beside the programs, outside the tree; a second build of the same
content takes about two seconds.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.embedded.kube import rootfs
from controlplane.embedded.kube.binaries import cache_root
from controlplane.embedded.kube.registry import Registry
from controlplane.embedded.problems import EmbeddedError, require_space

OWN = "hearth/hearth"  # the project's own repository
_ROOM = 2_000_000_000  # bytes: one image, its layers and the packages' cache
_PATIENCE = 600  # seconds for a cold build
_OPTIONS = ("--isolation", "chroot", "--format", "oci")
# Every step of every build counts as one: from how many on old ones go, and how many there may be after that.
_MANY, _MOST = 80, 150
_BASE = "localhost/hearth/base"
# Buildah 1.28 empties the whole layer when it takes such a mount away; an ordinary volume does the same service.
# What a step of a build made or found: all of the image's id, or the beginning of it.
_STEP = re.compile(r"^--> (?:Using cache )?([0-9a-f]{11,64})\b", re.MULTILINE)
_CACHE = re.compile(r"--mount=type=cache,target=(\S+)\s+")


class Builder:
    """Buildah with its storage in the machine's cache. One process builds at a time."""

    def __init__(self) -> None:
        self.folder = cache_root() / "images"

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever built here: the first build takes minutes."""
        return not (self.folder / "Dockerfile").exists()

    def has(self, tag: str) -> bool:
        """Whether an image of this name was built here."""
        with self._locked():
            return self._known(f"localhost/{tag}")

    def build(self, context: Path, dockerfile: Path, tag: str) -> str:
        """Build an image and return its local name: minutes the first time, seconds when little changed.

        A Dockerfile that declares ``ARG BASE`` gets a base image made from this machine's Python.
        """
        if shutil.which("buildah", path="/usr/sbin:/usr/bin") is None:
            raise EmbeddedError("buildah is missing. Run tools/kube_packages.sh")
        name = f"localhost/{tag}"
        with self._locked():
            require_space(self.folder, _ROOM)
            self._run("rm", "--all")  # what a killed build left half done
            self._make_room()
            text = dockerfile.read_text()
            options = [*_OPTIONS, "--layers", "--pull-never", *self._settings()]
            if re.search(r"^ARG BASE\b", text, re.MULTILINE):
                options += ["--build-arg", f"BASE={self._base()}"]
            for target in set(_CACHE.findall(text)):
                options += ["--volume", f"{self._packages(target)}:{target}:rw"]
            recipe = self.folder / "Dockerfile"
            recipe.write_text(_CACHE.sub("", text))
            told = self._run("build", *options, "--file", str(recipe), "--tag", name, str(context))
            (self._steps / tag.partition(":")[0].replace("/", "-")).write_text("\n".join(_STEP.findall(told)))
        return name

    def push(self, name: str, registry: Registry) -> str:
        """Put a built image into a registry; returns ``host:port/repository@digest``.

        Buildah packs whatever it sends to a registry. Here its layers go there as they are, by way of a folder: two
        cores have no time to pack them, nor to unpack them again on every node.
        """
        with self._locked():
            folder = registry.folder / "arriving"
            shutil.rmtree(folder, ignore_errors=True)
            try:
                self._run("push", "--disable-compression", name, f"dir:{folder}")
                return registry.take(folder, name.partition("/")[2])
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _steps(self) -> Path:
        """A file for each repository: the steps of its last build."""
        folder = self.folder / "steps"
        folder.mkdir(exist_ok=True)
        return folder

    def _make_room(self) -> None:
        """Let go of what no last build stood on. Buildah's own pruning takes steps that the next one can use."""
        found = json.loads(self._run("images", "--all", "--json"))
        if len(found) <= _MANY:
            return
        used = tuple(step for file in self._steps.iterdir() for step in file.read_text().split())
        base = f"{_BASE}:{rootfs.fingerprint()}"
        old = [row for row in found if not row["id"].startswith(used) and base not in (row["names"] or [])]
        newest_first = [row["id"] for row in sorted(old, key=lambda row: int(row["created"]), reverse=True)]
        if newest_first:
            with contextlib.suppress(EmbeddedError):  # with an image goes what it alone was made of, named here or not
                self._run("rmi", "--force", *newest_first)
        if len(json.loads(self._run("images", "--all", "--json"))) > _MOST:
            self._run("rmi", "--all", "--force")  # costs the next build a minute or two

    def _base(self) -> str:
        name = f"{_BASE}:{rootfs.fingerprint()}"
        if self._known(name):
            return name
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            root = Path(folder) / "root"
            root.mkdir()
            rootfs.write(root)
            recipe = Path(folder) / "Dockerfile"
            recipe.write_text('FROM scratch\nCOPY . /\nENV PATH=/usr/local/bin:/usr/bin:/usr/sbin\nCMD ["python3"]\n')
            self._run("build", *_OPTIONS, "--file", str(recipe), "--tag", name, str(root))
        return name

    def _packages(self, target: str) -> Path:
        """What a build keeps for the next one at a path; no part of the image."""
        folder = self.folder / "packages" / target.strip("/").replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _known(self, name: str) -> bool:
        return any(name in (row["names"] or []) for row in json.loads(self._run("images", "--json")))

    def _settings(self) -> list[str]:
        """Where packages come from is the machine's business: lent to the build, and in no layer."""
        settings = self.folder / "settings"
        settings.mkdir(mode=0o700, exist_ok=True)
        index = os.environ.get("PIP_INDEX_URL") or _pip_setting("index-url")
        pip = configparser.RawConfigParser()
        pip["global"] = {"disable-pip-version-check": "true", "root-user-action": "ignore"}
        uv = "native-tls = true\n"
        if index:
            pip["global"]["index-url"] = index
            uv += f"[[index]]\nurl = {json.dumps(index)}\ndefault = true\n"
        if Path(rootfs.CERTIFICATES).exists():
            pip["global"]["cert"] = str(rootfs.CERTIFICATES)
        for name, text in (("pip.conf", ""), ("uv.toml", uv)):
            (settings / name).touch(mode=0o600)
            (settings / name).write_text(text)
        with (settings / "pip.conf").open("w") as file:
            pip.write(file)
        lent = {"pip.conf": "/etc/pip.conf", "uv.toml": "/etc/uv/uv.toml"}
        return [part for name, path in lent.items() for part in ("--volume", f"{settings / name}:{path}:ro")]

    def _run(self, verb: str, *arguments: str) -> str:
        # In a mount namespace of its own, and with its state of mounts thrown away, it leaves none, even when killed.
        state = self.folder / "run"
        shutil.rmtree(state, ignore_errors=True)
        storage = ["--root", str(self.folder / "layers"), "--runroot", str(state), "--storage-driver", "overlay"]
        if verb == "build":
            # Otherwise it makes a folder in /etc for networks that nobody uses.
            arguments = ("--cni-config-dir", str(self.folder / "networks"), *arguments)
        argv = ["unshare", "--mount", "buildah", *storage, verb, *arguments]
        # What it unpacks would otherwise go to /var/tmp.
        env = {**os.environ, "TMPDIR": str(self.folder / "tmp"), "PATH": f"/usr/sbin:/usr/bin:{os.environ['PATH']}"}
        try:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            raise EmbeddedError(f"'buildah {verb}' took longer than {_PATIENCE} s.") from None
        if done.returncode:
            raise EmbeddedError(f"'buildah {verb}' failed: {(done.stderr or done.stdout).strip()[-1500:]}")
        return done.stdout

    @contextmanager
    def _locked(self) -> Iterator[None]:
        (self.folder / "tmp").mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _pip_setting(name: str) -> str:
    pip = shutil.which("pip3") or shutil.which("pip")
    if pip is None:
        return ""
    argv = [pip, "config", "get", f"global.{name}"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
