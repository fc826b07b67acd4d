"""The shell scripts behind make, each branch that can be had with stand-in programs on a PATH of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from controlplane.embedded.processes import ROOT

# What the scripts use besides what a test replaces.
BASICS = ("sh", "awk", "df", "env", "cat", "grep", "rm", "mkdir", "touch", "dirname", "sed", "tr", "od")


class Machine:
    """A checkout with a tools folder, and a PATH on which only what a test puts there can be found."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        for made in (self.root, self.bin):
            made.mkdir()
        shutil.copytree(ROOT / "tools", self.root / "tools")
        (self.root / "requirements").mkdir()
        for name in BASICS:
            found = shutil.which(name)
            if found:
                self.real(name, found)
        self.program("id", "echo 1000")

    def program(self, name: str, script: str = "", *, at: str = "") -> None:
        """A stand-in that notes how it was called, then runs the script."""
        path = self.root / at / name if at else self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >>"{self.calls}"\n{script}\n')
        path.chmod(0o755)

    def real(self, name: str, found: str = "") -> None:
        """The system's own program, behind a script: a link would let a stand-in be written over it."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\nexec {found or shutil.which(name)} "$@"\n')
        path.chmod(0o755)

    def run(self, tool: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which("sh") or "/bin/sh", f"tools/{tool}", *arguments],
            cwd=self.root,
            env={"PATH": str(self.bin), "HOME": str(self.root), **env},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def python(*, suits: bool = True, venv: bool = True, version: str = "3.12") -> str:
    """A stand-in for Python as bootstrap.sh asks it: does it suit, has it venv, which version, make a venv."""
    return f"""
case "$*" in
*"sys.exit(not"*) exit {0 if suits else 1} ;;
*"import ensurepip"*) exit {0 if venv else 1} ;;
*"print("*) echo {version} ;;
*"-m venv"*)
    mkdir -p .venv/bin
    printf '#!/bin/sh\\necho "venv-python $*" >>calls\\n' >.venv/bin/python
    chmod +x .venv/bin/python ;;
esac"""


# -- bootstrap.sh


def test_it_makes_the_environment_with_the_first_python_that_suits(machine: Machine) -> None:
    machine.real("chmod")
    machine.program("python3", python(suits=False))
    machine.program("python3.12", python())
    done = machine.run("bootstrap.sh")
    assert done.returncode == 0, done.stderr
    assert "python3.12 -m venv --clear .venv" in machine.called()
    asked = (machine.root / "calls").read_text()
    assert "--require-hashes" in asked and "--target .venv/bootstrap" in asked and "hearth.pth" in asked


def test_it_keeps_an_environment_that_suits(machine: Machine) -> None:
    machine.program("python3", python())
    machine.program("python", at=".venv/bin")
    assert machine.run("bootstrap.sh").returncode == 0
    assert not any("-m venv" in call for call in machine.called())


@pytest.mark.parametrize("there", [(), ("python3",)])
def test_it_says_which_python_it_needs(machine: Machine, there: tuple[str, ...]) -> None:
    for name in there:
        machine.program(name, python(suits=False))
    done = machine.run("bootstrap.sh")
    assert done.returncode == 1
    assert "no Python from 3.11 to 3.14 was found" in done.stderr and "make PYTHON=" in done.stderr
    assert not (machine.root / ".venv").exists()


def test_it_takes_no_other_python_than_the_named_one(machine: Machine) -> None:
    machine.program("python3", python())
    machine.program("mine", python(suits=False))
    done = machine.run("bootstrap.sh", "mine")
    assert done.returncode == 1
    assert "mine is no Python from 3.11 to 3.14" in done.stderr
    machine.program("mine", python(venv=False))
    assert "mine has no venv module" in machine.run("bootstrap.sh", "mine").stderr


def test_it_names_the_package_with_venv_where_it_may_not_install(machine: Machine) -> None:
    machine.program("python3", python(venv=False))
    machine.program("apt-get", "exit 0")
    done = machine.run("bootstrap.sh")
    assert done.returncode == 1
    assert "sudo apt-get install python3.12-venv" in done.stderr
    assert not any(call.startswith("apt-get") for call in machine.called()), "it is not root"


def test_it_names_the_package_where_there_is_no_apt(machine: Machine) -> None:
    machine.program("id", "echo 0")
    machine.program("python3", python(venv=False))
    done = machine.run("bootstrap.sh")
    assert done.returncode == 1 and "has no venv module" in done.stderr


def test_it_installs_venv_where_it_may(machine: Machine) -> None:
    machine.real("chmod")
    machine.program("id", "echo 0")
    machine.program("python3", python(venv=False, version="3.11"))
    machine.program("apt-get", 'echo "a lot of words"')
    done = machine.run("bootstrap.sh")
    assert done.returncode == 0, done.stderr
    assert [call for call in machine.called() if call.startswith("apt-get")] == [
        "apt-get update -qq",
        "apt-get install -y -qq python3.11-venv",
    ]
    assert done.stdout == "hearth: installing python3.11-venv\n"


@pytest.mark.parametrize("failing", ["update", "install"])
def test_it_says_so_when_the_package_cannot_be_installed(machine: Machine, failing: str) -> None:
    machine.program("id", "echo 0")
    machine.program("python3", python(venv=False))
    machine.program("apt-get", f'[ "$1" != {failing} ]')
    done = machine.run("bootstrap.sh")
    assert done.returncode == 1
    assert "python3.12-venv could not be installed" in done.stderr
    assert not (machine.root / ".venv").exists()


# -- uv.sh


@pytest.fixture
def installer(machine: Machine) -> Machine:
    """An environment whose installer notes what it is told; pip knows nothing."""
    machine.program("python", "exit 1", at=".venv/bin")
    machine.program("uv", f'env >"{machine.root}/env"; exit "${{UV_ANSWER:-0}}"', at=".venv/bootstrap/bin")
    return machine


def _told(machine: Machine) -> dict[str, str]:
    lines = (machine.root / "env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_it_installs_into_this_environment_without_asking_for_a_python(installer: Machine) -> None:
    assert installer.run("uv.sh", "pip", "sync", "a file.txt").returncode == 0
    assert "uv pip sync a file.txt" in installer.called()
    told = _told(installer)
    assert told["VIRTUAL_ENV"] == f"{installer.root}/.venv" and told["UV_PYTHON_DOWNLOADS"] == "never"
    assert "UV_DEFAULT_INDEX" not in told and "SSL_CERT_FILE" not in told


def test_it_passes_on_what_pip_was_told(installer: Machine) -> None:
    knows = 'case "$*" in *index-url*) echo http://mirror.local/ ;; *cert*) echo /ca.pem ;; esac'
    installer.program("python", knows, at=".venv/bin")

    def told(**env: str) -> tuple[str, str]:
        installer.run("uv.sh", "x", **env)
        return _told(installer)["UV_DEFAULT_INDEX"], _told(installer)["SSL_CERT_FILE"]

    assert told() == ("http://mirror.local/", "/ca.pem")
    assert told(PIP_INDEX_URL="http://pip.local/", SSL_CERT_FILE="/mine.pem") == ("http://pip.local/", "/mine.pem")
    assert told(UV_DEFAULT_INDEX="http://uv.local/", PIP_INDEX_URL="http://pip.local/")[0] == "http://uv.local/"


def test_it_names_the_missing_compiler_only_where_there_is_none(installer: Machine) -> None:
    installer.program("df", "printf 'h\\nx 1 1 9000000 1%% /\\n'")
    failed = installer.run("uv.sh", "x", UV_ANSWER="2")
    assert failed.returncode == 1
    assert "a C compiler is missing: apt-get install gcc libc6-dev" in failed.stderr
    installer.program("cc")
    failed = installer.run("uv.sh", "x", UV_ANSWER="2")
    assert failed.returncode == 1 and "compiler" not in failed.stderr


def test_it_names_the_full_disk_before_anything_else(installer: Machine) -> None:
    installer.program("df", "printf 'h\\nx 1 1 1000 99%% /\\n'")
    failed = installer.run("uv.sh", "x", UV_ANSWER="1")
    assert failed.returncode == 1
    assert "is nearly full" in failed.stderr and "compiler" not in failed.stderr


# -- chromium.sh


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_it_is_content_with_any_chromium(machine: Machine, name: str) -> None:
    machine.program(name)
    done = machine.run("chromium.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.called() == [], "looking is enough"


def test_it_takes_the_named_chromium(machine: Machine) -> None:
    machine.program("mine")
    assert machine.run("chromium.sh", HEARTH_CHROMIUM=str(machine.bin / "mine")).returncode == 0
    assert machine.run("chromium.sh", HEARTH_CHROMIUM="/nonexistent").returncode == 1


@pytest.mark.parametrize(("user", "works", "code"), [("0", True, 0), ("0", False, 1), ("1000", True, 1)])
def test_it_installs_chromium_where_it_may(machine: Machine, user: str, works: bool, code: int) -> None:
    machine.program("id", f"echo {user}")
    machine.program("apt-get", f"exit {0 if works else 1}")
    done = machine.run("chromium.sh")
    assert done.returncode == code
    tried = any(call.startswith("apt-get") for call in machine.called())
    assert tried is (user == "0")
    assert code == 0 or "sudo apt-get install chromium" in done.stderr


# -- compose_secrets.sh


def test_it_makes_a_secret_anew_and_leaves_the_others(machine: Machine) -> None:
    machine.real("chmod")
    folder = machine.root / ".run" / "compose"
    assert machine.run("compose_secrets.sh").returncode == 0
    first = {path.name: path.read_text() for path in folder.iterdir()}
    (folder / "secret_key").unlink()
    assert machine.run("compose_secrets.sh").returncode == 0
    second = {path.name: path.read_text() for path in folder.iterdir()}
    assert {name for name in first if first[name] != second[name]} == {"secret_key"}
    password = second["redis_url"].split(":")[2].split("@")[0]
    assert len(password) == 48 and f"requirepass {password}\n" in second["valkey_conf"]
    assert os.stat(folder).st_mode & 0o777 == 0o700
