"""How Hearth is let in: tokens that rotate, kubeconfigs with contexts, and what is said when there is none."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from controlplane.clusters.gateway import Unreachable
from controlplane.clusters.kubernetes import access
from controlplane.clusters.kubernetes.access import TokenFile, access_for, claimed_node, from_kubeconfig, in_pod


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    path = tmp_path / "ca.crt"
    path.write_text("PEM")
    return path


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def test_it_reads_a_rotated_token_in_time_and_at_once_after_a_refusal(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("controlplane.clusters.kubernetes.access.time.monotonic", lambda: clock[0])
    read = TokenFile(token)
    assert read() == "Bearer first"
    token.write_text("second")
    assert read() == "Bearer first"
    assert read(True) == "Bearer second"
    token.write_text("third")
    clock[0] += access.TOKEN_SECONDS
    assert read() == "Bearer third"


def test_it_keeps_a_token_out_of_its_messages(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"\xffsecret")
    with pytest.raises(Unreachable) as error:
        TokenFile(path)()
    assert "secret" not in str(error.value)
    with pytest.raises(Unreachable, match="FileNotFoundError"):
        TokenFile(tmp_path / "none")()


@pytest.mark.parametrize(
    ("host", "port", "server"),
    [("10.0.0.1", "443", "https://10.0.0.1:443"), ("fd00::1", "6443", "https://[fd00::1]:6443")],
)
def test_it_finds_the_api_server_of_its_pod(
    token: Path, ca: Path, monkeypatch: pytest.MonkeyPatch, host: str, port: str, server: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    found = in_pod(token_file=token, ca_file=ca)
    assert (found.server, found.verify, found.ca_file) == (server, True, str(ca))
    assert found.authorization(False) == "Bearer first"
    assert in_pod("https://elsewhere:1/", token_file=token, ca_file=ca).server == "https://elsewhere:1"


def test_it_says_when_this_is_no_pod(tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Unreachable, match="no pod"):
        access_for("in-cluster")
    with pytest.raises(Unreachable, match="certificate authority"):
        in_pod("https://elsewhere:1", ca_file=tmp_path / "none")


def kubeconfig(tmp_path: Path, **users: dict[str, Any]) -> Path:
    path = tmp_path / "config"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": next(iter(users), ""),
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443"}} for name in users],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in users],
    }
    path.write_text(json.dumps(document))
    return path


def test_it_takes_the_context_that_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, one={"token": "t-one"}, two={"token": "t-two"})
    assert access_for(str(path)).server == "https://one:6443"
    assert access_for(f"{path}#two").server == "https://two:6443"
    assert access_for(f"{path}#two").authorization(False) == "Bearer t-two"


def test_it_runs_a_credential_plugin(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    said = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-plugin"},
    }
    plugin.write_text(f"#!/bin/sh\ncat <<'EOF'\n{json.dumps(said)}\nEOF\n")
    plugin.chmod(0o700)
    exec_user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never",
        }
    }  # fmt: skip
    assert from_kubeconfig(kubeconfig(tmp_path, one=exec_user)).authorization(False) == "Bearer from-plugin"


@pytest.mark.parametrize("text", ["", "{}", "not: [yaml", "[]", '{"current-context": "gone"}', "\0"])
def test_it_says_which_kubeconfig_cannot_be_used(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(Unreachable, match="config cannot be used"):
        from_kubeconfig(path)


def test_it_says_when_a_kubeconfig_or_its_context_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="none cannot be used"):
        from_kubeconfig(tmp_path / "none")
    with pytest.raises(Unreachable, match="other"):
        from_kubeconfig(kubeconfig(tmp_path, one={"token": "t"}), "other")


def pod_token(claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"head.{body}.signature"


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (pod_token({"kubernetes.io": {"node": {"name": "n-1", "uid": "u-1"}}}), ("n-1", "u-1")),
        (pod_token({"kubernetes.io": {"node": {"name": "n-1", "uid": "u-1"}}, "x": "ä" * 3}) + "\n", ("n-1", "u-1")),
        (pod_token({"kubernetes.io": {"namespace": "x"}}), ("", "")),
        (pod_token({"kubernetes.io": None}), ("", "")),
        (pod_token([]), ("", "")),
        ("opaque", ("", "")),
        ("a.b.c", ("", "")),
        ("a.§.c", ("", "")),
        ("", ("", "")),
    ],
)
def test_it_knows_its_machine_by_its_token(tmp_path: Path, text: str, node: tuple[str, str]) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    assert claimed_node(path) == node
    assert claimed_node(tmp_path / "none") == ("", "")


def test_it_verifies_and_never_follows(ca: Path, token: Path) -> None:
    options = in_pod("https://elsewhere:1", token_file=token, ca_file=ca).pool().connection_pool_kw
    assert options["cert_reqs"] == "CERT_REQUIRED"
    assert os.fspath(ca) == options["ca_certs"]
    assert any(option[1:] == (access.KEEPALIVE[0][1], 1) for option in options["socket_options"])
