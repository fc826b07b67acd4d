"""Content checksums as stores state them, fast enough to keep up with NVMe.

CRC64NVME parts can be computed in any order and combined, so ranges are verified while they arrive in parallel.
"""

from __future__ import annotations

import base64
import binascii

from awscrt import checksums as _native

from caches.sources.base import Chunk

CRC64NVME_EMPTY = 0


def crc64nvme(data: Chunk, previous: int = CRC64NVME_EMPTY) -> int:
    """CRC64NVME of ``data`` appended to what gave ``previous``."""
    return int(_native.crc64nvme(data, previous))


def combine_crc64nvme(crc1: int, crc2: int, len2: int) -> int:
    """The value of two neighbouring pieces, from the value of each and the second one's length in bytes."""
    return int(_native.combine_crc64nvme(crc1, crc2, len2))


def crc64nvme_text(value: int) -> str:
    """The form in which S3 prints it and FileRecord.checksum keeps it: base64 of the big-endian 8 bytes."""
    return base64.b64encode(value.to_bytes(8, "big")).decode("ascii")


def crc64nvme_value(text: str) -> int:
    """The number behind ``crc64nvme_text``. ValueError when it is not 8 bytes of base64."""
    raw = _base64(text)
    if len(raw) != 8:
        raise ValueError(f"not a CRC64NVME: {text!r}")
    return int.from_bytes(raw, "big")


def sha256_hex(text: str) -> str:
    """S3 prints SHA-256 in base64; FileRecord keeps lower-case hex. ValueError when it is not 32 bytes of base64."""
    raw = _base64(text)
    if len(raw) != 32:
        raise ValueError(f"not a SHA-256: {text!r}")
    return raw.hex()


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {text!r}") from error
