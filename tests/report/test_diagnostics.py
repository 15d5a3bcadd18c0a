"""What `diagnostics.jsonl` holds is shown, as it was really recorded; nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from folders import write_run
from test_page import Page

import fedloom as fl
from fedloom.report.diagnostics import NAMES
from fedloom.report.page import body, report
from fedloom.report.runs import StoredRun
from helpers import fedloom


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of FedCR, whose stochastic layer has every way of predicting, studied whole."""
    path = tmp_path_factory.mktemp("recorded") / "run"
    fl.run(
        "fedcr",
        rounds=2,
        clients=4,
        partition="dirichlet(alpha=0.3)",
        out=str(path),
        diagnose="cka,separation",
        diagnose_every=1,
    )
    done = fedloom("diagnose", path, "--rows", "60", "--clients", "3")
    assert done.code == 0, done.err
    return path


def lines(path: Path, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (path / "diagnostics.jsonl").read_text().splitlines()]
    return [line for line in found if line["name"] == name and "skipped" not in line["result"]]


@pytest.fixture(scope="module")
def page(recorded: Path) -> Page:
    return Page(report([recorded], recorded.parent / "report.html"))


def test_every_diagnostic_has_its_picture(page: Page, recorded: Path) -> None:
    assert all(lines(recorded, name) for name in NAMES)
    kinds = {name.removeprefix("g0-d0-"): spec["kind"] for name, spec in page.charts.items()}
    assert kinds["mdl-bal"] == kinds["separation"] == kinds["global_accuracy"] == "bars"
    assert kinds["cka"] == kinds["classifier_bias"] == "heat"
    assert kinds["cka-rounds"] == kinds["separation-rounds"] == kinds["calibration"] == "lines"
    assert kinds["tsne"] == kinds["ellipses"] == "scatter"
    assert "Representation bias, mean over clients, round 2" in page.texts["span"]
    assert "Record the rest" not in page.text


def test_the_pictures_show_the_recorded_numbers(page: Page, recorded: Path) -> None:
    charts = page.charts
    mdl = [line for line in lines(recorded, "mdl") if line["data"] == "bal"]
    assert charts["g0-d0-mdl-bal"]["groups"] == [line["layer"] for line in mdl]
    after = charts["g0-d0-mdl-bal"]["series"][1]
    assert after["values"] == pytest.approx(
        [line["result"]["mean"]["after"]["bits"] for line in mdl], abs=1e-3
    )
    assert after["high"] == pytest.approx(
        [max(line["result"]["after"]["bits"]) for line in mdl], abs=1e-3
    )
    cka = [line for line in lines(recorded, "cka") if line["round"] == 2]
    assert charts["g0-d0-cka"]["frames"][0]["values"] == [
        pytest.approx(row, abs=1e-3) for row in cka[0]["result"]["matrix"]
    ]
    over = charts["g0-d0-cka-rounds"]["views"][0]["series"]
    assert {tuple(s["x"]) for s in over} == {(1, 2)}
    ways = charts["g0-d0-calibration"]["views"][0]["series"]
    assert [s["key"] for s in ways][:4] == [
        *("as the method predicts", "a single sample"),
        *("mean of probabilities", "mean of logits"),
    ]
    first = lines(recorded, "calibration")[0]["result"]["ways"]["single"]
    assert sum(ways[1]["weight"]) == first["n"]
    panels = charts["g0-d0-tsne"]["views"][0]["panels"]
    assert sum(len(p["points"]) for p in panels) == lines(recorded, "tsne")[-1]["result"]["n"]


def test_what_could_not_be_measured_is_said(tmp_path: Path) -> None:
    why = "clients have layers of unlike <widths>"
    line = {"round": 1, "name": "cka", "snapshot": "before", "layer": "body", "data": "bal"}
    skipped = {**line, "settings": {}, "result": {"skipped": why}}
    write_run(tmp_path / "a", findings=[skipped])
    made = Page(report([tmp_path], tmp_path / "report.html"))
    assert why in made.texts["p"]
    assert "Record the rest (mdl, cka, separation" in made.text


def test_undefined_numbers_leave_gaps(recorded: Path, tmp_path: Path) -> None:
    """null in place of a client's number is a gap in the picture, never an error."""
    (bias,) = [f for f in lines(recorded, "classifier_bias") if f["settings"]["seen_at_least"] == 1]
    bias["result"]["after"]["predicted"][0] = [None] * bias["result"]["classes"]
    whole = lines(recorded, "global_accuracy")[0]
    whole["result"]["aggregated"] = {"accuracy": None, "noise": None, "why": "none is <kept>"}
    path = write_run(tmp_path / "a", findings=[bias, whole])
    made = body([StoredRun.read(path)])
    assert made.charts["g0-d0-classifier_bias"]["frames"][1]["values"][0] == [None] * 10
    named = [r["name"] for r in made.charts["g0-d0-global_accuracy"]["references"]]
    assert named == ["chance"]
    assert "There is no global model: none is &lt;kept&gt;." in made.main
