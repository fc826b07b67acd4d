"""What people read of a scrub: files are files, and a folder is named where nothing else was wrong."""

from __future__ import annotations

import pytest

from caches.services.scrub_findings import Found


@pytest.mark.parametrize(
    ("damaged", "count", "fetched", "message"),
    [
        (["./"], 1, 0, "1 folder was wrong and is right again (0 B fetched): ./."),
        (["./", "deep/"], 2, 0, "2 folders were wrong and are right again (0 B fetched): ./, deep/."),
        (["./", "a.bin"], 2, 5, "1 file was wrong and is right again (5 B fetched): a.bin."),  # two scrubs
        (["a.bin"], 1, 5, "1 file was wrong and is right again (5 B fetched): a.bin."),
        ([], 0, 0, "Every byte is right."),
    ],
)
def test_it_calls_a_folder_a_folder(damaged: list[str], count: int, fetched: int, message: str) -> None:
    assert Found(damaged, count, fetched, is_news=False).message == message
