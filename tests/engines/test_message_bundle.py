"""What travels in place of a message's records."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.proto.recorddict_pb2 import ArrayRecord as ProtoArrayRecord
from flwr.proto.recorddict_pb2 import ConfigRecord as ProtoConfigRecord
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedloom.engines.message_bundle import (
    LARGE,
    LEAST_LARGE,
    MOST_BYTES,
    MOST_NAMES,
    MOST_SMALL,
    RECORDS,
    STYPE,
    bundled,
    opened,
)
from fedloom.errors import BadInput


def message(tensors: int, numbers: int = 6) -> RecordDict:
    """Records of every kind, with slices of many tensors and of none."""
    weights = {f"layer.{i}": Array(np.full((numbers,), i, np.float32)) for i in range(tensors)}
    return RecordDict(
        {
            "head": ConfigRecord({"client": 3, "new": False, "names": ["a", "b"], "own": b"\x00"}),
            "metrics": MetricRecord({"loss": 0.25}),
            "state/model": ArrayRecord(weights),
            "state/empty": ArrayRecord(),
        }
    )


def carried(bundle: RecordDict) -> RecordDict:
    """Through Flower's objects, as over a link."""
    objects = {name: each.deflate() for name, each in get_all_nested_objects(bundle).items()}
    back = inflate_object_from_contents(bundle.object_id, objects)
    assert isinstance(back, RecordDict)
    return back


@pytest.mark.parametrize("numbers", [6, LEAST_LARGE])
def test_every_record_arrives_as_it_was(numbers: int) -> None:
    records = message(3, numbers)
    back = opened(carried(bundled(records)))
    assert list(back) == list(records)
    assert dict(back.config_records["head"]) == dict(records.config_records["head"])
    assert dict(back.metric_records["metrics"]) == {"loss": 0.25}
    assert not back.array_records["state/empty"]
    sent, arrived = records.array_records["state/model"], back.array_records["state/model"]
    assert list(sent) == list(arrived)
    assert all(sent[key].data == arrived[key].data for key in sent)


def test_the_number_of_objects_does_not_grow_with_the_tensors() -> None:
    """One for all and one record in it; a large slice takes a record, an array and its pieces."""
    few, many = (len(get_all_nested_objects(bundled(message(n)))) for n in (1, 50))
    assert few == many == 2
    assert len(get_all_nested_objects(message(50))) > 100
    assert len(get_all_nested_objects(bundled(message(50, LEAST_LARGE // 100)))) == 2 + 3


def test_an_empty_message_stays_empty() -> None:
    assert not bundled(RecordDict())
    assert not opened(RecordDict())


@pytest.mark.parametrize(
    "broken",
    [
        message(1),
        RecordDict({LARGE: ArrayRecord()}),
        RecordDict({**bundled(message(1)), LARGE: ArrayRecord()}),
        RecordDict({**bundled(message(1)), LARGE: ConfigRecord({"a": 1})}),
        RecordDict({RECORDS: ConfigRecord({RECORDS: bytes(MOST_BYTES + 1)})}),
        RecordDict({RECORDS: ConfigRecord({RECORDS: "a text"})}),
        RecordDict({RECORDS: ConfigRecord({RECORDS: b"", "more": 1})}),
        RecordDict({**bundled(message(0)), LARGE: ArrayRecord({"state/model": Array(np.ones(2))})}),
        RecordDict({**bundled(message(1)), "more": ConfigRecord()}),
    ],
)
def test_what_is_no_bundle_is_refused(broken: RecordDict) -> None:
    with pytest.raises(BadInput, match="is no bundle"):
        opened(broken)


@pytest.mark.parametrize("name", ["head", "state/model", "state/other"])
def test_a_large_slice_takes_the_place_that_was_left_for_it_and_no_other(name: str) -> None:
    """The gate and the app would otherwise have to agree on which of two counts."""
    bundle, other = bundled(message(1)), bundled(message(1, LEAST_LARGE))
    bundle[LARGE] = ArrayRecord({name: other.array_records[LARGE]["state/model"]})
    with pytest.raises(BadInput, match=f"'{name}' is no bundle of arrays"):
        opened(bundle)


def written(proto: ProtoRecordDict, **large: Array) -> RecordDict:
    """A bundle by somebody who writes what he likes."""
    bundle = RecordDict({RECORDS: ConfigRecord({RECORDS: proto.SerializeToString()})})
    if large:
        bundle[LARGE] = ArrayRecord(large)
    return bundle


def test_names_that_are_there_twice_are_refused_and_not_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Flower would print each of them, whatever is in it."""
    name = "x\nINFO a forged line"
    item = ProtoRecordDict.Item
    proto = ProtoRecordDict(
        items=[
            item(key=name, config_record=ProtoConfigRecord()),
            item(key=name, array_record=ProtoArrayRecord()),
        ]
    )
    with pytest.raises(BadInput, match="one of them twice"):
        opened(written(proto))
    assert "forged" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("where", ["records", "a slice among them", "a large slice"])
def test_more_names_than_any_message_has_are_refused_before_anything_is_made_of_them(
    where: str,
) -> None:
    many = [str(i) for i in range(MOST_NAMES + 1)]
    arrays = ProtoArrayRecord(items=[ProtoArrayRecord.Item(key=name) for name in many])
    item = ProtoRecordDict.Item
    if where == "records":
        records = [item(key=name, array_record=ProtoArrayRecord()) for name in many]
        bundle = written(ProtoRecordDict(items=records))
    elif where == "a slice among them":
        bundle = written(ProtoRecordDict(items=[item(key="w", array_record=arrays)]))
    else:
        data = arrays.SerializeToString()
        place = ProtoRecordDict(items=[item(key="w", array_record=ProtoArrayRecord())])
        bundle = written(place, w=Array("uint8", (len(data),), STYPE, data))
    with pytest.raises(BadInput, match="too many names"):
        opened(bundle)


def test_many_small_slices_are_not_one_large_request() -> None:
    """A site's link takes requests of 8 MB."""
    part = Array(np.zeros(LEAST_LARGE // 4 - 100, np.float32))
    count = 3 * MOST_SMALL // LEAST_LARGE
    records = RecordDict({f"state/{i}": ArrayRecord({"w": part}) for i in range(count)})
    bundle = bundled(records)
    sizes = [len(each.deflate()) for each in get_all_nested_objects(bundle).values()]
    assert max(sizes) < MOST_BYTES
    assert list(opened(carried(bundle))) == list(records)
