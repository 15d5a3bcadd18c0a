"""A message's records in few of Flower's objects.

Flower carries every record, every array and every piece of an array by a request of its own, and
does so three times on the way from the server to an app and three times back. For a network of a
dozen tensors those are hundreds of requests, and most of the time of a short round. So a message
travels as one record that holds all others in Flower's own encoding. Only slices of a state that
are large are objects of their own: Flower stores and sends once what many clients get.

Imports no torch: the gate has none.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import (
    array_record_from_proto,
    array_record_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.proto.recorddict_pb2 import ArrayRecord as ProtoArrayRecord
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from fedloom.errors import BadInput

RECORDS = "records"
"""The record with the others in it."""
LARGE = "large"
"""The record with an array for each large slice, which has an empty place among the others."""
LEAST_LARGE = 2**17
"""Bytes of a large slice."""
MOST_SMALL = 2**22
"""Bytes of all other slices together; further ones count as large."""
MOST_BYTES = MOST_SMALL + 2**21
"""Of the record with the others in it: values, names and small slices."""
MOST_NAMES = 50_000
"""Records and tensors of a message. Each takes memory when it is opened, however small it is."""
STYPE = "fedloom.bundle"
"""What Flower calls the format of a large slice's bytes."""

Made = dict[tuple[tuple[str, int], ...], Array]
"""Large slices that were encoded already, by the names and identities of what is in them."""


def bundled(records: RecordDict, made: Made | None = None) -> RecordDict:
    """The records as they travel; an empty message stays empty.

    `made` remembers slices while the records that they were made of live: what many clients get is
    encoded once.
    """
    if not records:
        return RecordDict()
    made = {} if made is None else made
    large = {name: _encoded(record, made) for name, record in _large(records).items()}
    others = RecordDict({**records, **dict.fromkeys(large, ArrayRecord())})
    written = recorddict_to_proto(others).SerializeToString()
    bundle = RecordDict({RECORDS: ConfigRecord({RECORDS: written})})
    if large:
        bundle[LARGE] = ArrayRecord(large)
    return bundle


def _large(records: RecordDict) -> dict[str, ArrayRecord]:
    large, small = {}, 0
    for name, record in records.array_records.items():
        size = sum(len(array.data) for array in record.values())
        if size >= LEAST_LARGE or small + size > MOST_SMALL:
            large[name] = record
        else:
            small += size
    return large


def _encoded(slice_: ArrayRecord, made: Made) -> Array:
    key = tuple((name, id(array.data)) for name, array in slice_.items())
    if key not in made:
        data = array_record_to_proto(slice_).SerializeToString()
        made[key] = Array("uint8", (len(data),), STYPE, data)
    return made[key]


def opened(bundle: RecordDict) -> RecordDict:
    """The records that were bundled; raises where this is no bundle.

    Names are counted, and compared, before any record is made of them: a stranger's bundle may hold
    millions of empty ones, and Flower prints a name that is there twice.
    """
    if not bundle:
        return RecordDict()
    large = dict(bundle.array_records.get(LARGE, ArrayRecord()))
    packed = ProtoRecordDict.FromString(_data(bundle, with_large=bool(large)))
    slices = {name: _packed_slice(name, array) for name, array in large.items()}
    inside = [item.array_record for item in packed.items if item.HasField("array_record")]
    names = [[item.key for item in part.items] for part in (packed, *slices.values(), *inside)]
    if sum(map(len, names)) > MOST_NAMES or any(len(set(part)) < len(part) for part in names):
        raise BadInput("the message is no bundle of records: too many names, or one of them twice")
    records = recorddict_from_proto(packed)
    places = {name for name, record in records.array_records.items() if not record}
    for name, slice_ in slices.items():
        if name not in places:
            raise BadInput(f"{name[:80]!r} is no bundle of arrays: it has no place of its own")
        records[name] = array_record_from_proto(slice_)
    return records


def _data(bundle: RecordDict, with_large: bool) -> bytes:
    written = bundle.config_records.get(RECORDS, ConfigRecord())
    data = written.get(RECORDS)
    if (
        set(bundle) != {RECORDS, *([LARGE] if with_large else [])}
        or set(written) != {RECORDS}
        or not isinstance(data, bytes)
        or len(data) > MOST_BYTES
    ):
        raise BadInput("the message is no bundle of records")
    return data


def _packed_slice(name: str, array: Array) -> ProtoArrayRecord:
    if array.stype != STYPE:
        raise BadInput(f"{name[:80]!r} is no bundle of arrays")
    slice_: ProtoArrayRecord = ProtoArrayRecord.FromString(array.data)
    return slice_
