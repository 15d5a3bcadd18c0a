"""Arrays of Flower's messages in zstd's format, where that makes them clearly smaller.

Trained weights hardly get smaller; levels, gaps and tensors that are mostly zeros do. At a site the
gate does it, after it has looked at the tensors as they are, so that an app cannot choose between
several ways to write the same numbers. Whoever reads a message knows how large an array will be,
and refuses it, before anything of it is unpacked. Imports no torch: the gate has none.
"""

from __future__ import annotations

import zstandard
from flwr.app import Array, RecordDict

from fedloom.errors import BadInput

STYPE = "fedloom.numpy.zstd"
"""What Flower calls the format of an array's bytes."""
FEWEST_BYTES = 512
"""Below this an array stays as it is."""
WORTHWHILE = 0.9
"""What is left of an array must be less than this share of it."""
LEVEL = 3


def squeezed(array: Array) -> Array:
    """The array in zstd's format, or as it is where that would save little."""
    if len(array.data) < FEWEST_BYTES:
        return array
    data = zstandard.ZstdCompressor(level=LEVEL).compress(array.data)
    if len(data) > WORTHWHILE * len(array.data):
        return array
    return Array(array.dtype, array.shape, STYPE, data)


def squeeze(records: RecordDict) -> None:
    """Do so with all arrays of a message."""
    for record in records.array_records.values():
        for key, array in list(record.items()):
            record[key] = squeezed(array)


def full_bytes(array: Array) -> int:
    """Bytes that an array has in numpy's format. It says so itself; one that says less than it has
    cannot be unpacked."""
    if array.stype != STYPE:
        return len(array.data)
    size = zstandard.frame_content_size(array.data)
    if size < 0:
        raise BadInput("an array in zstd's format does not say how large it is")
    return max(size, len(array.data))


def unpacked(array: Array) -> bytes:
    """The bytes in numpy's format, `full_bytes` of them at most. Ask that first."""
    if array.stype != STYPE:
        return array.data
    full_bytes(array)
    try:
        return zstandard.ZstdDecompressor().decompress(array.data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise BadInput(f"an array in zstd's format cannot be unpacked ({e})") from None
