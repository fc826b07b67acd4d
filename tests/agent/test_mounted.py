"""What an agent in a pod opens of Filesystem connections: folders of its pool, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from caches.agent.mounted import Mounted
from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.errors import Permanent


@pytest.fixture
def share(tmp_path: Path) -> Path:
    for name in ("models/llama", "private"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.bin").write_bytes(b"x")
    return tmp_path


def connection(*allowed: object) -> ConnectionSpec:
    return ConnectionSpec("share", SourceType.FILESYSTEM, allowed=tuple(map(str, allowed)))


def found(mounted: Mounted, spec: ConnectionSpec, folder: Path) -> list[str]:
    source = mounted(spec, {})
    return [file.path for file in source.list_page(f"file://{folder}").files]


def test_it_opens_a_root_that_is_mounted_or_lies_in_what_is(share: Path) -> None:
    for folder in (share, share / "models"):
        assert found(Mounted([str(folder)]), connection(share / "models"), share / "models" / "llama") == ["a.bin"]


def test_of_a_wider_root_it_opens_what_is_mounted(share: Path) -> None:
    mounted = Mounted([str(share / "models"), "/elsewhere"])
    assert found(mounted, connection(share), share / "models" / "llama") == ["a.bin"]
    with pytest.raises(Permanent, match="private"):
        found(mounted, connection(share), share / "private")


@pytest.mark.parametrize("folders", [[], ["/elsewhere"], ["{share}2"]], ids=["none", "another", "a longer name"])
def test_it_says_what_to_do_about_a_folder_that_is_not_mounted(share: Path, folders: list[str]) -> None:
    with pytest.raises(Permanent) as refused:
        Mounted([folder.format(share=share) for folder in folders])(connection(share), {})
    error = refused.value
    assert (error.code, error.reason) == ("agent:user:not-mounted", Reason.ACCESS_DENIED)
    assert str(share) in error.detail and "source_paths" in error.next_step


def test_it_leaves_other_stores_alone() -> None:
    spec = ConnectionSpec("lake", SourceType.S3, endpoint="http://127.0.0.1:9", region="us-east-1", allowed=("b",))
    Mounted([])(spec, {}).close()
