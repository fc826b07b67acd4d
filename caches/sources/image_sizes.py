"""How much room a layer takes once it is unpacked: registries state packed sizes alone. Pure.

The end of a gzip stream holds the size of what was packed, modulo 4 GiB; that is exact for what one writer packed in
one go. Where it cannot be (streams in pieces, other packings, no answer), a usual ratio is taken. An image store on
disk adds block sizes and metadata, so this is an estimate for admission and forecast, never a promise.
"""

from __future__ import annotations

from caches.sources.image_documents import Blob

TAIL_BYTES = 4
USUAL_RATIO = 2.6  # of programs and libraries packed by gzip or zstd
MOST_RATIO = 1032.0  # more than deflate can do
_MODULUS = 2**32


def unpacked_bytes(layer: Blob, end: bytes = b"") -> int:
    """Bytes of a layer unpacked; ``end`` are its last TAIL_BYTES, b"" when they are not known."""
    if "gzip" not in layer.media_type and "zstd" not in layer.media_type:
        return layer.size_bytes  # a plain tar
    if "gzip" in layer.media_type and len(end) == TAIL_BYTES and not layer.is_stargz:
        stated = int.from_bytes(end, "little")
        # Layers rarely grow by packing: what is smaller than the packed size went once more around the modulus.
        while stated < layer.size_bytes - _slack(layer.size_bytes):
            stated += _MODULUS
        if stated <= layer.size_bytes * MOST_RATIO:
            return stated
    return round(layer.size_bytes * USUAL_RATIO)


def _slack(packed: int) -> int:
    """How much larger than its content a stream of what cannot be packed may be, its header included."""
    return 64 + packed // 1000
