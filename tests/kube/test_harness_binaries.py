"""The cache of Kubernetes programs: built once, named by what goes in, and a sentence where something is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controlplane.embedded.kube import binaries
from controlplane.embedded.problems import EmbeddedError

# A compiler that notes each call and takes its time, so that two builds would overlap.
GO = """#!/bin/sh
if [ "$1" = env ]; then echo "go${FAKE_VERSION:-1.26.8}"; exit; fi
if [ "$1" = list ]; then echo "go: downloading k8s.io/one v1" >&2; echo k8s.io/one; echo k8s.io/two; exit; fi
echo "$*" >>"$FAKE_CALLS"
[ -e "$FAKE_CALLS.one" ] || echo k8s.io/one >&2
touch "$FAKE_CALLS.one"
[ -z "${FAKE_FAILS:-}" ] || { echo "no space for objects" >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
[ -e "$FAKE_CALLS.two" ] || echo k8s.io/two >&2
touch "$FAKE_CALLS.two"
echo program >"$2"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with that compiler and an empty cache; returns the file that notes its calls."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "go").write_text(GO)
    (tmp_path / "bin" / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(binaries, "_ROOM", 1)
    binaries._version_of.cache_clear()
    (tmp_path / "calls").touch()
    return tmp_path / "calls"


def test_it_builds_each_program_once_for_all_who_ask_together(calls: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: binaries.build(lambda text: None), range(4)))
    assert len(set(built)) == 1
    assert built[0] == binaries.installed()
    assert built[0].kubelet.read_text() == "program\n"
    assert len(calls.read_text().splitlines()) == 2


def test_it_stamps_the_version_of_its_modules(calls: Path) -> None:
    binaries.build(lambda text: None)
    version = binaries.kubernetes_version()
    assert all(f"version.gitVersion={version}" in line for line in calls.read_text().splitlines())
    assert f"k8s.io/kubernetes {version}" in (binaries.SOURCES / "go.mod").read_text()


def test_it_says_how_far_it_is(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    details: list[str] = []
    monkeypatch.setattr(binaries._Progress, "hear", _listening(details))
    said: list[str] = []
    binaries.build(said.append)
    assert details == ["1 modules fetched", "1 of 2 packages", "2 of 2 packages"]
    assert "(once; minutes" in said[0] and "done in" in said[-1]
    binaries.build(said.append)
    assert len(said) == 1, "what is there is not talked about"


def test_it_counts_on_where_an_interrupted_build_was(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler has it in its cache then and does not name it again."""
    monkeypatch.setenv("FAKE_FAILS", "1")
    with pytest.raises(EmbeddedError):
        binaries.build(lambda text: None)
    monkeypatch.delenv("FAKE_FAILS")
    details: list[str] = []
    monkeypatch.setattr(binaries._Progress, "hear", _listening(details))
    binaries.build(lambda text: None)
    assert details == ["1 modules fetched", "2 of 2 packages"]


def _listening(details: list[str]) -> Callable[[binaries._Progress, str], None]:
    hear = binaries._Progress.hear

    def listening(progress: binaries._Progress, text: str) -> None:
        hear(progress, text)
        details.append(progress._line.detail)

    return listening


def test_it_names_the_command_that_builds_what_is_missing(calls: Path) -> None:
    with pytest.raises(EmbeddedError, match="make kube-binaries"):
        binaries.installed()
    assert calls.read_text() == ""


def test_it_keeps_nothing_of_a_build_that_failed(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAILS", "1")
    with pytest.raises(EmbeddedError, match="no space for objects"):
        binaries.build(lambda text: None)
    with pytest.raises(EmbeddedError, match="not built yet"):
        binaries.installed()
    assert {path.suffix for path in binaries.cache_root().iterdir()} == {".lock", ".compiled"}
    monkeypatch.delenv("FAKE_FAILS")
    assert binaries.build(lambda text: None).kubelet.exists()
    assert {path.suffix for path in binaries.cache_root().iterdir()} == {".lock", ""}


def test_it_builds_again_when_the_compiler_is_another(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = binaries.build(lambda text: None)
    monkeypatch.setenv("FAKE_VERSION", "1.27.1")
    binaries._version_of.cache_clear()
    assert binaries.build(lambda text: None).kubelet != first.kubelet


@pytest.mark.parametrize("version", ["1.24.9", "1.9.1", "unknown"])
def test_it_refuses_a_compiler_that_is_too_old(calls: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("FAKE_VERSION", version)
    monkeypatch.setattr(binaries, "_wheel_go", lambda: "")
    monkeypatch.setattr(binaries, "_USUAL", os.devnull)
    binaries._version_of.cache_clear()
    with pytest.raises(EmbeddedError, match="or newer was not found"):
        binaries.build(lambda text: None)
