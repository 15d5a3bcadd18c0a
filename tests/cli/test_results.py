"""What comes out of a run, in pandas, CSV, LaTeX and a notebook."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import fedloom as fl
from fedloom.errors import BadInput
from fedloom.launch.compare import Comparison, Row
from fedloom.launch.tables import AgainstAlone, training_alone
from fedloom.runs.config import RunConfig, RunSettings
from fedloom.runs.result import summary_rows

SMALL: dict[str, Any] = {"rounds": 2, "clients": 4, "partition": "iid", "model": "mlp(hidden=[8])"}


def test_every_score_is_a_row_of_a_frame() -> None:
    """Fed-RoD scores its generic head beside the personal model; one client never trains."""
    result = fl.run("fedrod", **SMALL, newcomers=1)
    frame = result.to_pandas()
    assert set(frame.model) == {"personal", "generic_head"}
    newcomers = frame[(frame.group == "newcomers") & (frame.moment == "adapted")]
    assert sorted(newcomers.model) == ["generic_head", "personal"]
    assert set(newcomers.client) == {3}
    members = frame[(frame.group == "clients") & (frame["round"] == 2)]
    received = members[(members.moment == "received") & (members.model == "personal")]
    assert received.accuracy.mean() == pytest.approx(result.accuracy)
    assert list(received.accuracy) == list(result.summary.result.values)


def test_a_summary_says_which_model_was_tested_and_how_it_did_at_other_moments() -> None:
    """FedRep is fine-tuned once the two rounds are over; two of its four clients train in each."""
    result = fl.run("fedrep", **SMALL, participation=0.5, progress=False)
    rows = dict(summary_rows(result.summary, result.records))
    assert rows["tested"] == "personal model after the final tuning"
    frame = result.to_pandas()
    in_round_2 = frame[frame["round"] == 2].groupby("moment").accuracy.mean()
    assert rows["as received, round 2"] == f"{100 * in_round_2.received:.2f} %"
    assert (
        rows["after local training, round 2"] == f"{100 * in_round_2.trained:.2f} %, 2 of 4 clients"
    )


@pytest.mark.parametrize(
    ("protocol", "tested"),
    [
        ("fedloom", "personal model as received, round 2"),
        ("dualfed", "personal model as received, each client's best round"),
        ("fedbr", "global model as received, mean of rounds 1, 2"),
    ],
)
def test_a_summary_says_which_rounds_count(protocol: str, tested: str) -> None:
    result = fl.run("fedavg", **SMALL, protocol=protocol, progress=False)
    assert dict(summary_rows(result.summary, result.records))["tested"] == tested


def test_an_early_end_says_by_which_rows() -> None:
    settings = {**SMALL, "rounds": 9, "lr": 1e-12, "early_stop": 1, "progress": False}
    assert "on test rows" in str(fl.run("fedavg", **settings).summary.stopped)
    validated = fl.run("fedavg", **settings, split="merged(train=0.6, val=0.2)")
    assert "on val rows" in str(validated.summary.stopped)


def test_a_comparison_holds_every_seed(tmp_path: Path) -> None:
    comparison = fl.compare(
        ["local", "fedavg"], seeds=[0, 3], **SMALL, out=str(tmp_path / "c"), progress=False
    )
    frame = comparison.to_pandas()
    assert list(zip(frame.method, frame.seed, strict=True)) == [
        ("local", 0),
        ("local", 3),
        ("fedavg", 0),
        ("fedavg", 3),
    ]
    saved = json.loads((tmp_path / "c" / "comparison.json").read_text())
    values = [[seed["accuracy"] for seed in row["seeds"]] for row in saved["methods"]]
    assert values == [row.accuracies for row in comparison.rows]
    assert comparison.to_csv().splitlines()[0].startswith("method,seeds,accuracy_seed_0")
    assert r"\toprule" in comparison.to_latex()
    assert "fedavg" in comparison._repr_html_()
    assert repr(comparison).splitlines()[0].startswith("local: ")


def test_one_seed_has_no_deviation() -> None:
    comparison = fl.compare(["local"], seeds=[1], **SMALL)
    assert comparison.rows[0].deviation is None
    assert "±" not in repr(comparison)


def test_who_gains_and_who_loses_against_training_alone() -> None:
    """Four clients; a method lifts two of them, lowers one, and leaves one as it was."""
    local = fl.run("local", **SMALL).summary
    alone = replace(local, result=replace(local.result, values=(0.5, 0.5, 0.5, 0.5)))
    method = replace(local, result=replace(local.result, values=(0.6, 0.7, 0.4, 0.5)))
    rows = [Row("fedavg", [method]), Row("local(lr=0.1)", [alone])]
    assert training_alone(Comparison(rows).methods) == [alone]
    assert AgainstAlone.of([method], [alone]) == AgainstAlone(better=0.5, worse=0.25)
    assert AgainstAlone.of([replace(method, seed=7)], [alone]) is None
    assert "50/25" in Comparison(rows)._repr_html_()
    assert "training alone" not in Comparison(rows[:1])._repr_html_()


def test_a_method_is_not_compared_with_itself() -> None:
    with pytest.raises(BadInput, match="'fedavg' is compared with itself; name it once"):
        fl.compare(["fedavg", fl.FedAvg()], seeds=[0], **SMALL)


def test_a_result_shows_itself() -> None:
    result = fl.run("fedavg", **SMALL)
    assert repr(result).startswith("Result(fedavg: accuracy ")
    assert "<th>worst 10 % of clients</th>" in result._repr_html_()


@pytest.mark.parametrize("function", [fl.run, fl.compare])
def test_signatures_name_every_setting(function: Any) -> None:
    """In help and completion at run time, and for type checkers."""
    objects = {"method", "data", "model"}
    settings = set(RunConfig.model_fields) - objects
    assert settings - {"seed"} <= set(inspect.signature(function).parameters)
    assert set(RunSettings.__annotations__) == settings
    hints = get_type_hints(RunSettings, localns={"Task": fl.Task})
    assert (hints["rounds"], hints["lr"]) == (int, float | None)


def test_progress_is_shown_where_it_is_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    fl.run("fedavg", **SMALL)
    assert "fedavg" not in capfd.readouterr().err  # a file
    fl.run("fedavg", **SMALL, progress=True)
    assert "2/2" in capfd.readouterr().err
