"""A run that two tables ask for is measured once, and shown in both."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from test_measure import Noted, measurement, result

from fedloom.reproduce.format import read_table
from fedloom.reproduce.page import page
from fedloom.reproduce.results import Results, published

CHOSEN = {"columns": ("quatre",), "seeds": (0,)}


@pytest.fixture
def other_file(table_file: Path) -> Path:
    """A second table of the paper: its column `quatre` has the settings of `four`, and one row of
    its own; what it prints of FedProx is more than accuracies."""
    text = table_file.read_text(encoding="utf-8").replace("four", "quatre")
    text = text.replace("[rows.fedavg]", "[rows.mean]").replace("Table 1", "Table 2")
    text = text.replace("\nfedavg = ", "\nmean = ").replace("mu=0.2", "mu=0.3")
    text = text.replace("[printed.rounds_to_target.quatre]\nmean = 1\n", "")
    file = table_file.with_name("table2.toml")
    file.write_text(text, encoding="utf-8")
    return file


def measured(file: Path, **chosen: object) -> tuple[Noted, Results]:
    """The results of a choice, and what was run for it."""
    one = measurement(file, **{**CHOSEN, **chosen})
    return one, one.measure()


def test_a_run_of_another_table_serves(table_file: Path, other_file: Path) -> None:
    """FedProx has another weight here, and is run."""
    _, first = measured(table_file, columns=("four",))
    one, second = measured(other_file)
    assert [label for label, _ in one.begun] == ["quatre fedprox"]
    (shared,) = second.of("quatre", "mean")
    (run,) = first.of("four", "fedavg")
    assert (shared.run_digest, shared.seconds) == (run.run_digest, run.seconds)
    assert (shared.run_for, run.run_for) == ("fedpac/table1/four/fedavg", None)
    again, same = measured(other_file)
    assert again.begun == []
    assert same == second


def test_what_was_not_run_here_or_not_like_this_does_not_serve(
    table_file: Path, other_file: Path
) -> None:
    """Another seed, fewer rounds, a run whose folder is gone, `--overwrite`."""
    measured(table_file, columns=("four",), seeds=(1,))
    measured(table_file, columns=("four",), rounds=1)
    one, _ = measured(other_file, rows=("mean",))
    assert one.begun == [("quatre FedAvg", 0)]
    measured(table_file, columns=("four",))
    shutil.rmtree(one.folder)
    over = measurement(other_file, **CHOSEN, rows=("mean",))
    over.overwrite = True
    over.measure()
    assert len(over.begun) == 1
    shutil.rmtree(one.folder)
    shutil.rmtree(one.folder.with_name("table1") / "four")
    gone, _ = measured(other_file, rows=("mean",))
    assert len(gone.begun) == 1


def test_a_number_that_counts_to_a_tables_own_target_is_measured_for_it(
    table_file: Path, other_file: Path
) -> None:
    measured(other_file, rows=("mean",))
    one, _ = measured(table_file, columns=("four",), rows=("fedavg",))
    assert len(one.begun) == 1


def test_the_page_shows_it_in_both_and_counts_it_once(table_file: Path, other_file: Path) -> None:
    first, second = read_table(table_file), read_table(other_file)
    run = result(first, "four", 0, 80.4)
    Results(first.id, (run,)).save(published(first))
    text = page([first, second])
    row = "accuracy | 80.00 ± 0.50 | 80.40 | +0.40 | yes | 2 (1 seed) |"
    assert f"| four | FedAvg | {row}  |" in text
    of = "measured for fedpac/table1/four/fedavg, with the same settings"
    assert f"| quatre | FedAvg | {row} {of} |" in text
    assert "| all | 1 | 1 | 100 % | 80 % |" in text
    assert page([second]).count("80.40") == 0  # only of tables that are on the page


def test_a_tables_own_run_comes_first_and_what_serves_is_not_handed_on(
    table_file: Path, other_file: Path
) -> None:
    tables = [read_table(table_file), read_table(other_file)]
    theirs = result(tables[0], "four", 0, 80.4)
    mine = replace(theirs, column="quatre", row="mean", values={"accuracy": 70.0})
    Results(tables[0].id, (theirs,)).save(published(tables[0]))
    Results(tables[1].id, (mine,)).save(published(tables[1]))
    assert "| quatre | FedAvg | accuracy | 80.00 ± 0.50 | 70.00 |" in page(tables)
    handed = replace(mine, run_for="fedpac/table9/four/fedavg")
    Results(tables[1].id, (handed,)).save(published(tables[1]))
    published(tables[0]).unlink()
    assert "70.00" not in page(tables).partition("### Table 2")[0]
