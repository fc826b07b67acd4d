"""What is committed: locks with hashes, no address of a package index, one way to run CI."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from controlplane.embedded.processes import ROOT

LOCKS = ("bootstrap", "base", "embedded", "kube", "dev")
# Spelled in two parts, so that this file does not hold what it looks for.
INDEX_HOSTS = re.compile(
    "|".join(["pypi" + r"\.", "python" + "hosted", "registry" + r"\.npm", "npm" + "js", "conda" + r"\.anaconda"])
)
# Options whose value is an address, and schemes with credentials.
INDEX_OPTIONS = re.compile(r"--(extra-)?index-url|--find-links|--trusted-host|(?m:^-[if] )")


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""


def test_it_names_no_package_index() -> None:
    found = [str(path.relative_to(ROOT)) for path in tracked() if INDEX_HOSTS.search(text_of(path))]
    assert found == [], "where packages come from is the machine's business"


@pytest.mark.parametrize("name", LOCKS)
def test_it_locks_every_requirement_with_hashes(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert not INDEX_OPTIONS.search(text)
    logical = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.lstrip().startswith("#")]
    assert logical
    for line in logical:
        assert re.match(r"[a-z0-9._-]+(\[[a-z0-9,_-]+\])?==\S+", line), line
        assert "--hash=sha256:" in line, line


def test_it_locks_one_version_of_everything() -> None:
    versions: dict[str, set[str]] = {}
    for name in LOCKS:
        for found in re.finditer(
            r"(?m)^([a-z0-9._-]+)\S*==(\S+)(.*)", (ROOT / "requirements" / f"{name}.txt").read_text()
        ):
            versions.setdefault(f"{found[1]} {found[3].strip(' ;' + chr(92))}", set()).add(found[2])
    assert {key: found for key, found in versions.items() if len(found) > 1} == {}


def test_it_bounds_every_dependency_and_says_why() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    text = (ROOT / "pyproject.toml").read_text()
    for requirement in wanted:
        assert re.search(r">=[^,]+,<", requirement), f"{requirement} has no upper bound"
        assert re.search(re.escape(f'"{requirement}",') + r"\s+# \S+", text), f"{requirement} has no reason"


def test_it_runs_in_ci_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ["set -eu", 'cd "$(dirname "$0")/.."', "exec make test"]
    assert os.access(script, os.X_OK)


def test_it_lists_every_command_of_the_makefile() -> None:
    helped = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("run", "test", "test-fast", "lint", "lock", "clean", "bench"):
        assert re.search(rf"make {target} +\S", helped), target


def test_it_keeps_secrets_and_states_out_of_git() -> None:
    checked = [".env", ".run/admin-password", ".venv/bin/python", ".run/postgres/data"]
    ignored = subprocess.run(["git", "check-ignore", *checked], cwd=ROOT, capture_output=True, text=True, check=False)
    if ignored.returncode == 128:
        pytest.skip("not a git checkout")
    assert ignored.stdout.split() == checked
