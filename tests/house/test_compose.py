"""docker-compose.yml, Dockerfile and .env.example, checked without Docker."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.embedded.processes import ROOT

# What the images of others read; everything else must be ours.
FOREIGN = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD_FILE"}
PROCESSES = {"web", "worker", "beat", "watcher", "migrate"}
CONDITIONS = {"service_healthy", "service_completed_successfully", "service_started"}
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]


def read_by_settings() -> set[str]:
    text = (ROOT / "controlplane" / "settings.py").read_text()
    return set(re.findall(r"""env(?:\.\w+)?\(\s*["']([A-Z_]+)["']""", text))


def known() -> set[str]:
    """Every variable somebody reads: settings, the embedded program, the Makefile's tools, compose itself."""
    texts = [path.read_text() for path in (ROOT / "controlplane" / "embedded").glob("*.py")]
    texts += [path.read_text() for path in (ROOT / "tools").glob("*.sh")]
    embedded = set(re.findall(r"HEARTH_(?:STATE_DIR|DEMO_[A-Z0-9_]+|CHROMIUM)", "\n".join(texts)))
    return read_by_settings() | embedded | substituted()


def substituted() -> set[str]:
    return set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))


def ours(names: set[str]) -> set[str]:
    return {name.removesuffix("_FILE") if name.removesuffix("_FILE") in known() else name for name in names} - FOREIGN


def test_it_sets_only_variables_that_settings_read() -> None:
    for name, service in SERVICES.items():
        assert ours(set(service.get("environment", {}))) <= read_by_settings(), name


def test_it_runs_the_processes_of_the_program() -> None:
    assert set(SERVICES) == PROCESSES | {"db", "valkey"}
    program = (ROOT / "controlplane" / "embedded" / "program.py").read_text()
    queues = next(part for part in SERVICES["worker"]["command"] if part.startswith("--queues=")).partition("=")[2]
    assert f'queues = "{queues}"' in program


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_it_states_a_condition_for_every_dependency(name: str) -> None:
    dependencies = SERVICES[name].get("depends_on", {})
    assert isinstance(dependencies, dict), "the short form waits for nothing"
    for other, how in dependencies.items():
        assert how["condition"] in CONDITIONS
        if how["condition"] == "service_healthy":
            assert "test" in SERVICES[other]["healthcheck"]
        if how["condition"] == "service_completed_successfully":
            assert SERVICES[other]["restart"] == "no"


@pytest.mark.parametrize("name", sorted(PROCESSES - {"migrate"}))
def test_it_waits_for_migrations(name: str) -> None:
    assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_it_pins_every_image() -> None:
    images = [service["image"] for service in SERVICES.values()]
    images += re.findall(r"(?m)^ARG BASE=(\S+)", (ROOT / "Dockerfile").read_text())
    for image in images:
        name, _, tag = image.rpartition(":")
        assert name and tag, f"{image} has no tag"
        assert "latest" not in image
        assert re.search(r"\d", tag) or image == "hearth:local", f"{image} does not name a version"


def test_it_publishes_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_it_takes_secrets_from_files() -> None:
    declared = DOCUMENT["secrets"]
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    assert used == set(declared)
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|TOKEN|_URL", key):
                assert key.endswith("_FILE") and value.startswith("/run/secrets/"), key


def test_it_writes_every_secret_once(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    script = tmp_path / "tools" / "compose_secrets.sh"
    script.write_text((ROOT / "tools" / "compose_secrets.sh").read_text())
    folder = tmp_path / ".run" / "compose"

    def written() -> dict[str, str]:
        subprocess.run(["sh", str(script)], check=True)
        return {path.name: path.read_text() for path in folder.iterdir()}

    first = written()
    assert set(first) == set(DOCUMENT["secrets"])
    assert first["database_password"] in first["database_url"]
    assert len(first["secret_key"]) >= 50
    assert written() == first
    assert folder.stat().st_mode & 0o077 == 0


def test_it_builds_an_image_without_root_and_compiler() -> None:
    final = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert re.search(r"(?m)^USER 10001", final)
    assert re.search(r"(?m)^HEALTHCHECK ", final)
    assert "collectstatic" in final
    assert not re.search(r"gcc|build-essential|apt-get", final)


def test_it_explains_every_variable_and_no_other() -> None:
    explained = set(re.findall(r"(?m)^#([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text()))
    assert explained == known()
