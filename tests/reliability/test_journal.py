"""The journal survives torn lines, goes back to where a checkpoint was, and stays valid JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.errors import BadInput
from fedloom.runs.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def written(path: Path, *records: dict[str, Any]) -> list[int]:
    """Positions after each record."""
    with Journal.open(path) as journal:
        positions = []
        for record in records:
            journal.append(record)
            positions.append(journal.position())
        return positions


def test_lines_come_back_in_order_and_more_can_be_appended(path: Path) -> None:
    written(path, {"round": 1, "text": "é\nü"}, {})
    written(path, {"round": 2})
    assert Journal.read(path) == [{"round": 1, "text": "é\nü"}, {}, {"round": 2}]


def test_a_line_can_be_read_as_soon_as_it_is_appended(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.append({"round": 1})
        assert Journal.read(path) == [{"round": 1}]
        assert journal.sync() == journal.position() == path.stat().st_size


def test_what_json_lacks_becomes_null_or_a_number(path: Path) -> None:
    record = {
        "nan": math.nan,
        "inf": [math.inf, (-math.inf, 1.5)],
        "torch": {"loss": torch.tensor(math.nan), "n": torch.tensor(3)},
        "numpy": [np.float32("nan"), np.float64("inf"), np.int64(4), np.bool_(True)],
        "many": torch.tensor([0.5, math.inf]),
        "none": None,
    }
    written(path, record)
    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse) == {
        "nan": None,
        "inf": [None, [None, 1.5]],
        "torch": {"loss": None, "n": 3},
        "numpy": [None, None, 4, True],
        "many": [0.5, None],
        "none": None,
    }


def test_a_record_that_is_not_json_leaves_the_journal_as_it_was(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.append({"round": 1})
        with pytest.raises(TypeError, match="not JSON serializable"):
            journal.append({"round": object()})
        journal.append({"round": 2})
    assert Journal.read(path) == [{"round": 1}, {"round": 2}]


@pytest.mark.parametrize("torn", [b"{", b'{"round": 3', b'{"round": 3}', b"\x00\x00", b"\xc3"])
def test_a_torn_last_line_counts_as_not_written(path: Path, torn: bytes) -> None:
    written(path, {"round": 1}, {"round": 2})
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + torn)
    assert Journal.read(path) == [{"round": 1}, {"round": 2}]
    with Journal.open(path) as journal:
        assert journal.position() == whole
        journal.append({"round": 4})
    assert [record["round"] for record in Journal.read(path)] == [1, 2, 4]


def test_a_first_line_torn(path: Path) -> None:
    path.write_bytes(b'{"long": "' + b"x" * 200_000)
    assert Journal.read(path) == []
    written(path, {"round": 1})
    assert Journal.read(path) == [{"round": 1}]


def test_a_torn_line_longer_than_a_block(path: Path) -> None:
    written(path, {"round": 1})
    path.write_bytes(path.read_bytes() + b"x" * 200_000)
    written(path, {"round": 2})
    assert Journal.read(path) == [{"round": 1}, {"round": 2}]


def test_truncate_drops_what_came_after_the_checkpoint(path: Path) -> None:
    positions = written(path, {"round": 1}, {"round": 2}, {"round": 3})
    path.write_bytes(path.read_bytes() + b'{"rou')
    with Journal.open(path) as journal:
        journal.truncate(positions[1])
        assert journal.position() == positions[1]
        journal.append({"round": 30})
        assert journal.position() == path.stat().st_size
        assert [record["round"] for record in Journal.read(path)] == [1, 2, 30]
        journal.truncate(0)
        assert Journal.read(path) == []


def test_truncate_refuses_a_journal_that_is_not_the_checkpoints(path: Path) -> None:
    positions = written(path, {"round": 1}, {"round": 2})
    with Journal.open(path) as journal:
        with pytest.raises(BadInput, match=rf"metrics.jsonl holds {positions[1]} bytes.* 1000 "):
            journal.truncate(1000)
        with pytest.raises(BadInput, match=r"byte 3.* not the end of a line"):
            journal.truncate(3)
    assert len(Journal.read(path)) == 2


def test_reading_names_the_line_that_was_altered(path: Path) -> None:
    path.write_text('{"round": 1}\nnot JSON\n{"round": 2}\n')
    with pytest.raises(BadInput, match=r"metrics.jsonl, line 2 is not JSON"):
        Journal.read(path)
    path.write_text("[1]\n")
    with pytest.raises(BadInput, match="line 1 is not a JSON object"):
        Journal.read(path)
    with pytest.raises(BadInput, match=r"cannot read the journal .*none.jsonl"):
        Journal.read(path.with_name("none.jsonl"))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=4)


@settings(deadline=None, max_examples=40)  # as fast as the disk
@given(RECORDS, st.data())
def test_cut_anywhere_the_complete_lines_are_read(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("any") / "metrics.jsonl"
    positions = written(path, *records)
    assert Journal.read(path) == records
    cut = data.draw(st.integers(0, path.stat().st_size))
    path.write_bytes(path.read_bytes()[:cut])
    complete = sum(position <= cut for position in positions)
    assert Journal.read(path) == records[:complete]
    written(path, {"after": 1})
    assert Journal.read(path) == [*records[:complete], {"after": 1}]
