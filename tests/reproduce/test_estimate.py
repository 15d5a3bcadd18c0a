"""How long a table takes is said after its first round; a killed command goes on, and two commands
at once lose nothing."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedloom.record import At, RoundRecord, Score
from fedloom.reproduce.estimate import Estimate, round_seconds
from fedloom.reproduce.format import read_table
from fedloom.reproduce.measure import Choice, Measurement
from fedloom.reproduce.results import Measured, add_run, read_results
from fedloom.runs.journal import read_records
from helpers import fedloom, finish, start_fedloom, wait_until


def test_rows_that_were_not_timed_count_like_those_of_their_column(table_file: Path) -> None:
    """Left: 2 + 2 rounds of fedavg in four at 30 s, 2 of fedprox like them, and 2 of fedavg in five
    at 300 s: 4 * 30 + 2 * 30 + 2 * 300 = 780 s."""
    table, estimate = read_table(table_file), Estimate()
    fedavg, fedprox, five = (
        table.cell(column, row)
        for column, row in (("four", "fedavg"), ("four", "fedprox"), ("five", "fedavg"))
    )
    for cell, seed in ((fedavg, 0), (fedavg, 1), (fedprox, 0), (five, 0)):
        estimate.add(cell, seed, rounds=2)
    estimate.timed_round(fedavg, 30.0)
    estimate.timed_round(five, 300.0)
    assert estimate.remaining == 780
    assert estimate.sentence() == (
        "4 runs left, about 13 min 0 s (1 of 3 rows are not timed yet and counted like the others)"
    )
    estimate.drop(fedprox, 0)
    assert estimate.sentence() == "3 runs left, about 12 min 0 s"


def took(number: int, seconds: float, scored: bool = False) -> RoundRecord:
    at = At("received", "test")
    scores = (Score(at, (0,), (9,), {"accuracy": (0.5,)}),) if scored else ()
    return RoundRecord(number, number, "train", "model", (0,), 0.1, 1, 1, seconds, {}, scores)


def test_a_round_in_which_the_process_was_stopped_does_not_count() -> None:
    """Three rounds of 9, 10 and 11 s and one during which the machine slept: 10.5 s in the middle.
    Two that are scored, 30 and 32 s: 31. The first warms up. (4 * 10.5 + 2 * 31) / 6 = 104 / 6."""
    usual = [took(2, 9.0), took(3, 11.0), took(5, 10.0), took(6, 5550.0)]
    records = [took(1, 70.0), *usual, took(4, 30.0, scored=True), took(7, 32.0, scored=True)]
    assert round_seconds(records) == pytest.approx(104 / 6)
    assert round_seconds(records[:1]) == 70.0


def test_the_first_round_of_every_row_says_how_long_the_rest_takes(table_file: Path) -> None:
    notes: list[str] = []
    choice = Choice(columns=("four",), rows=("fedavg", "fedprox"))
    measurement = Measurement(
        read_table(table_file), choice, table_file.parents[2] / "runs", note=notes.append
    )
    measurement.run(lambda label, over: ())
    first, second = notes
    assert re.fullmatch(
        r"fedavg in four, seed 0: [\d.]+ s a round, about [\d.]+ s for 2; 4 runs left, about "
        r"[\d.]+ s"
        r" \(1 of 2 rows are not timed yet and counted like the others\)",
        first,
    )
    assert second.startswith("fedprox in four, seed 0: ")
    assert re.search(r"; 2 runs left, about [\d.]+ s$", second)
    notes.clear()
    measurement.run(lambda label, over: ())
    assert notes == ["fedpac/table1: 4 of 4 runs have ended and are kept"]


def test_with_an_early_stop_it_takes_at_most_so_long(table_file: Path) -> None:
    text = table_file.read_text(encoding="utf-8")
    table_file.write_text(text.replace("rounds = 2", "rounds = 9\nearly_stop = 3"), "utf-8")
    notes: list[str] = []
    choice = Choice(("four",), ("fedavg",), (0,))
    runs = table_file.parents[2] / "runs"
    Measurement(read_table(table_file), choice, runs, note=notes.append).run(lambda *_: ())
    assert re.search(r"a round, at most about [\d.]+ s for 9; 1 run left, at most about", notes[0])


def test_what_is_printed_is_shown_with_the_time_that_is_left(
    table_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table_file.parents[2])
    words = ("fedpac/table1", "--column", "four", "--methods", "fedavg")
    fedloom("reproduce", *words, "--seeds", "0")
    assert "fedpac/table1: 1 run left, about " in fedloom("reproduce", *words, "--show").out


def test_a_killed_command_goes_on_and_repeats_nothing(table_file: Path) -> None:
    """Killed in the middle of its second run: the first one is kept as it is, the second goes on
    from its checkpoint, and every round is in the journal once."""
    text = table_file.read_text(encoding="utf-8").replace("rounds = 2", "rounds = 60")
    table_file.write_text(text, encoding="utf-8")
    runs = table_file.parents[2] / "runs"
    words = ("reproduce", table_file, "--column", "four", "--methods", "fedavg", "--out", runs)
    folders = [runs / "fedpac/table1/four" / f"fedavg-seed{seed}" for seed in (0, 1)]
    journal = folders[1] / "metrics.jsonl"
    process = start_fedloom(*words)
    wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 25)
    process.kill()
    finish(process)
    ended = (folders[0] / "summary.json").stat().st_mtime_ns
    assert not (folders[1] / "summary.json").exists()
    again = finish(start_fedloom(*words))
    assert again.code == 0, again.err
    assert "1 of 2 runs have ended and are kept" in again.err
    assert re.search(r"fedavg in four, seed 1: goes on after [2-5]0 of 60 rounds", again.err)
    assert "seed 0: " not in again.err
    assert (folders[0] / "summary.json").stat().st_mtime_ns == ended
    assert [r.round for r in read_records(journal, RoundRecord)] == list(range(1, 61))
    results = json.loads((runs / "fedpac/table1/results.json").read_text(encoding="utf-8"))
    assert [run["rounds"] for run in results["runs"]] == [60, 60]


def test_two_commands_at_once_lose_no_result(table_file: Path, tmp_path: Path) -> None:
    """Each reads the file, adds its run and writes it; one that wrote in between would be undone.
    Locks of two threads are as strange to each other as those of two processes."""
    table, path = read_table(table_file), tmp_path / "results.json"

    def add_twenty(row: str) -> None:
        digest = table.cell("four", row).digest
        for seed in range(20):
            run = Measured("four", row, seed, digest, 2, 2, 1.0, {}, {"accuracy": 80.0})
            add_run(path, table, run)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(add_twenty, ("fedavg", "fedprox")))
    assert len(read_results(path, table.id).runs) == 40
