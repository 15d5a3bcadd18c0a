"""How many bytes a reply has, and may have, before anything of it is read."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import RecordDict

from fedloom.engines.zstd_arrays import full_bytes

SMALL = 2**20
"""Bytes of a reply without tensors: scores, an introduction, an error."""
PER_TENSOR = 2048
"""Bytes for a tensor's name, its header and Flower's wrapping."""
NUMBER = 8


def most_bytes(nbytes: int, tensors: int) -> int:
    """Of a reply whose tensors have so many bytes."""
    return SMALL + nbytes + PER_TENSOR * tensors


def held_bytes(records: RecordDict) -> int:
    """Of all tensors in a reply once they are unpacked, before any is, and of its texts."""
    trees = records.array_records
    arrays = sum(len(name) + full_bytes(a) for tree in trees.values() for name, a in tree.items())
    texts = sum(map(_text_bytes, records.config_records.values()))
    numbers = sum(map(_text_bytes, records.metric_records.values()))
    return sum(map(len, records)) + arrays + texts + numbers


def _text_bytes(record: Mapping[str, object]) -> int:
    return sum(len(name) + _length(value) for name, value in record.items())


def _length(value: object) -> int:
    if isinstance(value, list):
        return sum(map(_length, value))
    return len(value) if isinstance(value, str | bytes) else NUMBER
