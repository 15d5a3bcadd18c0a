"""`fedloom reproduce`: lists, checks, runs, resumes, and says what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.reproduce.library import all_tables, find_tables
from helpers import Done, fedloom


@pytest.fixture
def reproduce(table_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder has the tables in its folder `reproduce`."""
    monkeypatch.chdir(table_file.parents[2])
    return table_file


def command(*words: str) -> Done:
    return fedloom("reproduce", *words)


def test_a_list_says_how_large_tables_are_and_what_data_they_need(reproduce: Path) -> None:
    shown = command("--list")
    assert shown.code == 0
    assert "fedpac/table1" in shown.out
    assert "digits" in shown.out
    (entry,) = json.loads(command("--list", "--json").out.splitlines()[-1])["tables"]
    assert (entry["runs"], entry["columns"]) == (6, ["four", "five", "mean"])
    assert (entry["data"], entry["not at hand"]) == (["digits"], [])


def test_data_that_is_not_at_hand_is_listed_with_its_place(
    reproduce: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    text = reproduce.read_text(encoding="utf-8").replace('"digits"', '"tiny_imagenet"')
    reproduce.write_text(text, encoding="utf-8")
    (entry,) = json.loads(command("--list", "--json").out.splitlines()[-1])["tables"]
    assert entry["not at hand"] == [
        "tiny_imagenet (hub repository zh-plus/tiny-imagenet, or a folder tiny_imagenet in"
        " FEDLOOM_DATA)"
    ]


def test_the_printed_numbers_are_shown_without_a_run(reproduce: Path) -> None:
    shown = command("fedpac/table1", "--show")
    assert "80.00 ± 0.50" in shown.out
    assert "FedAvg" in shown.out
    assert not Path("runs").exists()


def test_a_table_is_run_compared_and_gone_on_with(reproduce: Path) -> None:
    words = ("fedpac/table1", "--column", "four", "--methods", "fedavg,fedprox", "--seeds", "0,1")
    first = command(*words, "--publish")
    assert first.code == 0, first.err
    assert "80.00 ± 0.50" in first.out
    assert "runs/reproduce/fedpac/table1" in first.out
    assert {p.name for p in Path("runs/reproduce/fedpac/table1/four").iterdir()} == {
        *("fedavg-seed0", "fedavg-seed1", "fedprox-seed0", "fedprox-seed1"),
    }
    kept = Path("reproduce/fedpac/table1.results.json").read_text(encoding="utf-8")
    assert len(json.loads(kept)["runs"]) == 4
    again = command(*words, "--publish", "--json")
    assert json.loads(again.out.splitlines()[-1]) == json.loads(kept)
    command("--page", "page.md")
    assert "| four | FedAvg | accuracy | 80.00 ± 0.50 |" in Path("page.md").read_text()


def test_a_shorter_run_is_announced_loudly(reproduce: Path) -> None:
    done = command("fedpac/table1", "--rounds", "1", "--seeds", "0", "--methods", "fedavg")
    assert "SHORTER THAN THE PAPER: rounds = 1 in place of 2" in done.err
    assert "1 of the paper's 2 rounds" in " ".join(done.out.replace("│", " ").split())


def test_a_check_lists_what_is_wrong(reproduce: Path) -> None:
    assert "1 tables are in order" in command("--check", str(reproduce)).out
    reproduce.write_text(reproduce.read_text(encoding="utf-8").replace("lr = 0.02", "rl = 1"))
    done = command("--check", str(reproduce))
    assert done.code == 1
    assert "rows.fedprox: a run has no key 'rl'" in done.out
    assert "1 problems in 1 tables" in done.err


def test_a_dry_run_needs_no_data(reproduce: Path) -> None:
    done = command("--dry-run")
    assert "all 3 cells work (2 different small runs)" in done.out
    text = reproduce.read_text(encoding="utf-8")
    reproduce.write_text(text.replace("clients = 5", "clients = 5\nmodel = 'resnet81'"))
    done = command("--dry-run", "fedpac/table1")
    assert done.code == 1
    assert "row 'fedavg' in column 'five': UnknownName: unknown model 'resnet81'" in done.out
    assert "1 of 3 cells do not work" in done.err


def test_whoever_names_no_table_or_an_unknown_one_is_told(reproduce: Path) -> None:
    assert "name a table, for instance fedpac/table1" in command().err
    assert "there is no table 'fedpac/table2'" in command("fedpac/table2").err
    assert find_tables(["fedpac"]) == [Path("reproduce/fedpac/table1.toml")]


def test_tables_come_before_figures_and_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "dbe").mkdir()
    for name in ("figure2", "table10", "table2"):
        (tmp_path / "dbe" / f"{name}.toml").touch()
    assert [path.stem for path in all_tables(tmp_path)] == ["table2", "table10", "figure2"]
