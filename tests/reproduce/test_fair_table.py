"""The table of all methods: its rows, one small table end to end, and its page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedloom.core.program import Program
from fedloom.expression import parse
from fedloom.methods import parse_method, register
from fedloom.models import build_model
from fedloom.runs.config import RunConfig

REPRODUCE = Path(__file__).parents[2] / "reproduce"
SHAPES = {
    "digits": (1, 8, 8),
    "fashion_mnist": (1, 14, 14),
    "har": (6, 128),
    "office_caltech10": (3, 32, 32),
}


@pytest.fixture(scope="module")
def table() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(REPRODUCE), *sys.path])
        import table as loaded

        yield loaded


def test_no_registered_method_or_part_is_missing(table: ModuleType) -> None:
    expressions = [row.expression for row in table.Rows.read().methods.values()]
    parts = {part.name for text in expressions for part in parse_method(text).parts}
    assert not any("," in name for name in table.Rows.read().methods)  # `--methods` lists by commas
    written = {register.canonical(call.name) for text in expressions for call in parse(text)}
    assert set(register) - parts - written == set()


@pytest.mark.parametrize("data", SHAPES)
def test_every_row_fits_its_data_set(table: ModuleType, data: str) -> None:
    data_set = table.DataSet.read(data)
    assert data_set.settings["rounds"] == 10 * data_set.settings["eval_every"]
    for row in table.Rows.read().methods.values():
        config = RunConfig.checked({**data_set.run_settings(row, 0), "method": row.expression})
        net = build_model(config.model, SHAPES[data], 10, seed=0)
        Program(parse_method(row.expression), net, 4)


def test_seeds_divide_rows_anew_only_where_clients_are_drawn(table: ModuleType) -> None:
    row = table.Row("FedAvg", "fedavg", False)
    divisions = {
        name: table.DataSet.read(name).run_settings(row, 3)["partition_seed"] for name in SHAPES
    }
    assert divisions == {"digits": 3, "fashion_mnist": 3, "har": 0, "office_caltech10": 0}


# ------------------------------------------------------------------ a small table, end to end

METHODS = """
trials = 2
seeds = [0, 1]
[rows]
"Local" = "local"
"FedAvg-FT" = "fedavg_ft(adapt_epochs=1)"
[with_batchnorm]
"FedBN" = "fedbn"
"""
DIGITS = """
title = "Digits"
short = "digits"
redrawn = true
batchnorm_model = "mlp(norm=batch)"
[settings]
data = "digits"
partition = "iid"
clients = 3
split = "merged(train=0.05, val=0.1)"
model = "mlp"
rounds = 10
eval_every = 1
lr = 0.1
"""


@pytest.fixture
def small(table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The table of three rows and one data set, in a folder of its own."""
    (tmp_path / "methods.toml").write_text(METHODS)
    (tmp_path / "digits.toml").write_text(DIGITS)
    monkeypatch.setattr(table, "HERE", tmp_path)
    monkeypatch.setattr(table, "DATA", ("digits",))
    monkeypatch.setattr(table, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(table, "PAGE", tmp_path / "page.md")
    return table


def command(table: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["table.py", *words])
    table.main()


def test_a_small_table_from_tuning_to_page(
    small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(small, monkeypatch, "digits", "--methods", "local", "--seeds", "0")
    command(small, monkeypatch)
    rows = small.stored("digits", tmp_path)
    assert list(rows) == ["Local", "FedAvg-FT", "FedBN"]
    tuned = rows["FedAvg-FT"]
    assert (tuned.trials, sorted(tuned.seeds)) == (2, ["0", "1"])
    assert "lr" in tuned.settings
    first, second = tuned.seeds.values()
    assert first.digest != second.digest
    assert len(first.curve) == 10
    assert first.protocols["fedloom"] == first.accuracy
    assert first.protocols["fedpac"] == pytest.approx(first.accuracy, abs=0.05)  # another draw
    assert set(first.protocols) == set(small.PAPERS)
    assert "All 3 pairs of a method and a data set are measured." in small.PAGE.read_text()
    assert "FedAvg-FT" in (small.RUNS / small.HTML).read_text()


def test_what_has_ended_is_not_run_again(
    small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(small, monkeypatch, "digits", "--methods", "FedAvg-FT")
    before = small.stored("digits", tmp_path)
    monkeypatch.setattr(small, "trained", None)  # would not be callable
    command(small, monkeypatch, "digits", "--methods", "fedavgft")
    assert small.stored("digits", tmp_path) == before


def test_numbers_of_other_settings_are_not_shown_beside_new_ones(
    small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(small, monkeypatch, "digits", "--methods", "local", "--seeds", "0")
    assert list(small.stored("digits", tmp_path)) == ["Local"]
    (tmp_path / "digits.toml").write_text(DIGITS.replace("rounds = 10", "rounds = 20"))
    assert small.stored("digits", tmp_path) == {}
    command(small, monkeypatch, "--page")
    assert "0 of 3 pairs" in small.PAGE.read_text()


def test_after_a_change_of_its_settings_a_row_is_tuned_anew(
    small: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    command(small, monkeypatch, "digits", "--methods", "local", "--seeds", "0")
    assert "digits, Local: local(" in capsys.readouterr().out  # what trials come to
    (tmp_path / "digits.toml").write_text(DIGITS.replace("clients = 3", "clients = 2"))
    command(small, monkeypatch, "digits", "--methods", "local", "--seeds", "0")
    aside = small.RUNS / "digits" / "local" / "tune-before-1"
    assert aside.is_dir()
    printed = capsys.readouterr().out
    assert f"Local: the trials so far are kept in {aside}, as " in printed
    assert "clients = 3, not 2" in printed
    assert list(small.stored("digits", tmp_path)) == ["Local"]


def test_a_page_that_stays_as_it_was_is_not_written(
    small: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    command(small, monkeypatch, "--page")
    written = small.PAGE.stat().st_mtime_ns
    command(small, monkeypatch, "--page")
    assert small.PAGE.stat().st_mtime_ns == written
    assert f"{small.PAGE} is as it was" in capsys.readouterr().out


def test_a_run_that_breaks_down_is_noted(small: ModuleType, tmp_path: Path) -> None:
    settings = small.DataSet.read("digits", tmp_path).run_settings(
        small.Row("pFedMe", "pfedme", False), 0
    )
    outcome = small.one_run("pfedme(lam=1e30)", settings, tmp_path / "run")
    assert "not finite" in outcome
    assert small.one_run("pfedme(lam=1e30)", settings, tmp_path / "run") == outcome


def test_a_bad_word_is_refused_before_anything_is_measured(
    small: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "measure", None)  # would not be callable
    for words, says in (
        (("digits", "digit"), "there is no data set 'digit'"),
        (("--seeds", "0,x"), "seeds are whole numbers"),
    ):
        with pytest.raises(small.FedloomError, match=says):
            command(small, monkeypatch, *words)


def test_a_misspelt_row_is_one_sentence(table: ModuleType) -> None:
    with pytest.raises(table.FedloomError, match="there is no row 'fedpack'; did you mean"):
        table.picked("fedpack", table.Rows.read())


# ------------------------------------------------------------------ the page


def test_the_committed_page_shows_the_results_as_they_are(table: ModuleType) -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    assert table.page_text() == page, "run: python reproduce/table.py --page"


def row(table: ModuleType, *accuracies: float, **protocols: float) -> Any:
    from table_results import Measured

    runs = {
        str(seed): table.SeedRun(value, 0.5, 1.0, 2.0, [value] * 10, protocols, "")
        for seed, value in enumerate(accuracies)
    }
    return Measured("fedavg", "fedavg(lr=0.1)", {"lr": 0.1}, 0.8, 0.7, 16, 9.0, runs)


def test_mean_and_interval_by_hand(table: ModuleType) -> None:
    """Three seeds 0.8, 0.9, 1.0: deviation 0.1, t of two degrees of freedom 4.303, so that half of
    the interval is 4.303 * 0.1 / sqrt(3) = 0.248."""
    measured = row(table, 0.8, 0.9, 1.0)
    assert measured.mean("accuracy") == pytest.approx(0.9)
    assert measured.interval() == pytest.approx(0.2484, abs=1e-4)
    assert table.table_page.accuracy(measured) == "90.0 ± 24.8"


def test_ranks_are_over_data_sets_that_are_measured_whole(table: ModuleType) -> None:
    """The third lacks a seed of one row, which alone would turn the order round."""
    plain = {name: table.Row(name, "fedavg", False) for name in ("A", "B", "C")}
    rows = table.Rows(16, (0, 1), plain)
    one, other = (
        {name: row(table, s, s, dbe=s) for name, s in zip("ABC", scores, strict=True)}
        for scores in ((0.7, 0.9, 0.8), (0.7, 0.8, 0.9))
    )
    results = {"x": one, "y": other, "z": {**other, "A": row(table, 0.99, dbe=0.99)}}
    standing = table.table_page.Standing.of(rows, results)
    assert standing.mean_rank == {"B": 1.5, "C": 1.5, "A": 3.0}
    assert standing.names[-1] == "A"
    assert table.table_page.mean_ranks(rows, results, "dbe") == standing.mean_rank
    assert table.table_page.how_much(rows, results).startswith("**8 of 9 pairs")
    assert table.table_page.Standing.of(rows, {"x": one, "z": results["z"]}) is None


def test_a_row_that_broke_down_is_ranked_last(table: ModuleType) -> None:
    measured = row(table, 0.9)
    measured.broken["1"] = "the loss is not finite"
    assert table.table_page.score(measured) == 0.0
    assert table.table_page.accuracy(measured) == "broke down in 1 of 2 runs"


def test_kendalls_tau_between_protocols_by_hand(table: ModuleType) -> None:
    """Orders A B C and A C B: two pairs agree and one does not, (2 - 1) / 3."""
    by_row = {
        "A": row(table, 0.9, fedloom=0.9, dbe=0.9, fedcr=0.1),
        "B": row(table, 0.8, fedloom=0.8, dbe=0.7, fedcr=0.2),
        "C": row(table, 0.7, fedloom=0.7, dbe=0.8),
    }
    assert table.table_page.tau(by_row, "dbe") == pytest.approx(1 / 3)
    assert table.table_page.tau(by_row, "fedcr") is None  # it refuses C
