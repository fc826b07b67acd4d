"""The commands of caches: secrets come from standard input and are never shown, the demo says what it cannot read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.core.management.base import CommandError

from caches.management.commands import bootstrap_demo
from caches.services.demo.setting_up import DemoStore
from caches.sources.secrets import read_secret


@pytest.fixture(autouse=True)
def _folder(settings: LazySettings, tmp_path: Path) -> None:
    settings.SECRETS_DIR = tmp_path / "secrets"


def secret(*arguments: str, given: str = "") -> str:
    out = io.StringIO()
    call_command("secret", *arguments, stdin=io.StringIO(given), stdout=out)
    return out.getvalue()


def test_a_secret_is_stored_listed_and_deleted_and_only_its_keys_are_said() -> None:
    said = secret("set", "lake", given="access_key_id=AKIA\nsecret_access_key = hunter2==\n")
    assert said == "Stored lake with access_key_id, secret_access_key.\n"
    assert read_secret("lake") == {"access_key_id": "AKIA", "secret_access_key": "hunter2=="}
    secret("set", "attic", given="token=x")
    assert secret("list") == "attic\nlake\n"
    assert secret("delete", "lake") == "Deleted lake.\n"
    assert secret("list") == "attic\n"


def test_setting_it_again_replaces_all_of_it() -> None:
    secret("set", "lake", given="a=1\nb=2")
    secret("set", "lake", given="c=3")
    assert read_secret("lake") == {"c": "3"}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("# comment\n\n  a = 1  \n", {"a": "1"}),
        ("a=1\r\nb=2\r\n", {"a": "1", "b": "2"}),
        ("a=x=y=", {"a": "x=y="}),
        ("a=ünï 😀", {"a": "ünï 😀"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_lines_of_key_and_value_are_read(given: str, stored: dict[str, str]) -> None:
    secret("set", "lake", given=given)
    assert read_secret("lake") == stored


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("hunter2", 1),
        ("a=1\nhunter2", 2),
        ("=hunter2", 1),
        ("a b=hunter2", 1),
        ("1a=hunter2", 1),
        ("a=", 1),
        ("a=  ", 1),
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_never_quoted(given: str, line: int) -> None:
    with pytest.raises(CommandError) as refused:
        secret("set", "lake", given=given)
    assert str(refused.value) == f"Line {line} is not of the form key=value."
    assert secret("list") == ""


@pytest.mark.parametrize("given", ["", "\n\n", "# only words\n"])
def test_nothing_is_not_stored_as_an_empty_secret(given: str) -> None:
    with pytest.raises(CommandError, match="standard input"):
        secret("set", "lake", given=given)


@pytest.mark.parametrize("arguments", [("delete", "lake"), ("delete", "../lake"), ("set", "../lake"), ("set", "A b")])
def test_what_is_not_there_or_cannot_be_is_refused(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        secret(*arguments, given="a=1")
    assert not list(tmp_path.rglob("*.json"))


def test_a_folder_that_cannot_be_used_is_said_without_a_traceback(settings: LazySettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings.SECRETS_DIR = tmp_path / "file"
    with pytest.raises(CommandError, match="folder cannot be used"):
        secret("set", "lake", given="a=hunter2")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the demo would have been made of."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(bootstrap_demo, "demo_bootstrap", lambda **given: found.append(given))
    for name in ("HEARTH_DEMO_S3_FILE", "HEARTH_S3_ENDPOINT", "HEARTH_DEMO_NODES", "HEARTH_DEMO_KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_the_demo_does_without_a_store(asked: list[dict[str, Any]]) -> None:
    call_command("bootstrap_demo")
    assert [(one["store"], one["nodes"]) for one in asked] == [(None, 8)]


def test_the_demo_takes_its_store_from_a_file_before_an_address(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEARTH_S3_ENDPOINT", "http://127.0.0.1:9")
    call_command("bootstrap_demo")
    file = tmp_path / "s3.json"
    file.write_text(json.dumps({"endpoint": "http://127.0.0.1:8", "access_key": "a", "secret_key": "b"}))
    monkeypatch.setenv("HEARTH_DEMO_S3_FILE", str(file))
    monkeypatch.setenv("HEARTH_DEMO_NODES", "3")
    call_command("bootstrap_demo")
    keys = {"access_key_id": "a", "secret_access_key": "b"}
    assert [(one["store"], one["nodes"]) for one in asked] == [
        (DemoStore(endpoint="http://127.0.0.1:9", region="us-east-1", keys=None), 8),
        (DemoStore(endpoint="http://127.0.0.1:8", region="", keys=keys), 3),
    ]


@pytest.mark.parametrize("content", [None, "", "hunter2", "[]", "null", '"hunter2"', "{}", '{"endpoint": "x"}', "3"])
def test_a_damaged_file_of_keys_is_named_and_not_quoted(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "s3.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("HEARTH_DEMO_S3_FILE", str(file))
    with pytest.raises(CommandError) as refused:
        call_command("bootstrap_demo")
    assert str(file) in str(refused.value) and "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None and asked == []


@pytest.mark.parametrize("nodes", ["", "-1", "2.5", "many", "²"])
def test_a_number_of_nodes_is_a_number(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    monkeypatch.setenv("HEARTH_DEMO_NODES", nodes)
    with pytest.raises(CommandError, match="HEARTH_DEMO_NODES"):
        call_command("bootstrap_demo")
