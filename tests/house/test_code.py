"""Rules of the house that no linter expresses."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.embedded.processes import ROOT

PACKAGES = ("controlplane", "caches", "routing", "tests")
MOST_LINES = 400
# What a pure decision may stand on besides the standard library: other pure modules.
PURE = (
    "caches.domain",
    "routing.domain",
    "controlplane.clusters.documents",
    "controlplane.clusters.pod_runs",
    "controlplane.errors",
    "controlplane.ids",
)
WITHOUT_DJANGO = (
    "caches.agent",
    "caches.domain",
    "caches.sources",
    "controlplane.clusters.documents",
    "controlplane.clusters.gateway",
    "controlplane.clusters.kubernetes",
    "controlplane.clusters.local",
    "controlplane.embedded",
    "routing.dataplane",
    "routing.domain",
)


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(name: str) -> list[str]:
    """A module itself, or everything in a package."""
    base = ROOT / name.replace(".", "/")
    paths = sorted(base.rglob("*.py")) if base.is_dir() else [base.with_suffix(".py")]
    found = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return [module.removesuffix(".__init__") for module in found]


def test_it_keeps_files_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources(*PACKAGES)
        if "migrations" not in path.parts and (lines := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}, f"more than {MOST_LINES} lines; split along what changes together"


@pytest.mark.parametrize("domain", ["caches/domain", "routing/domain"])
def test_it_keeps_domains_on_the_standard_library(domain: str) -> None:
    strangers = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(domain)
        for name in imports(path)
        if name.partition(".")[0] not in sys.stdlib_module_names and not name.startswith(PURE)
    }
    assert strangers == set()


def test_it_imports_nothing_in_the_package_every_process_imports() -> None:
    assert (ROOT / "controlplane" / "__init__.py").read_text() == ""


def test_it_runs_on_nodes_without_django() -> None:
    """Imports for real, parents included, which a graph of imports does not see."""
    names = [name for module in WITHOUT_DJANGO for name in modules(module) if not name.endswith("__main__")]
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'django' in sys.modules: sys.exit(f'{name} imports Django')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert len(names) > 10
    assert done.returncode == 0, done.stderr


def test_it_has_no_sleep_in_tests_that_waits_for_luck() -> None:
    """Tests wait for a condition, bounded. A sleep inside a child process's script is that process's business."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(
            "tests/domain", "tests/services", "tests/api", "tests/views", "tests/embedded", "tests/house"
        )
        if "sleep(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep")
    ]
    assert found == []
