"""What the local fleet keeps in files: manifests in parts, secrets for their owner only, disks, sizes in words."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from controlplane.clusters.documents import Algorithm, FileRecord, Manifest
from controlplane.clusters.gateway import Unreachable
from controlplane.clusters.local import database, disks, manifests, secrets
from controlplane.clusters.local.sizes import format_size, parse_size
from controlplane.clusters.local.store import Store
from tests.contracts.observing import DIGEST


@pytest.fixture
def store(tmp_path: Path) -> Store:
    database.database_create(tmp_path / "fleet")
    return Store(tmp_path / "fleet")


def _incompressible(count: int) -> Manifest:
    noise = random.Random(7)
    files = (
        FileRecord(f"f{n}", n, Algorithm.SHA256, noise.randbytes(32).hex(), noise.randbytes(16).hex())
        for n in range(count)
    )
    return Manifest(DIGEST, tuple(files))


def test_it_keeps_a_large_manifest_in_parts_below_the_limit(store: Store) -> None:
    manifest = _incompressible(30_000)
    with store.write() as session:
        manifests.manifest_put(session, manifest)
    with store.read() as session:
        sizes = [row[0] for row in session.connection.execute("SELECT length(data) FROM manifests ORDER BY part")]
        assert manifests.manifest_get(session, DIGEST) == manifest
    assert len(sizes) > 1
    assert max(sizes) <= 900_000


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM manifests WHERE part=1",
        "UPDATE manifests SET data=zeroblob(10) WHERE part=0",
        "UPDATE manifests SET checksum='0' WHERE part=0",
        "UPDATE manifests SET digest='sha256:another'",
    ],
)
def test_it_hands_out_no_damaged_manifest(store: Store, damage: str) -> None:
    manifest = _incompressible(25_000)
    with store.write() as session:
        manifests.manifest_put(session, manifest)
        session.connection.execute(damage)
    with store.read() as session, pytest.raises(Unreachable, match="damaged"):
        manifests.manifest_get(session, "sha256:another" if "another" in damage else DIGEST)


def test_it_keeps_secrets_to_their_owner(tmp_path: Path) -> None:
    secrets.secret_write(tmp_path, "key", {"a": "b"})
    secrets.secret_write(tmp_path, "key", {"a": "c"})
    folder = tmp_path / "secrets"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [(path.name, path.stat().st_mode & 0o777) for path in folder.iterdir()] == [("key.json", 0o600)]


def test_it_tells_nothing_of_a_secret_that_it_cannot_read(tmp_path: Path) -> None:
    secrets.secret_write(tmp_path, "key", {"a": "b"})
    (tmp_path / "secrets" / "key.json").write_text('{"secret_access_key": "hunter2')
    with pytest.raises(Unreachable) as told:
        secrets.secret_read(tmp_path, "key")
    assert "hunter2" not in str(told.value)


def test_it_gives_a_new_incarnation_an_empty_disk(tmp_path: Path) -> None:
    disk = disks.disk_prepare(tmp_path, "a-1", "one")
    tree = disk / "hearth" / "weights" / "sha256-x"
    tree.mkdir(parents=True)
    (tree / "model.safetensors").write_bytes(b"x")
    (tree / "model.safetensors").chmod(0o444)
    for folder in (tree, tree.parent, disk / "hearth"):
        folder.chmod(0o555)

    assert disks.disk_prepare(tmp_path, "a-1", "one") == disk
    assert (tree / "model.safetensors").exists(), "the same incarnation keeps what it has"
    disks.disk_prepare(tmp_path, "a-1", "two")
    assert list(disk.iterdir()) == []
    assert list((tmp_path / "trash").iterdir()) == []


def test_it_sweeps_the_disks_of_removed_nodes_only(tmp_path: Path) -> None:
    for name in ("a-1", "a-2"):
        (disks.disk_prepare(tmp_path, name, name) / "file").write_text("x")
    (tmp_path / "trash" / "left").mkdir(parents=True)

    assert disks.disks_sweep(tmp_path, {"a-1"}) == ["a-2"]
    assert (tmp_path / "nodes" / "a-1" / "file").exists()
    assert sorted(path.name for path in (tmp_path / "nodes").iterdir()) == [".a-1.uid", "a-1"]
    assert not (tmp_path / "trash" / "left").exists()


def test_it_never_follows_a_link_out_of_the_fleet(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    fleet = tmp_path / "fleet"
    (disks.disk_prepare(fleet, "a-1", "one") / "way-out").symlink_to(precious)
    os.symlink(precious, fleet / "nodes" / "b-1")
    precious.chmod(0o555)

    disks.disk_prepare(fleet, "a-1", "two")
    disks.disk_prepare(fleet, "b-1", "two")
    disks.disks_sweep(fleet, ())
    assert (precious / "file").read_text() == "x"
    assert precious.stat().st_mode & 0o777 == 0o555


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("512MiB", 512 * 2**20), ("1.5 GiB", 3 * 2**29), ("2gb", 2 * 10**9), (" 3 B ", 3)],
)
def test_it_reads_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1 parsec", "1e3", "1..2MiB", "MiB"])
def test_it_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 * 2**29, "1.5 GiB"), (2**51, "2048 TiB")]
)
def test_it_writes_sizes(size: int, text: str) -> None:
    assert format_size(size) == text
