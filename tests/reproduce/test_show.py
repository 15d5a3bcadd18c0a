"""What a terminal shows of a paper's table before anything is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.reproduce.format import read_table
from fedloom.reproduce.terminal import printed_tables, remark
from helpers import Done, fedloom, finish, start_fedloom

OWN_METHOD = """
from dataclasses import dataclass
from typing import ClassVar

import fedloom as fl


@fl.register
@dataclass(frozen=True, kw_only=True)
class OfThisTest(fl.Method):
    name: ClassVar[str] = "of_this_test"
"""


def show(file: Path, *words: str) -> Done:
    return fedloom("reproduce", str(file), "--show", *words)


def test_only_the_chosen_columns_and_rows_are_shown(table_file: Path) -> None:
    shown = show(table_file, "--column", "four", "--methods", "fedprox").out
    assert "81.50" in shown
    assert "FedAvg" not in shown
    assert "mean" not in shown


def test_a_mistyped_column_row_or_seed_is_refused_where_nothing_is_run(table_file: Path) -> None:
    assert "did you mean 'four'?" in show(table_file, "--column", "fuor").err
    assert "did you mean 'fedprox'?" in show(table_file, "--methods", "fedprix").err
    assert "seeds are whole numbers" in show(table_file, "--seeds", "a").err
    assert "leave them out" in fedloom("reproduce", str(table_file), "--check", "--seeds=0").err


def test_columns_that_do_not_fit_a_line_stand_in_a_further_table(table_file: Path) -> None:
    """Frame and labels take 12 characters, `four` 15 (80.00 ± 0.50), `mean` 8: 35 in all."""
    table = read_table(table_file)
    rows, columns = ("fedavg", "fedprox", "stranger"), ("four", "mean")

    def accuracies(width: int) -> int:
        tables = printed_tables(table, columns, rows, width)
        return sum("accuracy" in str(part.title) for part in tables)

    assert (accuracies(35), accuracies(34)) == (1, 2)


def test_what_a_paper_leaves_open_is_shown_an_item_a_line(table_file: Path) -> None:
    text = 'remark = """\nChosen:\n- seeds: two,\n  as elsewhere.\n- rows: all\n"""\n'
    table_file.write_text(text + table_file.read_text(encoding="utf-8"), encoding="utf-8")
    assert remark(read_table(table_file)) == "Chosen:\n- seeds: two, as elsewhere.\n- rows: all\n"
    assert "- seeds: two, as elsewhere." in show(table_file).out


@pytest.fixture
def own_table(table_file: Path) -> Path:
    """A table without printed numbers."""
    text = table_file.read_text(encoding="utf-8").partition("[printed")[0]
    text += '[remarks.five]\nfedavg = "small clients"\n'
    table_file.write_text(text, encoding="utf-8")
    return table_file


def told(done: Done) -> str:
    """Without frames, lines joined."""
    assert done.code == 0, done.err
    return " ".join(done.out.replace("│", " ").split())


def test_a_table_without_printed_numbers_shows_columns_and_rows(
    own_table: Path, tmp_path: Path
) -> None:
    text = told(show(own_table, "--out", str(tmp_path / "runs")))
    for part in (
        "fedpac/table1: Accuracy of two methods on digits (Table 1)",
        'all runs: data = "digits"; rounds = 2; lr = 0.05; seeds 0, 1',
        "no number of it is printed",
        'four clients = 4; partition = "iid"',
        "mean mean of four, five",
        "fedavg (FedAvg) fedavg",
        "fedprox fedprox(mu=0.1) lr = 0.02; only in four, mean; in four: method =",
        "stranger none absent: its authors describe it in a picture only",
        "none of it was measured yet in",
        "FedAvg in five: small clients",
    ):
        assert part in text


def test_a_table_without_printed_numbers_shows_what_was_measured(
    own_table: Path, tmp_path: Path
) -> None:
    out = ("--out", str(tmp_path / "runs"))
    words = ("--column", "four", "--methods", "fedavg", "--seeds", "0")
    done = fedloom("reproduce", str(own_table), *words, *out)
    (run,) = json.loads((tmp_path / "runs/fedpac/table1/results.json").read_text())["runs"]
    line = f"FedAvg {run['values']['accuracy']:.2f} 2 (1 seed) run {run['run_digest'][:8]}"
    assert line in told(done)  # and no column for the numbers of a paper
    assert line in told(show(own_table, *out))
    assert "none of it was measured" in told(show(own_table, "--column", "five", *out))


def test_only_the_chosen_columns_and_their_rows_of_a_table_of_ones_own_are_shown(
    own_table: Path,
) -> None:
    text = told(show(own_table, "--column", "five"))
    assert "clients = 5" in text
    assert "clients = 4" not in text
    assert "fedprox" not in text  # it has no such column


def test_published_results_of_a_table_of_ones_own_are_shown(
    own_table: Path, tmp_path: Path
) -> None:
    words = ("--column", "four", "--methods", "fedavg", "--seeds", "0", "--publish")
    fedloom("reproduce", str(own_table), *words, "--out", str(tmp_path / "runs"))
    assert "2 (1 seed)" in told(show(own_table, "--out", str(tmp_path / "elsewhere")))


def test_a_table_may_have_a_method_of_ones_own(
    table_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of their own: what is imported here would be registered for later tests."""
    monkeypatch.chdir(table_file.parent)
    Path("own.py").write_text(OWN_METHOD, encoding="utf-8")
    text = table_file.read_text(encoding="utf-8").replace('"fedavg"\n', '"of_this_test"\n')
    table_file.write_text(text, encoding="utf-8")
    words = ("--import", "own.py", "--column", "four", "--methods", "fedavg", "--seeds", "0")
    done = finish(start_fedloom("reproduce", "table1.toml", *words))
    assert done.code == 0, done.err
    (run,) = Path("runs/reproduce").glob("fedpac/table1/four/fedavg-seed0")
    assert finish(start_fedloom("resume", str(run), "--rounds", "3")).code == 0
