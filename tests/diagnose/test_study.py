"""Diagnostics of whole runs: answers that follow from the method, lines that keep their shape."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom.analysis.fisher_ratio import fisher
from fedloom.analysis.mdl import mdl_online
from fedloom.analysis.reliability import calibration_of_clients
from fedloom.analysis.separation import class_separation
from fedloom.core.digest import state_sha256
from fedloom.diagnose import recorder
from fedloom.diagnose.diagnostics import mdl
from fedloom.diagnose.measure import Options
from fedloom.diagnose.registry import chosen, diagnostics, read
from fedloom.diagnose.snapshots import Snapshots
from fedloom.diagnose.study import study
from fedloom.diagnose.terminal import findings_table
from fedloom.engines.inline import Inline
from fedloom.errors import BadInput, RunFolderError, UnknownName
from fedloom.files import jsonable
from fedloom.launch.start import resume, start
from fedloom.record import Finding, RoundRecord, dump
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.journal import read_records
from fedloom.runs.result import Result
from fedloom.runs.watcher import RunView, Stop, Watcher
from helpers import StopAt, fedloom

pytestmark = pytest.mark.xdist_group("study")  # one run that was studied for all
SMALL: dict[str, Any] = {"model": "mlp(hidden=[12, 8])", "clients": 5, "rounds": 2}
TWO_CLASSES = "pathological(classes_per_client=2)"


@pytest.fixture(scope="module")
def fedavg() -> Result:
    """Five clients with two of the ten digits each."""
    return fl.run("fedavg", partition=TWO_CLASSES, epochs=3, **SMALL)


@pytest.fixture(scope="module")
def snapshots(fedavg: Result) -> Snapshots:
    return Snapshots.of(fedavg, rows=100, clients=3)


@pytest.fixture(scope="module")
def findings(snapshots: Snapshots) -> list[Finding]:
    return study(snapshots)


def one(findings: list[Finding], name: str, **at: object) -> Finding:
    (only,) = (
        f for f in findings if f.name == name and all(getattr(f, k) == v for k, v in at.items())
    )
    return only


# ------------------------------------------------------------------ answers that are known


def test_a_shared_extractor_is_one_before_and_several_after(findings: list[Finding]) -> None:
    for layer in ("body.1", "body", "head"):
        before = one(findings, "cka", layer=layer, snapshot="before").result
        after = one(findings, "cka", layer=layer, snapshot="after").result
        assert before["clients"] == after["clients"] == [0, 2, 4]
        assert [v for row in before["matrix"] for v in row] == pytest.approx([1.0] * 9, abs=1e-12)
        assert 0 < after["smallest"] <= after["mean"] <= after["largest"] < 0.99
        assert after["n"] == 100


def test_a_client_of_two_classes_calls_everything_one_of_them(findings: list[Finding]) -> None:
    """FedBR's Proposition 3.1: after local training rows of the eight other classes go to the two
    of the client. It saw 2 of 10 classes, so a uniform guess gives .2; 80 of 100 rows are not."""
    line = one(findings, "classifier_bias", settings=bias_settings(findings, 1)).result
    assert line["blind"] == [0.2] * 3
    assert (line["n_unseen"], line["n_seen"]) == ([80] * 3, [20] * 3)
    assert line["mean"]["after"]["seen_mass"] > 0.95
    assert line["mean"]["before"]["seen_mass"] < line["mean"]["after"]["seen_mass"] - 0.2
    for seen, counts, law in zip(
        line["seen"], line["train_counts"], line["after"]["predicted"], strict=True
    ):
        assert seen == [int(n > 0) for n in counts]
        assert sum(law) == pytest.approx(1)


def bias_settings(findings: list[Finding], least: int) -> Mapping[str, Any]:
    lines = [f.settings for f in findings if f.name == "classifier_bias"]
    assert [s["seen_at_least"] for s in lines] == [1, 10]
    return next(s for s in lines if s["seen_at_least"] == least)


def test_the_aggregated_model_is_what_clients_receive(findings: list[Finding]) -> None:
    """FedAvg: everybody starts from the aggregated model, and leaves it for its own two classes,
    with which no more than .2 of the balanced rows can be right."""
    line = one(findings, "global_accuracy").result
    assert line["before"]["accuracy"] == [line["aggregated"]["accuracy"]] * 3
    assert line["mean"]["after"]["accuracy"] < 0.3
    p = line["aggregated"]["accuracy"]
    assert line["aggregated"]["noise"] == pytest.approx(math.sqrt(p * (1 - p) / 100))
    assert (line["chance"], line["n"], line["aggregated"]["why"]) == (0.1, 100, None)


def test_training_that_changes_nothing_leaves_every_number_where_it_was() -> None:
    """A learning rate of 1e-30 rounds to no step at all: no drift, the same codes, CKA 1 after as
    before, rho = centroid ratio = 1 (a ratio of equals)."""
    result = fl.run("fedavg", partition=TWO_CLASSES, lr=1e-30, **{**SMALL, "rounds": 1})
    lines = study(Snapshots.of(result, rows=100, clients=2))
    for line in lines:
        if line.name == "drift":
            for part in ("all", "seen", "unseen"):
                drift = line.result["mean"][part]
                assert (drift["cosine"], drift["relative"]) == (0, 0)
                assert drift["cka"] == pytest.approx(0, abs=1e-12)
        elif line.name == "cka":
            assert line.result["mean"] == pytest.approx(1, abs=1e-12)
        elif line.name == "overlap":
            assert line.result["rho"] == line.result["centroid_ratio"] == [1, 1]
        elif line.snapshot == "both" and "mean" in line.result:
            assert line.result["before"] == line.result["after"]
    changes = [line.result["change_percent"] for line in lines if line.name == "mdl"]
    assert changes == [[0, 0]] * 3 + [[0, 0]] * 3 + [[0]] * 3
    picture = one(lines, "tsne").result
    where: dict[str, list[Any]] = {"before": [], "after": []}
    for point, when in zip(picture["points"], picture["snapshots"], strict=True):
        where[when].append(point)
    assert where["before"] == where["after"]


def test_local_models_are_apart_from_the_start() -> None:
    """Clients that never meet have unlike bodies before as after, and no aggregated model."""
    result = fl.run("local", partition=TWO_CLASSES, **SMALL)
    lines = study(Snapshots.of(result, rows=100, clients=2), "cka, global_accuracy")
    assert one(lines, "cka", layer="body", snapshot="before").result["mean"] < 0.99
    aggregated = one(lines, "global_accuracy").result["aggregated"]
    assert aggregated["accuracy"] is aggregated["noise"] is None
    assert "stays with the clients" in aggregated["why"]


def test_numbers_are_those_of_the_pure_functions(
    snapshots: Snapshots, findings: list[Finding]
) -> None:
    """The right layer, snapshot and rows reach each function: asked directly, it says the same."""
    client = snapshots.client(2)
    rows, own, classes = client.balanced, client.test, 10
    assert own is not None
    before, after = client.before.features(rows)["body"], client.after.features(rows)["body"]
    code = one(findings, "mdl", layer="body", data="bal").result
    assert code["after"]["nats"][1] == mdl_online(after, rows.y, classes).nats
    assert code["before"]["bits"][1] == mdl_online(before, rows.y, classes).bits
    assert code["uniform_bits"][1] == pytest.approx(100 * math.log2(10))
    mine = client.after.features(own)["body"]
    local = one(findings, "mdl", layer="body", data="local-test").result
    assert local["after"]["nats"][1] == mdl_online(mine, own.y, classes).nats
    separation = one(findings, "separation", layer="body").result
    assert separation["after"]["value"][1] == class_separation(mine, own.y).value
    assert separation["after"]["debiased"][1] == class_separation(mine, own.y, debiased=True).value
    others = client.pool.owners != 2
    ratio = fisher(mine, client.after.features(client.pool)["body"][others])
    line = one(findings, "fisher", layer="body").result
    # the study adds the moments of all rows up from those of their classes
    assert line["after"]["largest"][1] == pytest.approx(ratio.largest, rel=1e-12)
    assert line["n"][1] == [len(own), int(others.sum())]
    pairs = [(c.after.probabilities(c.test), c.test.y) for c in clients_of(snapshots)]
    score = calibration_of_clients(pairs)
    ways = one(findings, "calibration", snapshot="after").result["ways"]
    assert list(ways) == ["predict"]
    assert ways["predict"]["ece"] == score.pooled.ece
    assert ways["predict"]["clients"]["ece"][1] == score.clients[1].ece


def clients_of(snapshots: Snapshots) -> Iterator[Any]:
    return map(snapshots.client, snapshots.ids)


def test_the_pooled_code_is_of_everybodys_own_rows(
    snapshots: Snapshots, findings: list[Finding]
) -> None:
    """100 rows over 3 clients: 33 of each, through the model of each."""
    line = one(findings, "mdl", layer="head", data="pooled").result
    assert (line["clients"], line["n"]) == ([-1], [99])
    assert line["after"]["bits"][0] < line["before"]["bits"][0]


def test_an_extractor_all_share_is_coded_once(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balanced rows: one code before for all 3 clients and 3 after, for each of 3 layers; own rows
    6 for each layer, the pool 2."""
    coded: list[object] = []

    def counted(z: Any, y: Any, classes: int, **settings: Any) -> Any:
        coded.append(z)
        return mdl_online(z, y, classes, **settings)

    monkeypatch.setitem(mdl.ESTIMATORS, "online", counted)
    study(snapshots, "mdl")
    assert len(coded) == 3 * (1 + 3 + 6 + 2)


def test_a_stochastic_method_is_scored_in_four_ways_and_as_adapted() -> None:
    result = fl.run("fedcr(dim=6, samples=3, adapt_epochs=1)", partition=TWO_CLASSES, **SMALL)
    lines = study(Snapshots.of(result, rows=60, clients=2), "calibration, ellipses")
    scored = [f for f in lines if f.name == "calibration"]
    assert [f.snapshot for f in scored] == ["before", "after", "final"]
    for line in scored:
        ways = line.result["ways"]
        assert list(ways) == ["predict", "single", "probability_average", "logit_average"]
        assert line.settings["members"] == 3
        assert 0 <= line.result["disagreement"] <= 1
    assert {f.layer for f in lines if f.name == "ellipses"} == {"body", "gauss"}


def test_two_dimensional_gaussians_are_shown_as_they_are() -> None:
    """FedCR's Figure 2: features of two dimensions need no projection, so points are features."""
    result = fl.run("fedcr(dim=2, samples=3, adapt_epochs=0)", partition=TWO_CLASSES, **SMALL)
    snapshots = Snapshots.of(result, rows=60, clients=1)
    drawn = one(study(snapshots, "ellipses"), "ellipses", layer="gauss").result
    assert drawn["explained"] == 1
    client = snapshots.client(0)
    assert client.test is not None
    z = client.after.features(client.test)["gauss"]
    panel = next(p for p in drawn["panels"] if p["snapshot"] == "after")
    torch.testing.assert_close(torch.tensor(panel["points"]), z, atol=1e-4, rtol=0)
    first = panel["ellipses"][0]
    rows = z[client.test.y == first["label"]].double()
    assert first["n"] == len(rows)
    assert first["mean"] == pytest.approx(rows.mean(0).tolist())


def test_validation_rows_give_a_temperature() -> None:
    result = fl.run("fedavg", split="merged(train=0.6, val=0.2)", **SMALL)
    line = one(
        study(Snapshots.of(result, clients=2), "calibration"), "calibration", snapshot="after"
    )
    temperature, ways = line.result["temperature"], line.result["ways"]
    assert temperature["value"] > 0
    assert ways["tempered"]["accuracy"] == ways["predict"]["accuracy"]
    assert ways["tempered"]["ece"] != ways["predict"]["ece"]


# ------------------------------------------------------------------ what cannot be measured


def test_the_table_holds_numbers_against_what_compares(findings: list[Finding]) -> None:
    """On own rows bits per label: 30/20 and 10/40 are .875 in the mean, labels alone 40/20 and
    20/40 are 1.25. A client without unseen classes has no share of them, so that a uniform guess is
    that of the other: .2."""
    mdl = one(findings, "mdl", layer="head", data="local-test")
    zeros = [0.0, 0.0]
    coded = {"bits": [30.0, 10.0], "nats": zeros, "per_sample": zeros, "ratio": zeros}
    numbers = {"n": [20, 40], "prior_bits": [40.0, 20.0], "before": coded, "after": coded}
    bias = one(findings, "classifier_bias", settings=bias_settings(findings, 1))
    seen = {"blind": [0.2, 1.0], "n_unseen": [80, 0]}
    table = findings_table(
        [
            replace(mdl, result={**mdl.result, **numbers}),
            one(findings, "mdl", layer="head", data="bal"),
            replace(bias, result={**bias.result, **seen}),
        ]
    )
    columns = [list(map(str, column.cells)) for column in table.columns]
    assert columns[0] == ["MDL, bits per label", "MDL, bits", "unseen called seen"]
    assert (columns[3][0], columns[4][0]) == ("0.875", "0.875")
    assert columns[5] == ["labels alone: 1.25", "uniform code: 332", "uniform guess: 0.2"]


def test_unlike_networks_are_compared_where_that_makes_sense() -> None:
    """CKA takes features of any width; a common probe or plane needs one."""
    settings = {**SMALL, "model": "mlp(hidden=[5]) | mlp(hidden=[7])"}
    snapshots = Snapshots.of(fl.run("local", **settings), rows=60, clients=4)
    lines = study(snapshots, "mdl, cka, tsne, ellipses")
    assert snapshots.ids == [0, 1, 2, 4]
    assert len(one(lines, "cka", layer="body", snapshot="after").result["matrix"]) == 4
    assert one(lines, "cka", layer="body", snapshot="after").settings["width"] == [5, 7]
    for name in ("tsne", "ellipses"):
        assert "different networks" in str(one(lines, name).skipped)
    heads = [f.layer for f in lines if f.name == "mdl" and f.data == "pooled"]
    assert heads == ["head"]  # ten logits everywhere


def test_who_saw_all_classes_has_no_unseen_ones() -> None:
    result = fl.run("fedavg", partition="iid", **SMALL)
    lines = study(Snapshots.of(result, rows=60, clients=2), "overlap, drift, classifier_bias")
    assert "rows it needs" in str(one(lines, "overlap").skipped)
    assert one(lines, "drift", layer="body").result["mean"]["unseen"]["cosine"] is None
    bias = next(f for f in lines if f.name == "classifier_bias").result
    assert bias["after"]["seen_mass"] == [None, None]
    assert bias["after"]["predicted"] == [[None] * 10] * 2
    assert sum(bias["after"]["predicted_all"][0]) == pytest.approx(1)


def test_a_model_that_diverged_spoils_no_other_diagnostic(fedavg: Result) -> None:
    """Weights that are not numbers: features say so in one sentence, counts still work."""
    server = {"model": {k: torch.full_like(v, math.nan) for k, v in fedavg.server["model"].items()}}
    diverged = Snapshots(fedavg.experiment, server, {}, fedavg.records, rows=60, count=2)
    lines = study(diverged, "cka, separation")
    assert [f.name for f in lines] == ["cka", "separation"]
    for line in lines:
        assert line.skipped
        assert "\n" not in line.skipped


def test_names_are_checked(tmp_path: Path) -> None:
    """Also those of a run, before its first round: nothing is written."""
    assert chosen(None) == tuple(diagnostics())
    assert chosen("separation , cka") == ("cka", "separation")
    with pytest.raises(UnknownName, match="did you mean 'cka'"):
        chosen("ckaa")
    with pytest.raises(BadInput, match="no diagnostic is named"):
        chosen(" , ")
    with pytest.raises(UnknownName, match="did you mean 'separation'"):
        fl.run("fedavg", diagnose="cka, seperation", out=str(tmp_path / "run"), **SMALL)
    assert not (tmp_path / "run").exists()


def test_unknown_estimators_and_probes_are_refused(snapshots: Snapshots) -> None:
    for options in (Options(estimator="onlin"), Options(probe="rigde")):
        with pytest.raises(UnknownName, match="did you mean"):
            study(snapshots, "mdl", options=options)


# ------------------------------------------------------------------ the shape of lines

COMMON = {"round", "name", "snapshot", "layer", "data", "settings", "result"}
SETTINGS = {"rows", "seed", "clients", "clients_in_run", "rows_sha256"}
CODE = {"bits", "nats", "per_sample", "ratio"}
RATIOS = {
    *("largest", "mean", "percentile90", "null_largest", "null_mean", "dead", "within_classes"),
    *("null_within_classes", "discriminant", "null_discriminant"),
}
BIAS = {
    *("seen_mass", "seen_mass_soft", "seen_mass_noise", "entropy", "distance_to_labels"),
    *("distance_noise", "unseen_recall", "seen_recall", "seen_recall_restricted"),
    *("prior_correlation", "prior_divergence", "distance_to_uniform", "uniform_noise"),
}
TABLES = {"predicted", "mean_softmax", "predicted_all"}
# name -> (keys of the result, columns of before and after)
SHAPES: dict[str, tuple[set[str], set[str]]] = {
    "mdl": (
        {"n", "uniform_bits", "prior_bits", "change_percent", "mean_change_percent", "curve"},
        CODE,
    ),
    "separation": ({"n", "classes"}, {"value", "null", "debiased"}),
    "fisher": ({"n"}, RATIOS),
    "overlap": (
        {"n", "null_eta2", "auc_noise", "rho", "centroid_ratio"},
        {"eta2", "auc", "a_distance", "cross_neighbours", "energy"},
    ),
    "classifier_bias": (
        {"seen", "train_counts", "blind", "n_unseen", "n_seen", "classes", "class_names"},
        BIAS | TABLES,
    ),
    "global_accuracy": ({"aggregated", "chance", "n"}, {"accuracy", "noise"}),
}
PLAIN: dict[str, set[str]] = {
    "cka": {"clients", "matrix", "mean", "smallest", "largest", "null", "debiased_mean", "n"},
    "drift": {"clients", "all", "seen", "unseen", "mean"},
    "calibration": {"clients", "ways", "disagreement", "temperature"},
    "tsne": {
        *("points", "labels", "clients", "snapshots", "n", "different_rows", "explained"),
        *("divergence", "iterations", "purity", "silhouette"),
    },
    "ellipses": {"explained", "panels"},
}


def test_lines_have_the_shape_that_users_know(findings: list[Finding]) -> None:
    assert tuple(dict.fromkeys(f.name for f in findings)) == tuple(diagnostics())
    for line in findings:
        record = dump(line)
        assert json.loads(json.dumps(record, allow_nan=False)) == record
        assert set(record) == COMMON
        assert record["settings"].keys() >= SETTINGS
        assert (record["layer"] is None) == ("width" not in record["settings"])
        assert (record["data"] == "bal") == (record["settings"]["rows_sha256"] is not None)
        result = record["result"]
        if line.name in PLAIN:
            assert set(result) == PLAIN[line.name]
            continue
        beside, columns = SHAPES[line.name]
        assert set(result) == beside | {"clients", "before", "after", "mean"}
        for when in ("before", "after"):
            assert set(result[when]) == columns
            assert all(len(v) == len(result["clients"]) for v in result[when].values())
            assert set(result["mean"][when]) == columns - TABLES


def test_pictures_name_every_point(snapshots: Snapshots, findings: list[Finding]) -> None:
    picture = one(findings, "tsne").result
    columns = ("points", "labels", "clients", "snapshots")
    assert {len(picture[key]) for key in columns} == {picture["n"]}
    half = picture["n"] // 2
    assert picture["snapshots"].count("before") == picture["snapshots"].count("after") == half
    assert set(picture["clients"]) == set(snapshots.ids)
    purity = picture["purity"]["client_within_class"]
    assert set(purity) == {"before", "after", "null", "k"}


def test_results_are_read_back_as_their_types(findings: list[Finding]) -> None:
    for finding in findings:
        reading = read(finding)
        assert (reading.round, reading.layer) == (finding.round, finding.layer)
        assert type(reading.result) is diagnostics()[finding.name].result
        assert jsonable(dump(reading.result)) == finding.result
    broken = replace(one(findings, "global_accuracy"), result={"clients": [0]})
    with pytest.raises(RunFolderError, match="result of global_accuracy in round 2") as caught:
        read(broken)
    assert "\n" not in str(caught.value)
    with pytest.raises(UnknownName, match="did you mean 'cka'"):
        read(replace(findings[0], name="ckaa"))


def test_every_diagnostic_has_its_place_and_its_line_in_the_docs() -> None:
    places = [diagnostic.order for diagnostic in diagnostics().values()]
    assert places == sorted(set(places))
    page = (Path(__file__).parents[2] / "docs" / "diagnostics.md").read_text()
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert listed == list(diagnostics())


# ------------------------------------------------------------------ while a run goes on

RECORDED: dict[str, Any] = {
    **SMALL,
    "partition": TWO_CLASSES,
    "rounds": 5,
    "checkpoint_every": 2,
    "diagnose": "cka,separation",
    "diagnose_every": 2,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("recorded") / "run"
    return out, fl.run("fedper", out=str(out), **RECORDED)


def test_recording_changes_no_byte_of_the_run(recorded: tuple[Path, Result]) -> None:
    """Rounds 2, 4 and the last one; the last lines are those of a study of the result."""
    out, result = recorded
    silent = {k: v for k, v in RECORDED.items() if not k.startswith("diagnose")}
    without = fl.run("fedper", **silent)
    assert without.summary.state_sha256 == result.summary.state_sha256
    assert [r.loss for r in without.records] == [r.loss for r in result.records]
    assert [r.scores for r in without.records] == [r.scores for r in result.records]
    lines = read_records(out / "diagnostics.jsonl", Finding)
    assert lines == list(result.diagnostics)
    assert sorted({line.round for line in lines}) == [2, 4, 5]
    assert not without.diagnostics
    of_result = study(Snapshots.of(result), "cka,separation")
    assert [line for line in lines if line.round == 5] == of_result


def test_a_run_that_goes_on_has_the_lines_of_an_undisturbed_one(
    recorded: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the midst of the diagnosis of round 4, with a checkpoint of that round; then the
    newest checkpoint is lost, and lines of rounds after the older one are made again."""
    out = tmp_path / "run"

    def interrupted(snapshots: Snapshots, only: Any) -> list[Finding]:
        if snapshots.round == 4:
            raise KeyboardInterrupt
        return study(snapshots, only)

    monkeypatch.setattr(recorder, "study", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedper", out=str(out), **RECORDED)
    monkeypatch.undo()
    assert rounds_of(out) == {2}
    resume(out)
    undisturbed = (recorded[0] / "diagnostics.jsonl").read_bytes()
    assert (out / "diagnostics.jsonl").read_bytes() == undisturbed
    newest = max((out / "checkpoints").glob("step-*"))
    (newest / "manifest.json").unlink()
    again = resume(out)
    assert again.warnings
    assert (out / "diagnostics.jsonl").read_bytes() == undisturbed


def rounds_of(out: Path) -> set[int]:
    lines = (out / "diagnostics.jsonl").read_text().splitlines()
    return {json.loads(line)["round"] for line in lines}


class StopAfter(Watcher):
    """Ends the training after a round."""

    def __init__(self, t: int) -> None:
        self.t = t

    def step(self, run: RunView, record: RoundRecord) -> Stop | None:
        return Stop("seen enough") if record.round == self.t else None


def test_a_run_that_a_watcher_ends_is_measured_at_its_end(tmp_path: Path) -> None:
    """Of five rounds two and four are due, but it ends after the third."""
    out = tmp_path / "run"
    result = fl.run("fedper", out=str(out), watchers=[StopAfter(3)], **RECORDED)
    assert sorted({finding.round for finding in result.diagnostics}) == [2, 3]
    assert read_records(out / "diagnostics.jsonl", Finding) == list(result.diagnostics)
    assert Snapshots.of(result).round == Snapshots.of(out).round == 3


def test_states_kept_elsewhere_cannot_be_recorded(tmp_path: Path) -> None:
    """As on engine flower; nothing is written then."""

    class Elsewhere(Inline):
        keeps_states = True

    out = tmp_path / "run"
    config = RunConfig.checked({**RECORDED, "out": str(out)})
    with pytest.raises(BadInput, match="leave out diagnose") as caught:
        start(Experiment.build(config), Elsewhere())
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_overwriting_a_run_takes_its_diagnostics_along(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    short = {**RECORDED, "rounds": 1}
    fl.run("fedavg", out=out, **short)
    assert rounds_of(tmp_path / "run") == {1}
    short.pop("diagnose")
    fl.run("fedavg", out=out, overwrite=True, **short)
    assert not (tmp_path / "run" / "diagnostics.jsonl").exists()


# ------------------------------------------------------------------ the command


def test_the_command_replaces_lines_of_its_round_and_name(
    recorded: tuple[Path, Result], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    fl.run("fedper", out=str(out), **{**RECORDED, "rounds": 3})
    before = (out / "diagnostics.jsonl").read_text().splitlines()
    flags = (out, "--only", "global_accuracy,cka", "--rows", "60", "--clients", "2")
    done = fedloom("diagnose", *flags)
    assert (done.code, "CKA between clients" in done.out) == (0, True)
    first = (out / "diagnostics.jsonl").read_text().splitlines()
    heads = [(r["round"], r["name"], r["settings"]["rows"]) for r in map(json.loads, first)]
    assert heads == [
        *[(2, "cka", 500)] * 6,
        *[(2, "separation", 500)] * 3,
        *[(3, "cka", 60)] * 6,
        *[(3, "separation", 500)] * 3,
        (3, "global_accuracy", 60),
    ]
    assert first[:9] == [line for line in before if json.loads(line)["round"] == 2]
    record = fedloom("diagnose", *flags, "--json").record
    assert len(record["findings"]) == 7
    assert (out / "diagnostics.jsonl").read_text().splitlines() == first


def test_the_table_shows_every_diagnostic(recorded: tuple[Path, Result]) -> None:
    done = fedloom("diagnose", recorded[0], "--rows", "60", "--clients", "2")
    assert done.code == 0
    for words in ("MDL, bits", "separation, R2", "Fisher", "drift", "unseen", "ECE", "ellipses"):
        assert words in done.out


def test_the_command_fails_in_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "run"
    nothing = fedloom("diagnose", tmp_path / "none")
    assert (nothing.code, "there is no run" in nothing.err) == (1, True)
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedavg", out=str(out), watchers=[StopAt(1)], **SMALL)
    unknown = fedloom("diagnose", out, "--only", "ckaa")
    assert (unknown.code, "did you mean 'cka'" in unknown.err) == (1, True)
    for file in (out / "checkpoints").rglob("manifest.json"):
        file.write_text("{}")
    damaged = fedloom("diagnose", out)
    assert (damaged.code, "damaged" in damaged.err) == (1, True)
    assert len(damaged.err.strip().splitlines()) == 1
    assert not (out / "diagnostics.jsonl").exists()


def test_the_package_offers_functions_by_name() -> None:
    x = torch.eye(4)
    assert fl.analysis.linear_cka(x, x).value == pytest.approx(1)
    assert fl.analysis.calibration(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).ece == 0
    assert fl.diagnose.study is study
    assert all(callable(getattr(fl.analysis, name)) for name in dir(fl.analysis))
    with pytest.raises(AttributeError, match="linear_kca"):
        _ = fl.analysis.linear_kca


def test_states_are_left_as_they_were(fedavg: Result, findings: list[Finding]) -> None:
    assert findings
    assert state_sha256(fedavg.server, fedavg.clients) == fedavg.summary.state_sha256
