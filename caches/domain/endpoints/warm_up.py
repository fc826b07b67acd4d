"""The request that a pod answers before it takes others: what its annotation says, and the container that sends it.

It stands in the pod beside the model server, so that it needs no right in the cluster and nobody to be there: a pod
that an autoscaler makes while Hearth is away gets ready all the same. Pure.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from caches.domain.endpoints.reading import Part

CONTAINER, VOLUME, FOLDER, MARK = "warm-up", "hearth-warm-up", "/hearth-warm-up", "done"
DEFAULT_SECONDS, LONGEST_SECONDS = 120, 3600
MOST_BYTES = 16 * 1024
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """``body`` "" is a GET, anything else a POST. ``seconds`` after its server is ready the pod serves without having
    answered it."""

    path: str
    body: str = ""
    seconds: int = DEFAULT_SECONDS


def read_warm_up(part: Part, prefix: str) -> WarmUp | None:
    """``hearth.dev/warm-up``: a path, and after a space the body; ``hearth.dev/warm-up-seconds``: how long at most."""
    name, limit = f"{prefix}warm-up", f"{prefix}warm-up-seconds"
    seconds = DEFAULT_SECONDS
    if text := part.matched(limit, "[0-9]{1,9}", "a number of seconds"):
        seconds = int(text)
        if not 1 <= seconds <= LONGEST_SECONDS:
            part.refuse(limit, "field-range", f"A warm-up takes 1 to {LONGEST_SECONDS} seconds.")
    value = part.values.get(name)
    if value is None or value == "":
        return None
    path, _, body = str(value).strip().partition(" ")
    if not re.fullmatch(r"/[!-~]{0,1023}", path) or "#" in path:
        part.refuse(name, "warm-up", "A warm-up is a path that begins with /, and after a space the body to send.")
        return None
    if len(body.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        part.refuse(name, "warm-up", f"The body of a warm-up has {MOST_BYTES} bytes at most.")
        return None
    if body.strip()[:1] in ("{", "["):
        try:
            json.loads(body)
        except ValueError:
            part.refuse(name, "warm-up", "The body of the warm-up begins like JSON and is none.")
            return None
    return WarmUp(path, body.strip(), seconds)


def container(warm_up: WarmUp, *, image: str, port: int, readiness: Json) -> Json:
    """``readiness`` is the server's own probe: the request is sent once its path answers, or once the port does."""
    asked = readiness.get("httpGet") or {}
    plain = asked.get("scheme", "HTTP") == "HTTP" and asked.get("port") in (port, "http", None)
    said = {
        "path": warm_up.path,
        "body": warm_up.body,
        "seconds": warm_up.seconds,
        "port": port,
        "health": asked.get("path", "/") if asked and plain else "",
    }
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "caches.agent.warm_up"],
        "env": [{"name": "HEARTH_WARM_UP", "value": json.dumps(said, sort_keys=True)}],
        # A shell is in every base; a program called test is not.
        "readinessProbe": {
            "exec": {"command": ["sh", "-c", f"test -f {FOLDER}/{MARK}"]},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "volumeMounts": [{"name": VOLUME, "mountPath": FOLDER}],
    }


def volume() -> Json:
    return {"name": VOLUME, "emptyDir": {"sizeLimit": "1Mi"}}
