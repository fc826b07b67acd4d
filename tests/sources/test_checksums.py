"""Checksums against published values and against each other."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.sources.checksums import (
    combine_crc64nvme,
    crc64nvme,
    crc64nvme_text,
    crc64nvme_value,
    sha256_hex,
)


def test_it_computes_the_published_check_value() -> None:
    assert crc64nvme(b"123456789") == 0xAE8B14860A799888
    assert crc64nvme_text(0xAE8B14860A799888) == "rosUhgp5mIg="


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_pieces_combine_in_any_order(a: bytes, b: bytes, c: bytes) -> None:
    whole = crc64nvme(a + b + c)
    assert crc64nvme(memoryview(c), crc64nvme(b, crc64nvme(a))) == whole
    right = combine_crc64nvme(crc64nvme(b), crc64nvme(c), len(c))
    assert combine_crc64nvme(crc64nvme(a), right, len(b) + len(c)) == whole


@given(st.integers(0, 2**64 - 1))
def test_the_text_form_is_reversible(value: int) -> None:
    assert crc64nvme_value(crc64nvme_text(value)) == value


@pytest.mark.parametrize("text", ["", "rosUhgp5mIg", "rosUhgp5mI==", "rosUhgp5mIg=-2", "!!!!", "rosUhgp5mIgA"])
def test_other_texts_are_no_checksums(text: str) -> None:
    with pytest.raises(ValueError):
        crc64nvme_value(text)
    with pytest.raises(ValueError):
        sha256_hex(text)


def test_sha256_is_kept_as_hex() -> None:
    digest = hashlib.sha256(b"abc").digest()
    assert sha256_hex(base64.b64encode(digest).decode()) == digest.hex()
    with pytest.raises(ValueError):
        sha256_hex(base64.b64encode(digest).decode() + "-3")
