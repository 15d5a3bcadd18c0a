"""The table of all methods: its rows, its marks, and its complaint about a missing paragraph."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedloom.core.program import Program
from fedloom.methods import parse_method
from fedloom.models import build_model
from fedloom.runs.config import RunConfig

FILE = Path(__file__).parents[2] / "reproduce/table.py"
SHAPES = {"digits": (1, 8, 8), "fashion_mnist": (1, 28, 28)}


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("methods_table", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(accuracy: float) -> dict[str, Any]:
    return {
        "accuracy": accuracy,
        "accuracy_std_over_seeds": 0.01,
        "worst_decile": 0.5,
        "megabytes_up_per_client": 1.0,
        "seconds": 2.0,
    }


def results(**accuracy: float) -> dict[str, dict[str, Any]]:
    return {"digits": {name: row(value) for name, value in accuracy.items()}, "fashion_mnist": {}}


def test_the_rows_are_forty_methods_and_their_variants(table: ModuleType) -> None:
    rows = list(table.read(table.HERE / "methods.toml"))
    assert rows.index("Local with BatchNorm") == 40
    assert set(table.RIVALS) <= set(rows)


@pytest.mark.parametrize("data", SHAPES)
def test_every_row_fits_its_budget(table: ModuleType, data: str) -> None:
    spec, rows = table.spec_of(data), table.read(table.HERE / "methods.toml")
    assert set(spec["differs"]) <= set(rows)
    for name, expression in rows.items():
        other = table.changes(spec["differs"].get(name, {}))
        config = RunConfig.checked({**spec["settings"], **other, "method": expression})
        net = build_model(config.model, SHAPES[data], 10, seed=0)
        Program(parse_method(expression), net, int(config.clients or 0))


def test_a_row_below_a_rival_is_marked(table: ModuleType) -> None:
    found = results(Local=0.8, FedAvg=0.7, Ditto=0.9, FedPer=0.75)
    assert table.ranked(found) == ["Ditto", "Local", "FedPer", "FedAvg"]
    assert table.line("FedPer", found).startswith("| FedPer | 75.0 ± 1.0 **L** | 50.0 | - |")
    assert table.below(found["digits"], "FedAvg") == ["Local"]
    assert table.below(found["digits"], "Ditto") == []


def test_a_row_on_another_network_is_held_against_its_own_rivals(table: ModuleType) -> None:
    found = results(Local=0.8, FedAvg=0.7, FedBN=0.85)
    found["digits"]["FedBN"]["beside"] = "with BatchNorm"
    found["digits"]["FedAvg with BatchNorm"] = {**row(0.9), "beside": "with BatchNorm"}
    assert table.below(found["digits"], "FedBN") == ["FedAvg"]
    assert table.below(found["digits"], "FedAvg with BatchNorm") == []


def test_a_row_that_diverged_is_below_both(table: ModuleType) -> None:
    found = results(Local=0.8, FedAvg=0.7)
    found["digits"]["FedCM"] = {"failed": "the loss is not finite"}
    assert "diverged **L** **A**" in table.line("FedCM", found)


def test_a_missing_paragraph_is_one_sentence(table: ModuleType) -> None:
    found = results(Local=0.8, FedAvg=0.7, Ditto=0.9, FedPer=0.75)
    said = table.missing(found, {"FedAvg": "Nothing personal."})
    assert said == (
        "below Local or FedAvg and without a paragraph in reproduce/methods/remarks.toml"
        " (1): FedPer"
    )
    assert table.missing(found, {"FedAvg": "a", "FedPer": "b"}) == ""
    assert "'FedPre', which is no row" in table.missing(found, {"FedPre": "b"})


def test_the_page_has_the_table_the_differences_and_the_paragraphs(table: ModuleType) -> None:
    text = table.page(results(Local=0.8, FedAvg=0.7), {"FedAvg": "It has nothing personal."})
    assert "| FedAvg | 70.0 ± 1.0 **L** |" in text
    assert "- FedBN: model = mlp(norm=batch); " in text
    assert "(digits, fashion_mnist)." in text
    assert "**FedAvg.** It has nothing personal." in text


TINY = {"seeds": [0, 1], "settings": {"data": "digits", "clients": 4, "rounds": 1}}


def test_rows_are_measured_once_and_read_again(table: ModuleType, tmp_path: Path) -> None:
    rows = {"Local": "local", "FedAvg": "fedavg"}
    found = table.compared(rows, TINY, {"lr": 0.1}, tmp_path / "runs")
    assert list(found) == ["Local", "FedAvg"]
    assert len(found["Local"]["accuracies"]) == 2
    assert "runs" not in found["Local"]
    assert table.compared(rows, TINY, {"lr": 0.1}, tmp_path / "runs") == found


def test_a_row_that_diverges_does_not_stop_the_others(table: ModuleType, tmp_path: Path) -> None:
    rows = {"pFedMe": "pfedme(lam=1e30)", "FedAvg": "fedavg"}
    found = table.compared(rows, TINY, {}, tmp_path / "runs")
    assert "not finite" in found["pFedMe"]["failed"]
    assert found["FedAvg"]["accuracy"] > 0
