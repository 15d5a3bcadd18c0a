"""The journal survives torn lines, goes back to where a checkpoint was, and stays valid JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.errors import BadInput, RunFolderError
from fedloom.files import jsonable
from fedloom.record import At, Score
from fedloom.runs.journal import Journal, read_record, read_records, write_record


@dataclass(frozen=True)
class Line:
    """A record."""

    round: int
    more: Any = None


def read(path: Path) -> list[Line]:
    return read_records(path, Line)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def written(path: Path, *records: Line) -> list[int]:
    """Positions after each record."""
    with Journal.open(path) as journal:
        positions = []
        for record in records:
            journal.append(record)
            positions.append(journal.position())
        return positions


def test_lines_come_back_in_order_and_more_can_be_appended(path: Path) -> None:
    written(path, Line(1, "é\nü"), Line(0))
    written(path, Line(2))
    assert read(path) == [Line(1, "é\nü"), Line(0), Line(2)]


def test_a_line_can_be_read_as_soon_as_it_is_appended(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.append(Line(1))
        assert read(path) == [Line(1)]
        assert journal.sync() == journal.position() == path.stat().st_size


def test_what_json_lacks_becomes_null_or_a_number() -> None:
    values = {
        "nan": math.nan,
        "inf": [math.inf, (-math.inf, 1.5)],
        "torch": {"loss": torch.tensor(math.nan), "n": torch.tensor(3)},
        "numpy": [np.float32("nan"), np.float64("inf"), np.int64(4), np.bool_(True)],
        "many": torch.tensor([0.5, math.inf]),
        "none": None,
    }
    assert json.loads(json.dumps(jsonable(values)), parse_constant=refuse) == {
        "nan": None,
        "inf": [None, [None, 1.5]],
        "torch": {"loss": None, "n": 3},
        "numpy": [None, None, 4, True],
        "many": [0.5, None],
        "none": None,
    }


def test_a_number_that_is_none_is_written_as_null_and_read_as_nan(path: Path) -> None:
    score = Score(At("final", "test"), (0, 1), (5, 7), {"accuracy": (0.5, math.nan)})
    with Journal.open(path) as journal:
        journal.append(score)
    assert "NaN" not in path.read_text()
    (back,) = read_records(path, Score)
    assert back.metrics["accuracy"][0] == 0.5
    assert math.isnan(back.metrics["accuracy"][1])


def test_a_record_that_is_not_json_leaves_the_journal_as_it_was(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.append(Line(1))
        with pytest.raises(ValueError, match="serialize"):
            journal.append(Line(2, object()))
        journal.append(Line(2))
    assert read(path) == [Line(1), Line(2)]


def test_one_record_in_a_file(path: Path) -> None:
    write_record(path, Line(3, [1.5]))
    assert read_record(path, Line) == Line(3, [1.5])
    path.write_text('{"more": 1}')
    with pytest.raises(RunFolderError, match=r"is not a Line \(round: field required\)"):
        read_record(path, Line)
    with pytest.raises(RunFolderError, match=r"cannot read .*none.json .*restore it"):
        read_record(path.with_name("none.json"), Line)


@pytest.mark.parametrize("torn", [b"{", b'{"round": 3', b'{"round": 3}', b"\x00\x00", b"\xc3"])
def test_a_torn_last_line_counts_as_not_written(path: Path, torn: bytes) -> None:
    written(path, Line(1), Line(2))
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + torn)
    assert read(path) == [Line(1), Line(2)]
    with Journal.open(path) as journal:
        assert journal.position() == whole
        journal.append(Line(4))
    assert [record.round for record in read(path)] == [1, 2, 4]


def test_a_first_line_torn(path: Path) -> None:
    path.write_bytes(b'{"long": "' + b"x" * 200_000)
    assert read(path) == []
    written(path, Line(1))
    assert read(path) == [Line(1)]


def test_a_torn_line_longer_than_a_block(path: Path) -> None:
    written(path, Line(1))
    path.write_bytes(path.read_bytes() + b"x" * 200_000)
    written(path, Line(2))
    assert read(path) == [Line(1), Line(2)]


def test_truncate_drops_what_came_after_the_checkpoint(path: Path) -> None:
    positions = written(path, Line(1), Line(2), Line(3))
    path.write_bytes(path.read_bytes() + b'{"rou')
    with Journal.open(path) as journal:
        journal.truncate(positions[1])
        assert journal.position() == positions[1]
        journal.append(Line(30))
        assert journal.position() == path.stat().st_size
        assert [record.round for record in read(path)] == [1, 2, 30]
        journal.truncate(0)
        assert read(path) == []


def test_truncate_refuses_a_journal_that_is_not_the_checkpoints(path: Path) -> None:
    positions = written(path, Line(1), Line(2))
    with Journal.open(path) as journal:
        with pytest.raises(BadInput, match=rf"metrics.jsonl holds {positions[1]} bytes.* 1000 "):
            journal.truncate(1000)
        with pytest.raises(BadInput, match=r"byte 3.* not the end of a line"):
            journal.truncate(3)
    assert len(read(path)) == 2


def test_reading_names_the_line_that_was_altered(path: Path) -> None:
    path.write_text('{"round": 1}\nnot JSON\n{"round": 2}\n')
    with pytest.raises(RunFolderError, match=r"metrics.jsonl, line 2 is not JSON"):
        read(path)
    path.write_text("[1]\n")
    with pytest.raises(RunFolderError, match="line 1 is not a Line"):
        read(path)
    path.write_text('{"round": 1}\n{"round": "many"}\n')
    with pytest.raises(RunFolderError, match=r"line 2 is not a Line \(round: .*valid integer"):
        read(path)
    assert read(path.with_name("none.jsonl")) == []


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.lists(st.builds(Line, st.integers(0, 9), VALUES), max_size=4)


@settings(deadline=None, max_examples=40)  # as fast as the disk
@given(RECORDS, st.data())
def test_cut_anywhere_the_complete_lines_are_read(
    tmp_path_factory: pytest.TempPathFactory, records: list[Line], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("any") / "metrics.jsonl"
    positions = written(path, *records)
    assert read(path) == records
    cut = data.draw(st.integers(0, path.stat().st_size))
    path.write_bytes(path.read_bytes()[:cut])
    complete = sum(position <= cut for position in positions)
    assert read(path) == records[:complete]
    written(path, Line(1))
    assert read(path) == [*records[:complete], Line(1)]
