"""Properties of segments and the journal: every byte once, and a journal that was torn or damaged anywhere."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from caches.agent.journal import Journal, Segment, journal_read, segments_of
from caches.agent.segments import Board, Piece, combined, pieces_of
from caches.sources.checksums import crc64nvme

SIZES = st.dictionaries(st.integers(0, 4), st.integers(0, 200), max_size=4)
CLAIMS = st.dictionaries(
    st.builds(
        lambda file, start, length: Segment(file, start, start + length),
        st.integers(0, 5), st.integers(0, 220), st.integers(1, 90),
    ),
    st.integers(0, 2**64 - 1),
    max_size=12,
)  # fmt: skip


@given(sizes=SIZES, claims=CLAIMS, segment_bytes=st.integers(1, 64))
def test_it_covers_every_byte_exactly_once(
    sizes: dict[int, int], claims: dict[Segment, int], segment_bytes: int
) -> None:
    pieces = pieces_of(sizes, claims, segment_bytes)
    for number, size in sizes.items():
        spans = [(p.segment.start, p.segment.end) for p in pieces if p.segment.file == number]
        assert [start for start, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
        assert (spans[-1][1] if spans else 0) == size
    assert {piece.segment.file for piece in pieces} <= set(sizes)
    for piece in pieces:
        if piece.claimed is None:
            assert piece.segment.size_bytes <= segment_bytes
        else:
            assert claims[piece.segment] == piece.claimed


@given(data=st.binary(max_size=300), cuts=st.sets(st.integers(1, 299)), seed=st.randoms())
def test_it_combines_parts_in_any_order_to_the_value_of_the_whole(
    data: bytes, cuts: set[int], seed: random.Random
) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    parts = [(Segment(0, a, b), crc64nvme(data[a:b])) for a, b in itertools.pairwise(edges) if a < b]
    seed.shuffle(parts)
    assert combined(parts) == crc64nvme(data)


@settings(max_examples=60)
@given(
    claims=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(0, 2**64 - 1)), max_size=8),
    cut=st.integers(0, 400),
    flip=st.one_of(st.none(), st.integers(0, 400)),
    more=st.integers(0, 2**64 - 1),
)
def test_it_reads_a_journal_that_was_torn_or_damaged_anywhere(
    claims: list[tuple[int, int, int]], cut: int, flip: int | None, more: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        journal = Journal(path)
        for number, start, crc in claims:
            journal.append(Segment(number, start, start + 7), crc)
        journal.close()
        whole = path.read_bytes()
        torn = bytearray(whole[:cut])
        if flip is not None and flip < len(torn):
            torn[flip] ^= 0x15
        path.write_bytes(torn)
        known = {Segment(number, start, start + 7): crc for number, start, crc in claims}
        found = journal_read(path)
        if flip is None:
            assert len(found) <= len(known) and set(found) <= set(known)
            intact = whole[:cut].count(b"\n")
            expected = {Segment(n, s, s + 7): crc for n, s, crc in claims[:intact]}
            assert found == expected
        again = Journal(path)
        again.append(Segment(9, 0, 1), more)
        again.close()
        assert journal_read(path)[Segment(9, 0, 1)] == more


@given(sizes=st.lists(st.integers(0, 100), max_size=5), segment_bytes=st.integers(1, 40))
def test_it_cuts_files_into_segments(sizes: list[int], segment_bytes: int) -> None:
    found = segments_of(sizes, segment_bytes)
    assert sum(segment.size_bytes for segment in found) == sum(sizes)
    assert all(0 < segment.size_bytes <= segment_bytes for segment in found)


def test_it_counts_what_is_settled_and_forgets_files() -> None:
    first, second = Segment(0, 0, 10), Segment(1, 0, 5)
    board = Board([Piece(first), Piece(second)])
    assert board.open_count == 2
    assert board.take() == Piece(first) and board.take() == Piece(second) and board.take() is None
    board.settle(first, 1)
    board.settle(second, 2)
    assert board.bytes_done == 15
    assert board.claims(without=frozenset({1})) == {first: 1}
    assert board.crc_of(1) == 2 and board.crc_of(7) == 0


def test_it_ignores_a_journal_line_that_ends_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"S 0 9 9 0000000000000000\nS 0 0 9 00000000000000ff\n")
    assert journal_read(tmp_path / "journal") == {Segment(0, 0, 9): 255}
    assert journal_read(tmp_path / "none") == {}
