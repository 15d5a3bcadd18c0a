"""What `diagnostics.jsonl` holds is shown, as it was really recorded; nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from folders import write_run
from test_page import Page

import fedloom as fl
from fedloom.diagnose.registry import diagnostics
from fedloom.record import Finding
from fedloom.report.page import body, report
from fedloom.report.runs import StoredRun
from fedloom.runs.journal import read_records
from helpers import fedloom

pytestmark = pytest.mark.xdist_group("diagnostics")  # one run that was studied for all


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


def recorded_by(name: str, path: Path) -> list[Finding]:
    findings = read_records(path / "diagnostics.jsonl", Finding)
    return [finding for finding in findings if finding.name == name and not finding.skipped]


def changed(finding: Finding, **result: Any) -> Finding:
    """The same with other numbers."""
    return replace(finding, result={**finding.result, **result})


@pytest.fixture(scope="module")
def page(recorded: Path) -> Page:
    return Page(report([recorded], recorded.parent / "report.html"))


def test_every_diagnostic_has_its_picture(page: Page, recorded: Path) -> None:
    assert all(recorded_by(name, recorded) for name in diagnostics())
    kinds = {name.removeprefix("g0-d0-"): spec["kind"] for name, spec in page.charts.items()}
    assert kinds["mdl-bal"] == kinds["separation"] == kinds["global_accuracy"] == "bars"
    assert kinds["cka"] == kinds["classifier_bias"] == "heat"
    assert kinds["cka-rounds"] == kinds["separation-rounds"] == kinds["calibration"] == "lines"
    assert kinds["tsne-0"] == kinds["ellipses-0"] == "scatter"
    for title in ("Fisher ratio", "Drift", "Overlap of seen and unseen"):
        assert f"{title}, mean over clients, round 2" in page.texts["span"]
    assert "Record the rest" not in page.text


def test_the_pictures_show_the_recorded_numbers(page: Page, recorded: Path) -> None:
    charts = page.charts
    mdl = [finding for finding in recorded_by("mdl", recorded) if finding.data == "bal"]
    assert charts["g0-d0-mdl-bal"]["groups"] == [finding.layer for finding in mdl]
    after = charts["g0-d0-mdl-bal"]["series"][1]
    assert after["values"] == pytest.approx(
        [finding.result["mean"]["after"]["bits"] for finding in mdl], abs=1e-3
    )
    assert after["high"] == pytest.approx(
        [max(finding.result["after"]["bits"]) for finding in mdl], abs=1e-3
    )
    cka = [finding for finding in recorded_by("cka", recorded) if finding.round == 2]
    assert charts["g0-d0-cka"]["frames"][0]["values"] == [
        pytest.approx(row, abs=1e-3) for row in cka[0].result["matrix"]
    ]
    over = charts["g0-d0-cka-rounds"]["views"][0]["series"]
    assert {tuple(line["x"]) for line in over} == {(1, 2)}
    ways = charts["g0-d0-calibration"]["views"][0]["series"]
    assert [way["key"] for way in ways][:4] == [
        *("as the method predicts", "one pass at the mean"),
        *("mean of probabilities", "mean of logits"),
    ]
    first = recorded_by("calibration", recorded)[0].result["ways"]["single"]
    assert sum(ways[1]["weight"]) == first["n"]
    tsne = recorded_by("tsne", recorded)
    panels = charts["g0-d0-tsne-0"]["views"][0]["panels"]
    assert sum(len(panel["points"]) for panel in panels) == tsne[0].result["n"]
    pictures = {name for name in charts if name.startswith("g0-d0-tsne")}
    assert len(pictures) == len({finding.layer for finding in tsne}) > 1


def test_own_rows_are_coded_per_label(recorded: Path, tmp_path: Path) -> None:
    """30 bits for 20 labels and 10 for 40 are 1.5 and .25 bits per label, .875 in the mean; labels
    alone 40 and 20 bits are 2 and .5, 1.25 in the mean. The mean of 30 and 10 bits is no number."""
    own = next(f for f in recorded_by("mdl", recorded) if f.data == "local-test")
    side = {"bits": [30.0, 10.0], "nats": [0, 0], "per_sample": [0, 0], "ratio": [0.5, None]}
    mean = {"bits": 20.0, "nats": 0, "per_sample": 0, "ratio": 0.5}
    finding = changed(
        own,
        clients=[0, 1],
        n=[20, 40],
        uniform_bits=[80.0, 160.0],
        prior_bits=[40.0, 20.0],
        before=side,
        after=side,
        mean={"before": mean, "after": mean},
    )
    path = write_run(tmp_path / "a", findings=[finding])
    page = Page(report([path], tmp_path / "report.html"))
    chart = page.charts["g0-d0-mdl-local-test"]
    assert chart["ylabel"] == "bits per label"
    assert chart["series"][0]["values"] == [0.875]
    assert (chart["series"][0]["low"], chart["series"][0]["high"]) == ([0.25], [1.5])
    assert chart["references"] == [{"name": "labels alone", "value": 1.25}]
    table = "g0-d0-mdl-local-test-table"
    assert page.cells(table, "labels") == ["20 to 40"]
    assert page.cells(table, "bits before") == ["\N{EN DASH}"]
    assert page.cells(table, "uniform code, per label") == ["4"]
    assert page.cells(table, "probe") == ["ridge"]


def test_a_pool_is_one_code(page: Page) -> None:
    assert page.charts["g0-d0-mdl-pooled"]["ylabel"] == "bits"
    assert page.charts["g0-d0-mdl-pooled"]["references"][0]["name"] == "uniform code"
    captions = page.texts["span"]
    assert captions.count("One code over the rows of all clients") == 1
    assert "which client a row is from" in page.text


def test_the_page_names_seed_clients_and_rows(page: Page, recorded: Path, tmp_path: Path) -> None:
    """While the run went on, all four clients were measured; then three of them in round 2."""
    assert "Round 1: clients 0, 1, 2, 3 of 4 in the run, at most 500 rows" in page.text
    assert "clients 0, 1, 3 of 4 in the run, at most 60 rows of a data set." in page.text
    write_run(tmp_path / "a0", seed=0)
    second = write_run(tmp_path / "a1", seed=1, findings=recorded_by("drift", recorded))
    other = Page(report([tmp_path], tmp_path / "report.html"))
    assert "Seed 1. Round 2: clients 0, 1, 3 of 4" in other.text
    assert f"with: fedloom diagnose {second}" in other.text
    assert f"with: fedloom diagnose {tmp_path / 'a0'}" not in other.text


def test_each_measure_of_bias_is_of_its_own_newest_round(recorded: Path, tmp_path: Path) -> None:
    """Drift was recorded later than Fisher's ratio: both are shown, each with its round."""
    fisher, drift = recorded_by("fisher", recorded), recorded_by("drift", recorded)
    nothing = dict.fromkeys(fisher[0].result["mean"]["before"], 0.0)
    older = [
        changed(replace(finding, round=1), mean={"before": nothing, "after": nothing})
        for finding in fisher
    ]
    newer = [replace(finding, round=3) for finding in fisher]
    moved = [replace(finding, round=7) for finding in drift]
    path = write_run(tmp_path / "a", findings=[*older, *newer, *moved])
    page = Page(report([path], tmp_path / "report.html"))
    for title in ("Fisher ratio, mean over clients, round 3", "Drift, mean over clients, round 7"):
        assert title in page.texts["span"]
    largest = [finding.result["mean"]["before"]["largest"] for finding in fisher]
    assert page.cells("g0-d0-fisher-table", "largest before") == [f"{v:.4g}" for v in largest]
    rows = drift[0].result["seen"]["n"]
    low, high = min(rows), max(rows)
    expected = f"{low} to {high}" if low < high else str(low)
    assert page.cells("g0-d0-drift-table", "seen rows")[0] == expected


def test_every_layer_has_its_plane(recorded: Path, tmp_path: Path) -> None:
    first = recorded_by("tsne", recorded)[0]
    many = [i % 9 for i in range(len(first.result["points"]))]
    second = changed(replace(first, layer="body.<0>"), clients=many)
    page = body([StoredRun.read(write_run(tmp_path / "a", findings=[first, second]))])
    titles = [page.charts[f"g0-d0-tsne-{i}"]["title"] for i in range(2)]
    assert titles == [f"t-SNE of {finding.layer}, round 2" for finding in (first, second)]
    assert page.main.count("so shapes repeat") == 1  # nine clients, eight shapes


def test_few_rows_make_the_curve_of_cka_debiased(recorded: Path, tmp_path: Path) -> None:
    """99 rows of width 10 are too few, 100 are enough."""
    first = next(f for f in recorded_by("cka", recorded) if f.snapshot == "after")
    narrow = replace(first, settings={**first.settings, "width": 10})
    for n, label, value in ((99, "debiased CKA", 0.25), (100, "CKA", 0.75)):
        one = changed(narrow, n=n, mean=0.75, debiased_mean=0.25)
        both = [replace(one, round=t) for t in (1, 2)]
        page = body([StoredRun.read(write_run(tmp_path / str(n), findings=both))])
        chart = page.charts["g0-d0-cka-rounds"]
        assert chart["ylabel"] == label
        assert chart["views"][0]["series"][0]["y"] == [value] * 2


def test_the_page_tells_what_could_not_be_measured(tmp_path: Path) -> None:
    reason = "clients have layers of unlike <widths>"
    skipped = Finding(1, "cka", "before", "body", "bal", {}, {"skipped": reason})
    write_run(tmp_path / "a", findings=[skipped])
    page = Page(report([tmp_path], tmp_path / "report.html"))
    assert f"CKA between clients: {reason}." in page.texts["p"]
    assert "Record the rest (mdl, cka, separation" in page.text


def test_undefined_numbers_leave_gaps(recorded: Path, tmp_path: Path) -> None:
    """null in place of a client's number is a gap in the picture, never an error."""
    (bias,) = [
        finding
        for finding in recorded_by("classifier_bias", recorded)
        if finding.settings["seen_at_least"] == 1
    ]
    after = bias.result["after"]
    unknown = [[None] * bias.result["classes"], *after["predicted"][1:]]
    recalls = [None, *after["unseen_recall"][1:]]
    bias = changed(bias, after={**after, "predicted": unknown, "unseen_recall": recalls})
    missing = {"accuracy": None, "noise": None, "why": "none is <kept>"}
    accuracy = changed(recorded_by("global_accuracy", recorded)[0], aggregated=missing)
    path = write_run(tmp_path / "a", findings=[bias, accuracy])
    page = body([StoredRun.read(path)])
    assert page.charts["g0-d0-classifier_bias"]["frames"][1]["values"][0] == [None] * 10
    assert ">nan<" not in page.main
    assert 'data-sort="nan"' not in page.main
    references = page.charts["g0-d0-global_accuracy"]["references"]
    assert [reference["name"] for reference in references] == ["chance"]
    assert "There is no global model: none is &lt;kept&gt;." in page.main
