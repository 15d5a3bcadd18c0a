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
    large = {
        name: _encoded(record, made)
        for name, record in records.array_records.items()
        if sum(len(array.data) for array in record.values()) >= LEAST_LARGE
    }
    others = RecordDict({**records, **dict.fromkeys(large, ArrayRecord())})
    written = recorddict_to_proto(others).SerializeToString()
    bundle = RecordDict({RECORDS: ConfigRecord({RECORDS: written})})
    if large:
        bundle[LARGE] = ArrayRecord(large)
    return bundle


def _encoded(slice_: ArrayRecord, made: Made) -> Array:
    key = tuple((name, id(array.data)) for name, array in slice_.items())
    if key not in made:
        data = array_record_to_proto(slice_).SerializeToString()
        made[key] = Array("uint8", (len(data),), STYPE, data)
    return made[key]


def opened(bundle: RecordDict) -> RecordDict:
    """The records that were bundled; raises where this is no bundle."""
    if not bundle:
        return RecordDict()
    written = bundle.config_records.get(RECORDS, ConfigRecord())
    if not set(bundle) <= {RECORDS, LARGE} or set(written) != {RECORDS}:
        raise BadInput("the message is no bundle of records")
    data = written[RECORDS]
    if not isinstance(data, bytes):
        raise BadInput("the message is no bundle of records")
    records = recorddict_from_proto(ProtoRecordDict.FromString(data))
    for name, array in bundle.array_records.get(LARGE, ArrayRecord()).items():
        if array.stype != STYPE or len(records.array_records.get(name, "no place")) != 0:
            raise BadInput(f"{name[:80]!r} is no bundle of arrays, or has no place of its own")
        records[name] = array_record_from_proto(ProtoArrayRecord.FromString(array.data))
    return records
