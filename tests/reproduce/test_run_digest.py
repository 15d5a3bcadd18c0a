"""Published results quote the digest of their run; older ones have none."""

from __future__ import annotations

import json
from pathlib import Path

from fedloom.record import Summary
from fedloom.reproduce.comparison import lines
from fedloom.reproduce.format import read_table
from fedloom.reproduce.measure import Choice, Measurement
from fedloom.reproduce.results import read_results
from fedloom.runs.journal import read_record


def test_a_result_quotes_the_digest_of_its_run(table_file: Path) -> None:
    choice = Choice(columns=("four",), rows=("fedavg",), seeds=(0,))
    measured = Measurement(read_table(table_file), choice, table_file.parents[2] / "runs")
    (run,) = measured.run(lambda label, over: ()).runs
    folder = measured.folder / "four" / "fedavg-seed0"
    assert run.run_digest == read_record(folder / "summary.json", Summary).digest
    assert run.run_digest is not None
    (line, *_) = lines(measured.table, read_results(measured.files[0], measured.table.id))
    assert f"run {run.run_digest[:8]}" in line.remark

    written = json.loads(measured.files[0].read_text())
    for one in written["runs"]:
        del one["run_digest"]  # as it was written before there were digests
    measured.files[0].write_text(json.dumps(written))
    results = read_results(measured.files[0], measured.table.id)
    assert [run.run_digest for run in results.runs] == [None]
    assert "run " not in lines(measured.table, results)[0].remark
