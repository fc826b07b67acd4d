"""The warm-up annotation: what it may say, and the container that it becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caches.domain.endpoints.warm_up import WarmUp
from caches.domain.endpoints.workload import Served, deployment
from tests.domain.endpoints import config, refused, spec_of

BODY = '{"model": "m", "prompt": "Hi", "max_tokens": 1}'


def annotated(**annotations: str) -> dict[str, Any]:
    named = {f"hearth.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return config(metadata__annotations=named)


@pytest.mark.parametrize(
    ("annotations", "warm_up"),
    [
        ({}, None),
        ({"warm_up": ""}, None),
        ({"warm_up": "/ping"}, WarmUp("/ping")),
        ({"warm_up": f"/v1/completions?x=1 {BODY}"}, WarmUp("/v1/completions?x=1", BODY)),
        ({"warm_up": "/v1/completions  [1,\n 2]\n", "warm_up_seconds": "5"}, WarmUp("/v1/completions", "[1,\n 2]", 5)),
    ],
)
def test_it_is_a_path_and_a_body(annotations: dict[str, str], warm_up: WarmUp | None) -> None:
    assert spec_of(annotated(**annotations)).options.warm_up == warm_up


@pytest.mark.parametrize(
    "text", ["ping", "http://elsewhere/ping", "/a#b", "/ü", "/a {broken", f"/a {'x' * 16385}", "/" + "a" * 1100]
)
def test_it_refuses_what_is_none(text: str) -> None:
    assert refused(annotated(warm_up=text)) == {"metadata.annotations.hearth.dev/warm-up": "warm-up"}


def test_a_server_that_speaks_grpc_has_none() -> None:
    document = annotated(warm_up="/ping")
    document["spec"]["worker"]["modelInvocationPort"]["name"] = "grpc"
    assert refused(document) == {"metadata.annotations.hearth.dev/warm-up": "warm-up"}


@pytest.mark.parametrize(("seconds", "what"), [("0", "field-range"), ("3601", "field-range"), ("1m", "field-format")])
def test_it_ends_within_an_hour(seconds: str, what: str) -> None:
    found = refused(annotated(warm_up="/ping", warm_up_seconds=seconds))
    assert found == {"metadata.annotations.hearth.dev/warm-up-seconds": what}


def test_it_is_a_container_beside_the_server_whose_mark_makes_the_pod_ready() -> None:
    served = Served(image="vllm", ensure_image="hearth", host_path="/opt", digest="sha256:" + "a" * 64)
    assert len(deployment(spec_of(config()), served)["spec"]["template"]["spec"]["containers"]) == 1
    pod = deployment(spec_of(annotated(warm_up=f"/v1/completions {BODY}")), served)["spec"]["template"]["spec"]
    server, beside = pod["containers"]
    assert (server["name"], beside["name"], beside["image"]) == ("server", "warm-up", "hearth")
    [said] = beside["env"]
    assert json.loads(said["value"]) == {
        "path": "/v1/completions", "body": BODY, "seconds": 120, "port": 8000, "health": "/ping",
    }  # fmt: skip
    [mount] = beside["volumeMounts"]
    assert beside["readinessProbe"]["exec"]["command"] == ["sh", "-c", f"test -f {mount['mountPath']}/done"]
    assert {"name": mount["name"], "emptyDir": {"sizeLimit": "1Mi"}} in pod["volumes"]
    assert beside["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]


@pytest.mark.parametrize(
    ("probe", "health"),
    [
        ({"tcpSocket": {"port": 8000}}, ""),
        ({"httpGet": {"path": "/ready", "port": "http"}}, "/ready"),
        ({"httpGet": {"path": "/ready", "port": 8000, "scheme": "HTTPS"}}, ""),
        ({"httpGet": {"path": "/ready", "port": 9000}}, ""),
    ],
)
def test_it_waits_for_what_makes_the_server_ready(probe: dict[str, Any], health: str) -> None:
    document = config(spec__worker__probes={"readinessProbe": probe}, metadata__annotations={"hearth.dev/warm-up": "/"})
    made = deployment(spec_of(document), Served("vllm", "hearth", "/opt"))
    said = made["spec"]["template"]["spec"]["containers"][1]["env"][0]["value"]
    assert json.loads(said)["health"] == health
