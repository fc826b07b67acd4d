"""The tutorial and the runbook say the same, and no command of the tutorial is left out of the walk in test_install."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from caches.domain.endpoints.specs import read_endpoint
from tests.kube.deployed import blocks
from tests.kube.tutorial import (
    AWAY,
    INSTALL,
    NODES_AND_STORE,
    SERVE,
    TUTORIAL,
    VALUES,
    printed,
    with_values,
)

WALKED = (VALUES, INSTALL, NODES_AND_STORE, SERVE, AWAY)


def test_it_installs_by_the_words_of_the_runbook() -> None:
    assert printed("yaml", INSTALL) == blocks("yaml", "2. An overlay")
    assert printed("sh", INSTALL) == blocks("sh", "3. Secrets, then everything")
    assert printed("sh", SERVE)[0] == blocks("sh", "Endpoints")[0]


def test_every_command_is_below_a_heading_that_is_walked() -> None:
    text = TUTORIAL.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == list(WALKED)
    assert len(re.findall(r"^```sh$", text, re.MULTILINE)) == sum(len(printed("sh", heading)) for heading in WALKED)
    assert set(re.findall(r"^```(\w+)$", text, re.MULTILINE)) == {"sh", "yaml"}


@pytest.mark.parametrize("heading", WALKED)
def test_its_blocks_are_taken_by_an_interactive_zsh(heading: str) -> None:
    """Which knows no comments, does not split what a variable holds, and looks for files where a word has a ``?``."""
    for block in printed("sh", heading):
        assert "#" not in block
        assert not re.search(r"(?<!echo )\$NODES", block)
        bare = re.sub(r"'[^']*'|\"[^\"]*\"|\$\?", "", block.partition("<<END")[0])
        assert not re.search(r"[?*]", bare), bare


@pytest.mark.parametrize("value", ["a b", "https://store.example:9000", r"\1"])
def test_a_value_of_the_readers_stands_where_the_example_stood(value: str) -> None:
    said = subprocess.run(
        ["sh", "-euc", f'{with_values({"NODES": value})}\nprintf %s "$NODES"'],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert said.stdout == value
    with pytest.raises(AssertionError, match="does not ask for NOTHING"):
        with_values({"NOTHING": value})


def test_its_endpoint_is_understood_whole() -> None:
    script = printed("sh", SERVE)[1].partition("kubectl")[0].replace("cat >endpoint.yaml", "cat")
    said = subprocess.run(
        ["sh", "-euc", f"{with_values({})}\n{script}"], capture_output=True, text=True, check=True, timeout=60
    )
    reading = read_endpoint(yaml.safe_load(said.stdout))
    assert reading.refusals == () and reading.ignored == ()
    assert reading.spec is not None and reading.spec.source.text == "s3://models/llama"
    assert reading.spec.cache.weights and reading.spec.pod.port == 8000
