"""A message's records in few of Flower's objects.

Flower carries every record, every array and every piece of an array by a request of its own, and
does so three times on the way from the server to an app and three times back. For a network of a
dozen tensors those are hundreds of requests, and most of the time of a short round. So a message
travels as one record for all values and one array for each slice of a state, in Flower's own
encoding; a slice that many clients get stays one object that Flower stores and sends once.

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

VALUES = "values"
"""The record with all that is no array."""
SLICES = "slices"
"""The record with an array for each record of arrays."""
STYPE = "fedloom.bundle"
"""What Flower calls the format of such an array's bytes."""

Made = dict[tuple[tuple[str, int], ...], Array]
"""Arrays of slices that were made already, by the names and identities of what is in them."""


def bundled(records: RecordDict, made: Made | None = None) -> RecordDict:
    """The records as they travel; an empty message stays empty.

    `made` remembers slices while the records that they were made of live: what many clients get is
    encoded once.
    """
    if not records:
        return RecordDict()
    made = {} if made is None else made
    values = RecordDict({**records.config_records, **records.metric_records})
    written = recorddict_to_proto(values).SerializeToString()
    bundle = RecordDict({VALUES: ConfigRecord({VALUES: written})})
    if slices := records.array_records:
        arrays = {name: _slice(record, made) for name, record in slices.items()}
        bundle[SLICES] = ArrayRecord(arrays)
    return bundle


def _slice(record: ArrayRecord, made: Made) -> Array:
    key = tuple((name, id(array.data)) for name, array in record.items())
    if key not in made:
        data = array_record_to_proto(record).SerializeToString()
        made[key] = Array("uint8", (len(data),), STYPE, data)
    return made[key]


def opened(bundle: RecordDict) -> RecordDict:
    """The records that were bundled; raises where this is no bundle."""
    if not bundle:
        return RecordDict()
    if not set(bundle) <= {VALUES, SLICES}:
        raise BadInput("the message is no bundle of records")
    values = bundle.config_records[VALUES]
    if set(values) != {VALUES} or not isinstance(values[VALUES], bytes):
        raise BadInput("the message is no bundle of records")
    records = recorddict_from_proto(ProtoRecordDict.FromString(values[VALUES]))
    for name, array in bundle.array_records.get(SLICES, ArrayRecord()).items():
        if array.stype != STYPE or name in records:
            raise BadInput(f"{name[:80]!r} is no bundle of arrays, or there twice")
        records[name] = array_record_from_proto(ProtoArrayRecord.FromString(array.data))
    return records
