"""A table that is run: what is kept, what is run again, and what the comparison says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedloom.errors import BadInput
from fedloom.launch.tables import OverSeeds
from fedloom.reproduce.comparison import Line, Spread, lines, spreads
from fedloom.reproduce.format import PaperTable, Printed, read_table
from fedloom.reproduce.measure import Choice, Measurement
from fedloom.reproduce.page import page
from fedloom.reproduce.results import Measured, Results, published, read_results
from fedloom.reproduce.summary import Count, orders


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
    assert read_results(measured.files[0], measured.table.id) == results
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
    assert (line.rounds, line.inside) == (1, None)
    assert line.remark.startswith("1 of the paper's 2 rounds; run ")
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
        assert (line.rounds, line.remark.rpartition("run ")[0].rstrip("; ")) == (run, remark)
        assert (line.inside is None) == bool(remark)


def test_training_that_breaks_down_is_a_result_too(table_file: Path) -> None:
    text = table_file.read_text(encoding="utf-8").replace("fedprox(mu=0.2)", "pfedme(lam=1e30)")
    table_file.write_text(text, encoding="utf-8")
    measured = measurement(table_file, columns=("four",), seeds=(0,))
    results = measured.measure()
    assert "not finite" in str(results.of("four", "fedprox")[0].failed)
    assert any("fedprox in four, seed 0: " in n and "not finite" in n for n in measured.notes)
    assert measurement(table_file, columns=("four",), seeds=(0,)).measure() == results
    assert results.of("four", "fedavg")[0].failed is None
    broken = lines(measured.table, results, ["four"], ["fedprox"])[0]
    assert "1 of 1 runs broke down" in broken.remark
    assert (broken.printed is not None, broken.inside) == (True, False)
    assert Count.of([broken]) == Count(whole=1, inside=0)
    brief = measurement(table_file, columns=("four",), rows=("fedprox",), seeds=(0,), rounds=1)
    tried = lines(brief.table, Results(brief.table.id, brief.measure().runs[-1:]))
    assert [line.inside for line in tried if line.broken] == [None]  # a try is not counted


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
    missing = [note for note in measured.notes if "office_caltech10" in note]
    assert len(missing) == 1
    assert "'office_caltech10' is in no hub repository; put its files in" in missing[0]
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
    values = {"accuracy": accuracy}
    return Measured(column, "fedavg", seed, cell.digest, 2, 2, 1.0, {}, values, run_digest="")


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
    lengths = {"rounds": 2, "asked": 2, "paper_rounds": 2}
    values = {"quantity": "accuracy", "broken": 0, **lengths, **other}
    return Line(
        column="four",
        row="fedavg",
        label="FedAvg",
        printed=printed,
        ours=ours,
        seeds=2,
        remark="",
        **values,
    )


def test_inside_is_one_point_or_the_tables_tolerance() -> None:
    paper = Printed.model_validate([80.0, 0.1])
    assert line(paper, OverSeeds(81.0, 0.1)).inside is True
    assert line(paper, OverSeeds(81.01, 9.0)).inside is False
    assert line(paper, OverSeeds(81.004, 0.1)).inside is True  # +1.00 on the page
    assert line(paper, OverSeeds(80.0, None), broken=1).inside is False
    assert line(paper, OverSeeds(82.5, None), tolerance=2.5).inside is True
    seconds = Printed.model_validate(80.0)
    assert line(seconds, OverSeeds(80.0, None), quantity="seconds").inside is None
    assert line(paper, OverSeeds(80.0, 0.4), rounds=1, asked=1).inside is None
    assert line(paper, OverSeeds(80.0, 0.4), rounds=1).inside is True  # it ended early by its rule


TOLERANT = """
partition_by_seed = true

[tolerance]
points = 2.5
why = "few clients have few classes"
"""


def test_a_wider_tolerance_counts_once_the_draw_of_the_partition_has_shown_it(
    table_file: Path,
) -> None:
    """Accuracies 78, 80, 82 deviate by 2, and twice that is more than a point; 80, 80.1, 80.2 by
    0.1. Without draws, and with three seeds on one partition, nothing is shown."""
    text = table_file.read_text(encoding="utf-8")
    table_file.write_text(text.replace("\n[settings]", f"{TOLERANT}\n[settings]", 1), "utf-8")
    table = read_table(table_file)

    def measured(accuracies: tuple[float, ...], redrawn: bool = True) -> tuple[Line, Spread]:
        runs = tuple(
            replace(result(table, "four", seed, value), partition_seed=seed if redrawn else 0)
            for seed, value in enumerate(accuracies)
        )
        results = Results(table.id, runs)
        return lines(table, results, ["four"], ["fedavg"])[0], spreads(table, results)[0]

    row, spread = measured((78.0, 80.0, 82.0))
    assert (row.tolerance, row.draws, spread.deviation) == (2.5, 3, 2.0)
    assert spread.sentence == (
        "four: ± 2.5 points, because few clients have few classes: over 3 or more draws of the"
        " partition the accuracy of FedAvg deviates by 2.00 points"
    )
    row, spread = measured((80.0, 80.1, 80.2))
    assert (row.tolerance, spread.shown) == (1.0, False)
    assert spread.sentence.endswith("deviates by 0.10 points only, so ± 1 counts")
    for few in (measured((78.0,)), measured((78.0, 80.0, 82.0), redrawn=False)):
        assert (few[0].tolerance, few[1].deviation) == (1.0, None)
        assert "Not shown yet" in few[1].sentence


def test_every_seed_may_draw_its_own_partition(table_file: Path) -> None:
    """A run of another draw than the table has now is not current, and its folder is refused."""
    chosen: dict[str, Any] = {"columns": ("four",), "rows": ("fedavg",)}
    same = measurement(table_file, **chosen).measure()
    assert [run.partition_seed for run in same.runs] == [0, 0]
    text = table_file.read_text(encoding="utf-8")
    table_file.write_text("partition_by_seed = true\n" + text, encoding="utf-8")
    assert lines(read_table(table_file), same, ["four"], ["fedavg"])[0].seeds == 1
    with pytest.raises(BadInput, match="holds a run with partition_seed = 0, not 1"):
        measurement(table_file, **chosen).measure()
    redrawn = measurement(table_file, **chosen)
    redrawn.overwrite = True
    assert [run.partition_seed for run in redrawn.measure().runs] == [0, 1]


def test_results_of_before_partition_seeds_were_noted_are_read(table_file: Path) -> None:
    table = read_table(table_file)
    results = Results(table.id, (result(table, "four", 0, 80.0),))
    path = table_file.parent / "old.json"
    results.save(path)
    written = json.loads(path.read_text(encoding="utf-8"))
    del written["runs"][0]["partition_seed"]
    path.write_text(json.dumps(written), encoding="utf-8")
    assert read_results(path, table.id) == results
    assert lines(table, results, ["four"], ["fedavg"])[0].difference == 0


def test_a_try_of_another_seed_does_not_count_beside_a_whole_run(table_file: Path) -> None:
    table = read_table(table_file)
    short = replace(result(table, "four", 1, 10.0), asked=1, rounds=1)
    whole = result(table, "four", 0, 80.0)
    row = lines(table, Results(table.id, (whole, short)), ["four"], ["fedavg"])[0]
    assert (row.ours, row.shorter, row.remark) == (OverSeeds(80.0, None), False, "")


def test_the_order_of_rows_is_compared_by_kendalls_tau() -> None:
    """Ours against the paper's 1, 2, 3, 4: of six pairs five stand alike, (5 - 1) / 6; two rows
    have no order, and a shorter run does not count."""

    def ordered(ours: Sequence[float], **other: Any) -> list[Line]:
        return [
            line(Printed.model_validate(place), OverSeeds(value, None), **other)
            for place, value in enumerate(ours, start=1)
        ]

    (order,) = orders([*ordered([1, 2, 4, 3]), *ordered([9, 8], asked=1)])
    assert (order.rows, order.tau) == (4, pytest.approx(4 / 6))
    assert orders(ordered([1, 2])) == []
    assert orders(ordered([5, 5, 5])) == []


def test_the_page_has_what_was_published_and_a_command_for_the_rest(table_file: Path) -> None:
    table = read_table(table_file)
    command = "`fedloom reproduce fedpac/table1`"
    unmeasured = f"- Table 1: Accuracy of two methods on digits (6 runs on digits): {command}"
    assert f"## FedPAC\n\nNot measured yet:\n\n{unmeasured}\n" in page([table])
    run = result(table, "four", 0, 80.4)
    Results(table.id, (run,)).save(published(table))
    text = page([table])
    assert "The papers print 6 numbers in these tables. Numbers with a verdict so far" in text
    assert "| the paper's data and network | 1 | 1 | 100 % | 80 % |" in text
    assert "| stand-ins | 0 | 0 | - | 80 % |" in text
    assert "## FedPAC\n\n### Table 1: Accuracy of two methods on digits" in text
    row = "| four | FedAvg | accuracy | 80.00 ± 0.50 | 80.40 | +0.40 | yes | 2 (1 seed) |  |"
    assert row in text
    assert f"1 of 6 numbers; all of them: {command}." in text


def test_the_page_marks_stand_ins_and_shows_tries_apart_and_what_was_tried(
    table_file: Path,
) -> None:
    text = table_file.read_text(encoding="utf-8")
    text = text.replace("clients = 4", 'clients = 4\nstandin = "digits of eight by eight"')
    remarks = '[remarks.four]\nfedavg = "another seed gives the same"\n'
    table_file.write_text(f"{text}\n{remarks}", encoding="utf-8")
    table = read_table(table_file)
    short = replace(result(table, "five", 0, 70.0), asked=1, rounds=1)
    Results(table.id, (result(table, "four", 0, 70.0), short)).save(published(table))
    shown = page([table])
    assert "| stand-ins | 1 | 0 | 0 % | 80 % |" in shown
    assert "| all | 1 | 0 | 0 % | 80 % |" in shown
    assert "Stand-in in four: digits of eight by eight." in shown
    ours = "-10.00 | no | 2 (1 seed) | stand-in; another seed gives the same |"
    assert ours in shown
    tries = shown.split("Tries, shorter than the paper's runs and not counted:")[1]
    assert "| five | FedAvg | accuracy | - | 70.00 | - | - | 1 (1 seed) |" in tries
    assert ours not in tries
