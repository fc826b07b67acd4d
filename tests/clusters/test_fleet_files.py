"""Secrets, disks and sizes of the local fleet at their edges."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clusters.gateway import NotFound, Unreachable
from controlplane.clusters.local import disks, secrets
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.link import LocalLink
from controlplane.clusters.local.sizes import format_size, parse_size

# -- secrets


@pytest.fixture
def gateway(tmp_path: Path) -> LocalGateway:
    LocalFleet(tmp_path / "fleet").create(nodes=1)
    return LocalGateway(tmp_path / "fleet")


def test_it_opens_secrets_to_their_owner_whatever_the_umask(gateway: LocalGateway) -> None:
    before = os.umask(0)
    try:
        gateway.apply_secret("key", {"a": "b"})
    finally:
        os.umask(before)
    folder = gateway.fleet / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "key.json").stat().st_mode) == 0o600
    (folder / "key.json").chmod(0o644)
    gateway.apply_secret("key", {"a": "c"})
    assert stat.S_IMODE((folder / "key.json").stat().st_mode) == 0o600, "a rotation closes what was open"


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "null", "7", "[[1, 2]]"])
def test_it_says_unreachable_to_a_damaged_secret_without_showing_it(gateway: LocalGateway, text: str) -> None:
    gateway.apply_secret("key", {"a": "b"})
    (gateway.fleet / "secrets" / "key.json").write_text(text)
    with pytest.raises(Unreachable, match="secret key cannot be read") as told:
        LocalLink(gateway.fleet, "a-1", "x").secret("key")
    assert told.value.__suppress_context__ or told.value.__cause__ is None


def test_it_raises_gateway_errors_only_when_the_folder_is_wrong(gateway: LocalGateway) -> None:
    (gateway.fleet / "secrets").write_text("a file")
    with pytest.raises(Unreachable):
        gateway.apply_secret("key", {"a": "b"})
    with pytest.raises(Unreachable):
        LocalLink(gateway.fleet, "a-1", "x").secret("key")
    (gateway.fleet / "secrets").unlink()
    (gateway.fleet / "secrets" / "key.json").mkdir(parents=True)
    with pytest.raises(Unreachable, match="cannot be read"):
        LocalLink(gateway.fleet, "a-1", "x").secret("key")


def test_it_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.secret_write(tmp_path, "key", {"a": "old"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(json, "dump", full)
        with pytest.raises(OSError, match="No space"):
            secrets.secret_write(tmp_path, "key", {"a": "new"})
    assert secrets.secret_read(tmp_path, "key") == {"a": "old"}
    assert [path.name for path in (tmp_path / "secrets").iterdir()] == ["key.json"]


def test_it_removes_what_a_kill_left_of_a_secret_with_it(tmp_path: Path) -> None:
    for name in ("key", "key.json", "other"):
        secrets.secret_write(tmp_path, name, {"a": name})
        (tmp_path / "secrets" / f".{name}.json.77.0123abcd").write_text("half of it")
    secrets.secret_delete(tmp_path, "key")
    left = {path.name for path in (tmp_path / "secrets").iterdir()}
    assert left == {"key.json.json", ".key.json.json.77.0123abcd", "other.json", ".other.json.77.0123abcd"}
    secrets.secret_delete(tmp_path / "none", "key")


@pytest.mark.parametrize("name", ["a", "A.b_c-d", "x" * 200, "1"])
def test_it_takes_names_of_secrets_as_clusters_do(tmp_path: Path, name: str) -> None:
    secrets.secret_write(tmp_path, name, {})
    assert secrets.secret_read(tmp_path, name) == {}


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a.", "-a", "x" * 201, "a b", "größe", "a\n"])
def test_it_deletes_nothing_by_a_name_that_leads_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound):
        secrets.secret_delete(tmp_path, name)


# -- disks


def test_it_keeps_the_disk_of_the_same_incarnation(tmp_path: Path) -> None:
    (disks.disk_prepare(tmp_path, "a-1", "one") / "cached").write_text("x")
    assert (disks.disk_prepare(tmp_path, "a-1", "one") / "cached").read_text() == "x"
    assert list((disks.disk_prepare(tmp_path, "a-1", "two")).iterdir()) == []


@pytest.mark.parametrize("left", ["no owner", "empty owner", "a file", "a dangling link"])
def test_it_starts_afresh_on_what_a_kill_left(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "nodes" / "a-1"
    if left == "a file":
        folder.parent.mkdir()
        folder.write_text("x")
    elif left == "a dangling link":
        folder.parent.mkdir()
        folder.symlink_to(tmp_path / "nowhere")
    else:
        (disks.disk_prepare(tmp_path, "a-1", "one") / "half").write_text("x")
        owner = tmp_path / "nodes" / ".a-1.uid"
        owner.unlink() if left == "no owner" else owner.write_text("")
    disk = disks.disk_prepare(tmp_path, "a-1", "one")
    assert disk.is_dir() and not disk.is_symlink() and list(disk.iterdir()) == []
    disks.disks_sweep(tmp_path, {"a-1"})
    assert not (tmp_path / "trash").exists()


def test_it_wipes_read_only_trees_to_the_bottom(tmp_path: Path) -> None:
    disk = disks.disk_prepare(tmp_path, "a-1", "one")
    deep = disk / "hearth" / "weights" / "sha256-ff" / "sub"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    (deep / "file").chmod(0o444)
    for folder in (deep, deep.parent, deep.parent.parent):
        folder.chmod(0o555)
    assert disks.disks_sweep(tmp_path, ()) == ["a-1"]
    assert list((tmp_path / "nodes").iterdir()) == []
    assert not (tmp_path / "trash").exists() or list((tmp_path / "trash").iterdir()) == []


def test_it_sweeps_nothing_that_is_no_nodes_disk(tmp_path: Path) -> None:
    assert disks.disks_sweep(tmp_path, ()) == []
    root = tmp_path / "nodes"
    root.mkdir()
    for name in (".hidden", "Upper", "a.b", "lost+found"):
        (root / name).mkdir()
    assert disks.disks_sweep(tmp_path, ()) == []
    assert len(list(root.iterdir())) == 4


# -- sizes


@pytest.mark.parametrize(
    "text",
    ["9" * 400 + ".5MiB", "9" * 5000, "0x10", "1,5GiB", "1 GiB 2", "NaN", "inf", "½MiB", "--1"],
)
def test_it_refuses_sizes_that_no_disk_has_in_one_way(text: str) -> None:
    with pytest.raises(ValueError, match=r"no size|larger than any disk"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(1_048_575, "1 MiB"), (1_048_400, "1023.8 KiB"), (2**30 - 1, "1 GiB"), (2**40 - 1, "1 TiB"), (1536, "1.5 KiB")],
)
def test_it_rounds_into_the_next_unit(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 2**50))
def test_it_reads_what_it_wrote_within_its_rounding(size: int) -> None:
    assert abs(parse_size(format_size(size)) - size) <= max(1, size * 0.051)


@given(st.integers(0, 10**18 - 1), st.sampled_from(["", "B", "b", " "]))
def test_it_takes_plain_bytes_exactly(size: int, unit: str) -> None:
    assert parse_size(f"{size}{unit}") == size
