"""What travels in place of a message's records."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedloom.engines.message_bundle import LARGE, LEAST_LARGE, RECORDS, bundled, opened
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
