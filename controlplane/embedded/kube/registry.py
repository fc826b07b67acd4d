"""A registry for container images on loopback, and the one tiny image that every pod stands on."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import secrets
import shutil
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from controlplane.embedded import ports
from controlplane.embedded.direct import open_direct
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import Spec

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_APPLETS = (
    "sh",
    "sleep",
    "cat",
    "ls",
    "echo",
    "date",
    "id",
    "mkdir",
    "dd",
    "sync",
    "nc",
    "httpd",
    "ps",
    "kill",
    "touch",
)


@dataclass(frozen=True, slots=True)
class Registry:
    """Docker's registry with its images in ``folder``."""

    folder: Path
    port: int

    @property
    def host(self) -> str:
        """``127.0.0.1:<port>``: the first part of every image's name."""
        return f"{ports.HOST}:{self.port}"

    def spec(self) -> Spec:
        """How to run it."""
        program = shutil.which("docker-registry") or "/usr/bin/docker-registry"
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = {
            "version": "0.1",
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "images")}, "delete": {"enabled": True}},
            "http": {"addr": self.host, "secret": secrets.token_hex(16)},
        }
        path = self.folder / "registry.json"
        path.write_text(json.dumps(configuration, indent=1))
        return Spec(
            name="registry",
            argv=[program, "serve", str(path)],
            cwd=self.folder,
            ready=self._is_ready,
            stop_within=3.0,
        )

    def push(self, repository: str, tag: str, layer: bytes, command: list[str]) -> str:
        """Store an image of one uncompressed tar; returns ``<host>/<repository>@<digest>``."""
        packed = gzip.compress(layer, compresslevel=1, mtime=0)
        configuration = json.dumps(
            {
                "architecture": _architecture(),
                "os": "linux",
                "config": {"Entrypoint": command, "Env": ["PATH=/bin"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            }
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": self._blob(repository, configuration, "application/vnd.oci.image.config.v1+json"),
                "layers": [self._blob(repository, packed, "application/vnd.oci.image.layer.v1.tar+gzip")],
            }
        ).encode()
        self._call("PUT", f"/v2/{repository}/manifests/{tag}", manifest, _MANIFEST)
        return f"{self.host}/{repository}@{_digest(manifest)}"

    def take(self, folder: Path, name: str) -> str:
        """Store an image that lies in a folder, each part under the hex of its digest beside ``manifest.json``.

        ``name`` is ``repository:tag``. The parts are moved; the folder must be below the registry's own.
        """
        repository, _, tag = name.rpartition(":")
        manifest = (folder / "manifest.json").read_bytes()
        document = json.loads(manifest)
        stored = self.folder / "images" / "docker" / "registry" / "v2"
        for digest in {part["digest"] for part in (document["config"], *document["layers"])}:
            hexadecimal = digest.removeprefix("sha256:")
            content = stored / "blobs" / "sha256" / hexadecimal[:2] / hexadecimal / "data"
            content.parent.mkdir(parents=True, exist_ok=True)
            (folder / hexadecimal).rename(content)
            # Its word that the repository has it.
            link = stored / "repositories" / repository / "_layers" / "sha256" / hexadecimal / "link"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.write_text(digest)
        self._call("PUT", f"/v2/{repository}/manifests/{tag}", manifest, document["mediaType"])
        return f"{self.host}/{repository}@{_digest(manifest)}"

    def _blob(self, repository: str, content: bytes, kind: str) -> dict[str, object]:
        digest = _digest(content)
        where = self._call("POST", f"/v2/{repository}/blobs/uploads/", b"", "application/octet-stream")
        joint = "&" if "?" in where else "?"
        self._call("PUT", f"{where}{joint}digest={digest}", content, "application/octet-stream")
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def _call(self, verb: str, path: str, body: bytes, kind: str) -> str:
        url = path if path.startswith("http") else f"http://{self.host}{path}"
        request = urllib.request.Request(url, data=body, method=verb, headers={"Content-Type": kind})
        try:
            with open_direct(request, timeout=30) as answer:
                return str(answer.headers.get("Location", ""))
        except OSError as error:
            raise EmbeddedError(f"The registry refused {verb} {path}: {error}") from error

    def _is_ready(self) -> bool:
        try:
            with open_direct(f"http://{self.host}/v2/", timeout=1):
                return True
        except OSError:
            return False


def busybox_layer() -> bytes:
    """A tar with a static busybox: enough for a pod that only has to be there, or to answer on a port."""
    busybox = Path("/bin/busybox")
    if not busybox.exists():
        raise EmbeddedError("busybox is missing. Install it: sudo apt-get install busybox-static")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("tmp", 0o1777), ("etc", 0o755)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = busybox.stat().st_size, 0o755
        with busybox.open("rb") as content:
            tar.addfile(entry, content)
        for applet in _APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return packed.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
