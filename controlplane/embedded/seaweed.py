"""SeaweedFS as the demo's and the tests' S3: loopback only, own key, every port chosen, nothing reported home."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from controlplane.embedded import ports
from controlplane.embedded.files import write_private
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import Spec

REGION = "us-east-1"
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.public",
    "volume.port.grpc",
    "filer.port",
    "filer.port.public",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


@dataclass(frozen=True, slots=True)
class S3:
    """Where an S3 server is and how to enter. ``repr`` hides the secret, so that logs do."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = REGION

    def __repr__(self) -> str:
        return f"S3(endpoint={self.endpoint!r}, access_key={self.access_key!r})"


class Seaweed:
    """One S3 server with its data in ``<state>/s3``; its keys, and where still free its ports, survive restarts."""

    name = "s3"

    def __init__(self, state: Path, *, port: int | None = None) -> None:
        self.folder = state.absolute() / "s3"
        last = self._last_ports()
        # The same address as last time, because what is stored in the database names it.
        reusable = set(last) == set(_PORTS) and ports.reserve(list(last.values()))
        self._ports = last if reusable else dict(zip(_PORTS, ports.free_ports(len(_PORTS)), strict=True))
        if port is not None:
            self._ports["s3.port"] = port
        self._keys: dict[str, str] = {}

    @property
    def s3(self) -> S3:
        """Address and keys."""
        return S3(
            endpoint=f"http://{ports.HOST}:{self._ports['s3.port']}",
            access_key=self._keys["accessKey"],
            secret_key=self._keys["secretKey"],
        )

    def prepare(self) -> None:
        """Write the identity of the one user, mode 0600."""
        for part in ("", "data", "meta"):
            (self.folder / part).mkdir(mode=0o700, exist_ok=True)
        path = self.folder / "identities.json"
        if not _holds_keys(path):
            keys = {"accessKey": f"HEARTH{secrets.token_hex(7).upper()}", "secretKey": secrets.token_hex(20)}
            actions = ["Admin", "Read", "Write", "List", "Tagging"]
            user = {"name": "hearth", "credentials": [keys], "actions": actions}
            write_private(path, json.dumps({"identities": [user]}))
        self._keys = json.loads(path.read_text())["identities"][0]["credentials"][0]
        self.sweep()
        (self.folder / "ports.json").write_text(json.dumps(self._ports))

    def write_connection(self) -> Path:
        """Address and keys as a JSON file of mode 0600, for whoever registers this server as a source."""
        path = self.folder / "connection.json"
        write_private(path, json.dumps(asdict(self.s3)))
        return path

    def spec(self) -> Spec:
        """How to run it: master, volume, filer and S3 in one process."""
        options = {
            "dir": str(self.folder / "data"),
            "master.dir": str(self.folder / "meta"),
            "ip": ports.HOST,
            "ip.bind": ports.HOST,
            **{key: str(port) for key, port in self._ports.items()},
            "master.telemetry": "false",
            # A restarted master waits this long for others before it leads alone: ten to twenty seconds by default.
            "master.electionTimeout": "1s",
            "master.volumeSizeLimitMB": "1024",
            "volume.max": "500",
            "volume.minFreeSpace": "1",
            "volume.preStopSeconds": "0",
            "s3": "true",
            "s3.config": str(self.folder / "identities.json"),
            "s3.iam": "false",
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "s3.allowDeleteBucketNotEmpty": "true",
            "filer.localSocket": self._socket("filer"),
            "s3.localSocket": self._socket("s3"),
        }
        # One volume at a time for each bucket instead of seven: the default suits racks, not folders.
        env = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
        argv = [str(_binary()), "-logtostderr=true", "server", *(f"-{key}={value}" for key, value in options.items())]
        return Spec(
            name=self.name,
            argv=argv,
            env=env,
            cwd=self.folder,
            ready=self.is_ready,
            ready_within=60.0,
            # It waits for its own filer's streams, which never end; its files are safe against a kill.
            stop_within=1.5,
        )

    def is_ready(self) -> bool:
        """Whether S3 answers and the master has somewhere to write."""
        try:
            master = f"http://{ports.HOST}:{self._ports['master.port']}/dir/status"
            with urllib.request.urlopen(master, timeout=2) as answer:
                if not json.load(answer)["Topology"]["Max"]:
                    return False
            with urllib.request.urlopen(self.s3.endpoint, timeout=2):
                return True
        except urllib.error.HTTPError as refused:
            refused.close()
            return refused.code == 403  # without a signature: it is up, and it asks for the key
        except (OSError, ValueError, KeyError):
            return False

    def sweep(self) -> None:
        """Remove the socket files that the last run left in /tmp, which no option moves or cleans up."""
        last = self._last_ports()
        for part in ("master", "volume", "filer", "s3"):
            Path(f"/tmp/seaweedfs-{part}-grpc-{last.get(f'{part}.port.grpc')}.sock").unlink(missing_ok=True)

    def _last_ports(self) -> dict[str, int]:
        try:
            return {str(key): int(port) for key, port in json.loads((self.folder / "ports.json").read_text()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _socket(self, part: str) -> str:
        """A socket's path may hold 107 bytes; a deep state folder falls back to the system's temporary one."""
        inside = self.folder / f"{part}.sock"
        inside.unlink(missing_ok=True)
        if len(os.fsencode(inside)) < 100:
            return str(inside)
        return str(Path(tempfile.gettempdir()) / f"hearth-{part}-{self._ports['s3.port']}.sock")


def _holds_keys(path: Path) -> bool:
    """Whether the file names a user; one that is missing or damaged is made anew."""
    try:
        keys = json.loads(path.read_text())["identities"][0]["credentials"][0]
        return bool(keys["accessKey"] and keys["secretKey"])
    except (OSError, ValueError, TypeError, LookupError):
        return False


def _binary() -> Path:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise EmbeddedError("The embedded S3 server is not installed. Run it through 'make run'.")
    return Path(found)
