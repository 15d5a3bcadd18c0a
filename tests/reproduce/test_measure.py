"""A table that is run: what is kept, what is run again, and what the comparison says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedloom.errors import BadInput
from fedloom.launch.tables import OverSeeds
from fedloom.reproduce.comparison import Line, lines
from fedloom.reproduce.format import PaperTable, Printed, read_table
from fedloom.reproduce.measure import Choice, Measurement
from fedloom.reproduce.page import page
from fedloom.reproduce.results import Measured, Results, published, read_results


class Noted(Measurement):
    """Remembers which runs were begun, and what was said."""

    def measure(self) -> Results:
        self.begun: list[tuple[str, int]] = []
        self.notes: list[str] = []
        self.note = self.notes.append
        return self.run(lambda label, over: self.begun.append((label, over)) or ())


def measurement(file: Path, **choice: Any) -> Noted:
    return Noted(read_table(file), Choice(**choice), file.parents[2] / "runs")


def test_every_cell_is_run_with_every_seed_and_written_at_once(table_file: Path) -> None:
    measured = measurement(table_file)
    assert measured.runs == 6
    results = measured.measure()
    assert [(r.column, r.row, r.seed) for r in results.runs] == [
        *(("five", "fedavg", 0), ("five", "fedavg", 1), ("four", "fedavg", 0)),
        *(("four", "fedavg", 1), ("four", "fedprox", 0), ("four", "fedprox", 1)),
    ]
    first = results.of("four", "fedavg")[0]
    assert first.rounds == 2
    assert set(first.values) == {"accuracy", "rounds_to_target"}
    assert first.values["rounds_to_target"] == 1
    assert first.over_clients is not None
    assert first.over_clients.worst <= float(first.values["accuracy"] or 0)
    assert "torch" in first.versions
    assert not published(measured.table).exists()
    assert read_results(measured.files[0], measured.table) == results
    folder = measured.folder / "four" / "fedprox-seed1"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["lr"], config["seed"], config["title"]) == (0.02, 1, "fedprox")


def test_what_has_ended_is_not_run_again(table_file: Path) -> None:
    chosen = {"columns": ("four",), "rows": ("fedavg",)}
    results = measurement(table_file, **chosen).measure()
    summary = measurement(table_file).folder / "four" / "fedavg-seed1" / "summary.json"
    written = summary.stat().st_mtime_ns
    (summary.parents[1] / "fedavg-seed0" / "summary.json").unlink()  # as after a kill
    again = measurement(table_file, **chosen).measure()
    assert [r.values for r in again.runs] == [r.values for r in results.runs]
    assert summary.stat().st_mtime_ns == written


def test_an_ended_run_is_kept_whichever_engine_it_had(table_file: Path) -> None:
    chosen = {"columns": ("four",), "rows": ("fedavg",), "seeds": (0,)}
    results = measurement(table_file, **chosen).measure()
    again = measurement(table_file, **chosen)
    again.how = {"engine": "vectorized"}
    assert again.measure() == results
    assert again.begun == []
    text = table_file.read_text(encoding="utf-8")
    table_file.write_text(text.replace("printed.happiness", "printed.worst_client"))
    more = measurement(table_file, **chosen).measure().runs[0]
    assert "worst_client" in more.values
    assert more.seconds == results.runs[0].seconds


def test_changed_settings_are_noticed(table_file: Path) -> None:
    chosen = {"columns": ("four",), "rows": ("fedavg",), "seeds": (0,)}
    results = measurement(table_file, **chosen).measure()
    text = table_file.read_text(encoding="utf-8").replace("lr = 0.05", "lr = 0.06")
    table_file.write_text(text, encoding="utf-8")
    stale = lines(read_table(table_file), results, ["four"], ["fedavg"])[0]
    assert stale.ours is None
    assert "other settings than the table has now" in stale.remark
    with pytest.raises(BadInput, match=r"holds a run with lr = 0\.05, not 0\.06; give --overwrite"):
        measurement(table_file, **chosen).measure()


def test_a_shorter_run_says_so_and_does_not_undo_a_longer_one(table_file: Path) -> None:
    chosen: dict[str, Any] = {"columns": ("four",), "rows": ("fedavg",), "seeds": (0,)}
    short = Choice(**chosen, rounds=1)
    table = read_table(table_file)
    assert "rounds = 1 in place of 2" in short.shorter_than(table)
    assert Choice(**chosen).shorter_than(table) == ""
    brief = measurement(table_file, **chosen, rounds=1)
    line = lines(table, brief.measure(), ["four"], ["fedavg"])[0]
    assert (line.rounds, line.inside, line.remark) == (1, None, "1 of the paper's 2 rounds")
    assert (brief.folder / "four" / "fedavg-seed0-rounds1").is_dir()
    assert measurement(table_file, **chosen).measure().runs[0].rounds == 2
    assert measurement(table_file, **chosen, rounds=1).measure().runs[0].rounds == 2


def test_a_run_that_an_early_stop_ended_is_not_shorter_than_the_papers(table_file: Path) -> None:
    """Every round is as good as the first, so the run ends after two of nine; a try of one round
    is short, and does not undo it."""
    text = table_file.read_text(encoding="utf-8").replace("lr = 0.05", "lr = 1e-12")
    table_file.write_text(text.replace("rounds = 2", "rounds = 9\nearly_stop = 1"), "utf-8")
    table, runs = read_table(table_file), table_file.parents[2] / "runs"
    for rounds, run, remark in ((1, 1, "1 of the paper's 9 rounds"), (None, 2, ""), (1, 2, "")):
        choice = Choice(("four",), ("fedavg",), seeds=(0,), rounds=rounds)
        results = Measurement(table, choice, runs).run(lambda label, over: ())
        line = lines(table, results, ["four"], ["fedavg"])[0]
        assert (line.rounds, line.remark) == (run, remark)
        assert (line.inside is None) == bool(remark)


def test_training_that_breaks_down_is_a_result_too(table_file: Path) -> None:
    text = table_file.read_text(encoding="utf-8").replace("fedprox(mu=0.2)", "pfedme(lam=1e30)")
    table_file.write_text(text, encoding="utf-8")
    measured = measurement(table_file, columns=("four",), seeds=(0,))
    results = measured.measure()
    assert "not finite" in str(results.of("four", "fedprox")[0].failed)
    assert "not finite" in measured.notes[0]
    assert results.of("four", "fedavg")[0].failed is None
    broken = lines(measured.table, results, ["four"], ["fedprox"])[0]
    assert "1 of 1 runs broke down" in broken.remark


def test_data_that_cannot_be_had_is_one_sentence(
    table_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    text = table_file.read_text(encoding="utf-8")
    office = text.replace("clients = 5", 'clients = 5\ndata = "office_caltech10"')
    table_file.write_text(office, encoding="utf-8")
    measured = measurement(table_file, rows=("fedavg",), seeds=(0,))
    assert [run.column for run in measured.measure().runs] == ["four"]
    assert len(measured.notes) == 1
    assert "'office_caltech10' is in no hub repository; put its files in" in measured.notes[0]
    with pytest.raises(BadInput, match="none of its data is at hand"):
        measurement(table_file, columns=("five",)).measure()


def test_unknown_choices_are_refused(table_file: Path) -> None:
    with pytest.raises(BadInput, match=r"fedpac/table1 has no column 'for'; did you mean 'four'"):
        measurement(table_file, columns=("for",)).measure()
    with pytest.raises(BadInput, match="has no row 'fedavgg'; did you mean 'fedavg'"):
        measurement(table_file, rows=("fedavgg",)).measure()
    with pytest.raises(BadInput, match="seeds are whole numbers such as 0,1,2 and not 'x'"):
        Choice.written(None, None, "0,x", None)
    assert Choice.written("four", "fedavg, fedprox", "0,1", 3) == Choice(
        ("four",), ("fedavg", "fedprox"), (0, 1), 3
    )


def test_a_cell_begins_with_the_model_of_another(table_file: Path) -> None:
    text = table_file.read_text(encoding="utf-8")
    begun = text.replace("clients = 5", 'clients = 5\nstart = "cell:four/fedavg"')
    table_file.write_text(begun, encoding="utf-8")
    chosen: dict[str, Any] = {"rows": ("fedavg",), "seeds": (0,)}
    with pytest.raises(BadInput, match="begins with the model of fedavg in four, seed 0, which"):
        measurement(table_file, **chosen, columns=("five",)).measure()
    measured = measurement(table_file, **chosen)
    measured.measure()
    config = json.loads((measured.folder / "five/fedavg-seed0/config.json").read_text())
    assert "four/fedavg-seed0" in config["start"]


# ------------------------------------------------------------------ comparison


def result(table: PaperTable, column: str, seed: int, accuracy: float) -> Measured:
    cell = table.cell(column, "fedavg")
    return Measured(column, "fedavg", seed, cell.digest, 2, 2, 1.0, {}, {"accuracy": accuracy})


def test_ours_is_a_mean_over_seeds_and_of_an_average_over_columns(table_file: Path) -> None:
    """Column five has one seed only, so the mean of both columns has it alone: (80 + 70) / 2."""
    table = read_table(table_file)
    runs = (result(table, "four", 0, 80.0), result(table, "four", 1, 84.0))
    compared = lines(table, Results(table.id, (*runs, result(table, "five", 0, 70.0))))
    by_place = {(line.quantity, line.column, line.row): line for line in compared}
    four = by_place["accuracy", "four", "fedavg"]
    assert four.ours == OverSeeds(82.0, pytest.approx(2.828, abs=1e-3))
    assert four.difference == 2.0
    mean = by_place["accuracy", "mean", "fedavg"]
    assert (mean.ours, mean.seeds, mean.difference) == (OverSeeds(75.0, None), 1, -4.0)
    assert by_place["accuracy", "four", "stranger"].remark.startswith("its authors describe")
    assert by_place["happiness", "four", "fedavg"].remark == "not measured by this command"
    assert ("accuracy", "five", "fedavg") in by_place  # measured, though the paper prints nothing
    assert ("accuracy", "five", "stranger") not in by_place


def line(printed: Printed, ours: OverSeeds, **other: Any) -> Line:
    values = {"quantity": "accuracy", "rounds": 2, "asked": 2, "paper_rounds": 2, **other}
    return Line(
        column="four",
        row="fedavg",
        label="FedAvg",
        printed=printed,
        ours=ours,
        seeds=2,
        broken=0,
        remark="",
        **values,
    )


def test_inside_is_two_deviations_or_one_point() -> None:
    """2 sqrt(0.3^2 + 0.4^2) = 1."""
    paper = Printed.model_validate([80.0, 0.3])
    assert line(paper, OverSeeds(81.0, 0.4)).inside is True
    assert line(paper, OverSeeds(81.01, 0.4)).inside is False
    assert line(paper, OverSeeds(81.0, None)).inside is True
    assert line(Printed.model_validate(80.0), OverSeeds(81.01, 9.0)).inside is False
    seconds = Printed.model_validate(80.0)
    assert line(seconds, OverSeeds(80.0, None), quantity="seconds").inside is None
    assert line(paper, OverSeeds(80.0, 0.4), rounds=1, asked=1).inside is None
    assert line(paper, OverSeeds(80.0, 0.4), rounds=1).inside is True  # it ended early by its rule


def test_the_page_has_what_was_published_and_a_command_for_the_rest(table_file: Path) -> None:
    table = read_table(table_file)
    command = "`fedloom reproduce fedpac/table1`"
    unmeasured = f"- Table 1: Accuracy of two methods on digits (6 runs on digits): {command}"
    assert f"## FedPAC\n\nNot measured yet:\n\n{unmeasured}\n" in page([table])
    run = result(table, "four", 0, 80.4)
    Results(table.id, (run,)).save(published(table))
    text = page([table])
    assert "So far 1 of 6 printed numbers were measured, 1 of them at the paper's length" in text
    assert "## FedPAC\n\n### Table 1: Accuracy of two methods on digits" in text
    row = "| four | FedAvg | accuracy | 80.00 ± 0.50 | 80.40 | +0.40 | yes | 2 (1 seed) |  |"
    assert row in text
    assert f"1 of 6 numbers; all of them: {command}." in text
