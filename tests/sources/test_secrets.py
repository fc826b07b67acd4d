"""Secrets are files of one owner, replaced whole, and never repeated in an error."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from caches.sources.secrets import delete_secret, read_secret, secret_names, secrets_folder, write_secret
from controlplane.clusters.documents import Reason
from controlplane.errors import Permanent


def test_it_reads_what_was_written_and_only_the_owner_may(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "secrets"
    path = write_secret("lab-1.keys", {"access_key_id": "a", "secret_access_key": "ü"}, folder)
    assert read_secret("lab-1.keys", folder) == {"access_key_id": "a", "secret_access_key": "ü"}
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(folder.stat().st_mode)) == (0o600, 0o700)
    write_secret("lab-1.keys", {"access_key_id": "b"}, folder)
    assert read_secret("lab-1.keys", folder) == {"access_key_id": "b"}
    assert secret_names(folder) == ("lab-1.keys",)
    assert [entry.name for entry in folder.iterdir()] == ["lab-1.keys.json"]
    assert delete_secret("lab-1.keys", folder) and not delete_secret("lab-1.keys", folder)
    assert secret_names(folder) == secret_names(tmp_path / "nowhere") == ()


def test_no_name_is_no_secret(tmp_path: Path) -> None:
    assert read_secret("", tmp_path) == {}


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "A", "a b", "a" * 101, "-a", "a-", "a\n", "ä"])
def test_names_never_leave_the_folder(name: str, tmp_path: Path) -> None:
    for verb in (read_secret, delete_secret, lambda name, folder: write_secret(name, {}, folder)):
        with pytest.raises(ValueError, match="secret's name"):
            verb(name, tmp_path)
    assert not list(tmp_path.parent.glob("up*"))


@pytest.mark.parametrize("content", ["", "hunter2", "[]", '{"a": 1}', '{"a": {"b": "hunter2"}}', "\0\xff"])
def test_damaged_files_are_named_and_not_quoted(content: str, tmp_path: Path) -> None:
    path = write_secret("lab", {}, tmp_path)
    path.write_text(content)
    with pytest.raises(Permanent) as caught:
        read_secret("lab", tmp_path)
    assert caught.value.reason == Reason.ACCESS_DENIED
    assert "lab" in caught.value.detail and "hunter2" not in caught.value.detail


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_file_that_others_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    write_secret("lab", {"a": "b"}, tmp_path).chmod(mode)
    with pytest.raises(Permanent, match="0600"):
        read_secret("lab", tmp_path)


@pytest.mark.parametrize(
    ("mode", "user", "group", "fine"),
    [(0o440, 10001, True, True), (0o440, 10001, False, False), (0o444, 10001, True, False), (0o460, 10001, True, False),
     (0o440, 0, True, False)],
)  # fmt: skip
def test_a_file_that_a_kubelet_mounted_is_the_pods_own(
    mode: int, user: int, group: bool, fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_secret("lab", {"a": "b"}, tmp_path)
    path.chmod(mode)
    if path.stat().st_uid != 0:
        pytest.skip("only root makes files of root's")
    gid = path.stat().st_gid
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getgroups", lambda: [10001, *([gid] if group else [])])
    if fine:
        assert read_secret("lab", tmp_path) == {"a": "b"}
        return
    with pytest.raises(Permanent, match="0600"):
        read_secret("lab", tmp_path)


def test_a_missing_one_says_how_to_store_it(tmp_path: Path) -> None:
    with pytest.raises(Permanent) as caught:
        read_secret("lab", tmp_path)
    assert "manage.py secret set lab" in caught.value.next_step


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_secret("lab", {"a": "old"}, tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "fsync", full)
        write_secret("lab", {"a": "new"}, tmp_path)
    assert read_secret("lab", tmp_path) == {"a": "old"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["lab.json"]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HEARTH_SECRETS_DIR": "/a/secrets", "HEARTH_STATE_DIR": "/b"}, "/a/secrets"),
        ({"HEARTH_STATE_DIR": "/b"}, "/b/secrets"),
    ],
)
def test_without_django_the_environment_says_where(variables: dict[str, str], folder: str) -> None:
    code = (
        "import sys; from caches.sources.secrets import secrets_folder; print(secrets_folder());"
        "assert 'django' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HEARTH_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=clean | variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == folder


def test_with_django_its_settings_say_where(tmp_path: Path, settings: object) -> None:
    settings.SECRETS_DIR = tmp_path  # type: ignore[attr-defined]
    assert secrets_folder() == tmp_path
