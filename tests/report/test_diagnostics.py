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
    assert kinds["tsne-0"] == kinds["ellipses-0"] == "scatter"
    for said in ("Fisher ratio", "Drift", "Overlap of seen and unseen"):
        assert f"{said}, mean over clients, round 2" in page.texts["span"]
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
        *("as the method predicts", "one pass at the mean"),
        *("mean of probabilities", "mean of logits"),
    ]
    first = lines(recorded, "calibration")[0]["result"]["ways"]["single"]
    assert sum(ways[1]["weight"]) == first["n"]
    panels = charts["g0-d0-tsne-0"]["views"][0]["panels"]
    assert sum(len(p["points"]) for p in panels) == lines(recorded, "tsne")[0]["result"]["n"]
    pictures = {k for k in charts if k.startswith("g0-d0-tsne")}
    assert len(pictures) == len({f["layer"] for f in lines(recorded, "tsne")}) > 1


def test_own_rows_are_coded_per_label(recorded: Path, tmp_path: Path) -> None:
    """30 bits for 20 labels and 10 for 40 are 1.5 and .25 bits per label, .875 in the mean; labels
    alone 40 and 20 bits are 2 and .5, 1.25 in the mean. The mean of 30 and 10 bits is no number."""
    line = next(f for f in lines(recorded, "mdl") if f["data"] == "local-test")
    side = {"bits": [30.0, 10.0], "nats": [0, 0], "per_sample": [0, 0], "ratio": [0.5, None]}
    mean = {"bits": 20.0, "nats": 0, "per_sample": 0, "ratio": 0.5}
    line["result"] |= {
        "clients": [0, 1],
        "n": [20, 40],
        "uniform_bits": [80.0, 160.0],
        "prior_bits": [40.0, 20.0],
        "before": side,
        "after": side,
        "mean": {"before": mean, "after": mean},
    }
    path = write_run(tmp_path / "a", findings=[line])
    made = Page(report([path], tmp_path / "report.html"))
    chart = made.charts["g0-d0-mdl-local-test"]
    assert chart["ylabel"] == "bits per label"
    assert chart["series"][0]["values"] == [0.875]
    assert (chart["series"][0]["low"], chart["series"][0]["high"]) == ([0.25], [1.5])
    assert chart["references"] == [{"name": "labels alone", "value": 1.25}]
    table = "g0-d0-mdl-local-test-table"
    assert made.cells(table, "labels") == ["20 to 40"]
    assert made.cells(table, "bits before") == ["\N{EN DASH}"]
    assert made.cells(table, "uniform code, per label") == ["4"]
    assert made.cells(table, "probe") == ["ridge"]


def test_a_pool_is_one_code(page: Page) -> None:
    assert page.charts["g0-d0-mdl-pooled"]["ylabel"] == "bits"
    assert page.charts["g0-d0-mdl-pooled"]["references"][0]["name"] == "uniform code"
    captions = page.texts["span"]
    assert captions.count("One code over the rows of all clients") == 1
    assert "which client a row is from" in page.text


def test_seed_clients_and_rows_are_said(page: Page, recorded: Path, tmp_path: Path) -> None:
    """While the run went on, all four clients were measured; then three of them in round 2."""
    assert "Round 1: clients 0, 1, 2, 3 of 4 in the run, at most 500 rows" in page.text
    assert "clients 0, 1, 3 of 4 in the run, at most 60 rows of a data set." in page.text
    write_run(tmp_path / "a0", seed=0)
    second = write_run(tmp_path / "a1", seed=1, findings=lines(recorded, "drift"))
    made = Page(report([tmp_path], tmp_path / "report.html"))
    assert "Seed 1. Round 2: clients 0, 1, 3 of 4" in made.text
    assert f"with: fedloom diagnose {second}" in made.text
    assert f"with: fedloom diagnose {tmp_path / 'a0'}" not in made.text


def test_each_measure_of_bias_is_of_its_own_newest_round(recorded: Path, tmp_path: Path) -> None:
    """Drift was recorded later than Fisher's ratio: both are shown, each with its round."""
    fisher = [{**f, "round": t} for t in (1, 3) for f in lines(recorded, "fisher")]
    drift = [{**f, "round": 7} for f in lines(recorded, "drift")]
    for f in fisher[: len(fisher) // 2]:
        f["result"] = {**f["result"], "mean": {"before": {}, "after": {}}}  # never read
    path = write_run(tmp_path / "a", findings=[*fisher, *drift])
    made = Page(report([path], tmp_path / "report.html"))
    for said in ("Fisher ratio, mean over clients, round 3", "Drift, mean over clients, round 7"):
        assert said in made.texts["span"]
    shown = made.cells("g0-d0-fisher-fisher-table", "largest before")
    kept = [f["result"]["mean"]["before"]["largest"] for f in lines(recorded, "fisher")]
    assert shown == [f"{v:.4g}" for v in kept]
    seen = lines(recorded, "drift")[0]["result"]["seen"]["n"]
    low, high = min(seen), max(seen)
    expected = f"{low} to {high}" if low < high else str(low)
    assert made.cells("g0-d0-fisher-drift-table", "seen rows")[0] == expected


def test_every_layer_has_its_plane(recorded: Path, tmp_path: Path) -> None:
    line = lines(recorded, "tsne")[0]
    many = {**line["result"], "clients": [i % 9 for i in range(len(line["result"]["points"]))]}
    both = [line, {**line, "layer": "body.<0>", "result": many}]
    made = body([StoredRun.read(write_run(tmp_path / "a", findings=both))])
    titles = [made.charts[f"g0-d0-tsne-{i}"]["title"] for i in range(2)]
    assert titles == [f"t-SNE of {f['layer']}, round 2" for f in both]
    assert made.main.count("so shapes repeat") == 1  # nine clients, eight shapes


def test_few_rows_make_the_curve_of_cka_debiased(recorded: Path, tmp_path: Path) -> None:
    """99 rows of width 10 are too few, 100 are enough."""
    first = next(f for f in lines(recorded, "cka") if f["snapshot"] == "after")
    for n, said, key in ((99, "debiased CKA", "debiased_mean"), (100, "CKA", "mean")):
        result = {**first["result"], "n": n, "mean": 0.75, "debiased_mean": 0.25}
        settings = {**first["settings"], "width": 10}
        both = [{**first, "round": t, "settings": settings, "result": result} for t in (1, 2)]
        made = body([StoredRun.read(write_run(tmp_path / str(n), findings=both))])
        chart = made.charts["g0-d0-cka-rounds"]
        assert chart["ylabel"] == said
        assert chart["views"][0]["series"][0]["y"] == [result[key]] * 2


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
