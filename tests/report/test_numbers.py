"""The numbers of a report against runs whose accuracies were written by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from folders import write_run

import fedloom as fl
from fedloom.report import numbers
from fedloom.report.groups import Group, Row, group
from fedloom.report.runs import StoredRun, find_runs
from helpers import digits

SEVEN = [(0.5, 0.1), (0.6, 0.3), (0.7, 0.2), (0.8, 0.5), (0.7, 0.6), (0.9, 0.4), (0.6, 0.6)]
"""Means .30 .45 .45 .65 .65 .65 .60; lowest .1 .3 .2 .5 .6 .4 .6."""


def one_group(path: Path) -> Group:
    (found,) = group(find_runs([path]))
    return found


def row(found: Group, label: str) -> Row:
    return next(r for r in found.rows if r.label == label)


def test_accuracies_of_one_method(tmp_path: Path) -> None:
    """Best five of the means: (.65 + .65 + .65 + .60 + .45)/5 = .60; of the lowest:
    (.6 + .6 + .5 + .4 + .3)/5 = .48; all seven are among the last ten: 3.75/7."""
    write_run(tmp_path / "a", curve=SEVEN)
    line = numbers.accuracy_line(one_group(tmp_path).rows[0])
    assert line.accuracy == numbers.Spread(pytest.approx(0.6), None)
    assert line.best_five == numbers.Spread(pytest.approx(0.60), None)
    assert line.worst_best_five == numbers.Spread(pytest.approx(0.48), None)
    assert line.last_ten == numbers.Spread(pytest.approx(3.75 / 7), None)
    assert line.worst == numbers.Spread(pytest.approx(0.6), None)


def test_a_curve_of_another_model_than_the_result_gives_no_numbers(tmp_path: Path) -> None:
    """fedavg_ft reports clients' fine-tuned models, scored once; its curve is that of fedavg, whose
    best rounds and way to a target are not fedavg_ft's."""
    data = digits(((0, 1), 12), ((2, 3), 20), ((0, 4), 8))
    for method in ("fedavg", "fedavg_ft"):
        fl.run(method, data, rounds=3, lr=0.5, out=str(tmp_path / method))
    found = one_group(tmp_path)
    plain, tuned = row(found, "fedavg"), found.rows[1]
    assert (plain.runs[0].result_at, tuned.runs[0].result_at) == ("received/test", "final/test")
    curves = [r.runs[0].curve().accuracy for r in (plain, tuned)]
    assert curves[0] == curves[1]
    assert numbers.default_targets(found) == curves[0][-1:]
    line = numbers.accuracy_line(tuned)
    assert line.accuracy == numbers.Spread(tuned.runs[0].summary.accuracy, None)  # type: ignore[index]
    assert line.worst is not None
    assert line.best_five is line.worst_best_five is line.last_ten is None
    target = min(curves[0])
    assert numbers.target_line(tuned, target, plain) == numbers.TargetLine(target, None, None, None)
    beside = numbers.accuracy_line(plain)
    assert beside.best_five == numbers.Spread(pytest.approx(sum(curves[0]) / 3), None)
    assert numbers.target_line(plain, target, plain).speed_up == 1.0


def test_spread_over_seeds_is_that_of_a_sample(tmp_path: Path) -> None:
    """Seeds end at .6 and .8: mean .7, sample deviation sqrt(2 x .01) = .1414."""
    write_run(tmp_path / "a0", curve=[(0.6, 0.6)], seed=0)
    write_run(tmp_path / "a1", curve=[(0.7, 0.9)], seed=1)
    line = numbers.accuracy_line(one_group(tmp_path).rows[0])
    assert line.accuracy == numbers.Spread(pytest.approx(0.7), pytest.approx(math.sqrt(0.02)))
    assert line.worst == numbers.Spread(pytest.approx(0.65), pytest.approx(math.sqrt(0.005)))


def test_cost_and_the_way_to_a_target(tmp_path: Path) -> None:
    """FedAvg's mean reaches .6 in round 4, the other in round 2: speed-up 2. A round moves
    (2 + 4)/2 = 3 MB for each of two clients, so 12 and 6 MB. A client sends 10 x 3 + 1 numbers."""
    write_run(tmp_path / "a", "fedavg", SEVEN)
    write_run(tmp_path / "b", "fedper", [(0.5, 0.5), (0.7, 0.6), *SEVEN[2:]])
    found = one_group(tmp_path)
    fedavg = row(found, "fedavg")
    lines = {r.label: numbers.cost_line(r, [0.6, 0.95], fedavg) for r in found.rows}
    reached = {label: line.targets[0] for label, line in lines.items()}
    assert reached["fedavg"] == numbers.TargetLine(0.6, 4, pytest.approx(12.0), 1.0)
    assert reached["fedper"] == numbers.TargetLine(0.6, 2, pytest.approx(6.0), 2.0)
    assert lines["fedavg"].targets[1] == numbers.TargetLine(0.95, None, None, None)
    assert lines["fedavg"].parameters == 31
    assert lines["fedavg"].megabytes_up == numbers.Spread(pytest.approx(7.0), None)
    assert lines["fedavg"].megabytes_down == numbers.Spread(pytest.approx(14.0), None)
    assert lines["fedavg"].seconds == numbers.Spread(14.0, None)
    assert lines["fedavg"].round_seconds == numbers.Spread(2.0, None)


def test_half_of_the_seeds_decide_whether_a_target_is_reached(tmp_path: Path) -> None:
    """Reached in rounds 1 and 2 and never: the median is 2; never by two of three: never."""
    for seed, curve in enumerate([[(0.9,), (0.9,)], [(0.1,), (0.9,)], [(0.1,), (0.1,)]]):
        write_run(tmp_path / f"a{seed}", curve=curve, seed=seed)
    three = one_group(tmp_path).rows[0]
    assert numbers.target_line(three, 0.8, None).rounds == 2
    late = Row("late", three.runs[1:] + three.runs[2:])
    assert numbers.target_line(late, 0.8, None).rounds is None


def test_the_target_is_what_fedavg_reached_in_every_seed(tmp_path: Path) -> None:
    write_run(tmp_path / "a0", "fedavg", [(0.9,), (0.6,)], seed=0)
    write_run(tmp_path / "a1", "fedavg", [(0.1,), (0.7,)], seed=1)
    write_run(tmp_path / "b0", "local", [(0.1,), (0.2,)], seed=0)
    found = one_group(tmp_path)
    assert numbers.default_targets(found) == [pytest.approx(0.6)]
    without = Group([r for r in found.rows if r.label != "fedavg"])
    assert numbers.default_targets(without) == [pytest.approx(0.2)]


# ------------------------------------------------------------------ significance

AHEAD = [(0.52, 0.55), (0.51, 0.53), (0.53, 0.54)]
"""Less .5: .02 .05, .01 .03, .03 .04."""


def write_pair(path: Path, own_partitions: bool) -> Group:
    for seed, values in enumerate(AHEAD):
        where = seed if own_partitions else 0
        write_run(path / f"a{seed}", "fedavg", [(0.5, 0.5)], seed=seed, partition=where)
        write_run(path / f"b{seed}", "fedper", [values], seed=seed, partition=where)
    return one_group(path)


def test_the_same_partition_is_crossed(tmp_path: Path) -> None:
    """The example of `analysis.significance.compare`: mean .03, p .169."""
    found = write_pair(tmp_path, own_partitions=False)
    test = numbers.paired(row(found, "fedper"), row(found, "fedavg"))
    assert test is not None
    assert test.mean == pytest.approx(0.03)
    assert test.p == pytest.approx(0.169, abs=0.001)
    assert test.test.startswith("crossed")


def test_partitions_of_their_own_are_nested(tmp_path: Path) -> None:
    """Seeds' means .035, .02, .035: mean .03, deviation .00866, error .005, t = 6 with 2 degrees
    of freedom: p = 1 - 6/sqrt(38) = .0267."""
    found = write_pair(tmp_path, own_partitions=True)
    test = numbers.paired(row(found, "fedper"), row(found, "fedavg"))
    assert test is not None
    assert test.t == pytest.approx(6.0)
    assert test.p == pytest.approx(1 - 6 / math.sqrt(38))
    assert test.test.startswith("nested")


def test_holm_counts_every_pair_once(tmp_path: Path) -> None:
    """Best fedper; pairs fedavg-fedper, local-fedper, local-fedavg: fedper-fedavg is no fourth.
    local = fedavg everywhere, so that pair has no p but counts; local-fedper has the p of
    fedavg-fedper. Sorted p, p, NaN times 3, 2, 1: both 3 p."""
    write_pair(tmp_path, own_partitions=True)
    for seed in range(3):
        write_run(tmp_path / f"c{seed}", "local", [(0.5, 0.5)], seed=seed, partition=seed)
    found = one_group(tmp_path)
    best = numbers.best_row(found)
    assert best is row(found, "fedper")
    tests = numbers.comparisons(found, [best, row(found, "fedavg")])
    assert set(tests) == {("fedavg", "fedper"), ("local", "fedper"), ("local", "fedavg")}
    p = 3 * (1 - 6 / math.sqrt(38))
    assert tests["fedavg", "fedper"].holm == pytest.approx(p)
    assert tests["local", "fedper"].holm == pytest.approx(p)
    assert math.isnan(tests["local", "fedavg"].holm)


def test_only_common_seeds_of_ended_runs_are_paired(tmp_path: Path) -> None:
    write_run(tmp_path / "a0", "fedavg", [(0.5, 0.5)], seed=0)
    write_run(tmp_path / "a1", "fedavg", [(0.5, 0.5)], seed=1)
    write_run(tmp_path / "b1", "fedper", [(0.6, 0.8)], seed=1)
    write_run(tmp_path / "b2", "fedper", [(0.9, 0.9)], seed=2)
    write_run(tmp_path / "c0", "ditto", [(0.9, 0.9)], seed=0, ended=False)
    found = one_group(tmp_path)
    test = numbers.paired(row(found, "fedper"), row(found, "fedavg"))
    assert test is not None
    assert (test.seeds, test.mean) == (1, pytest.approx(0.2))
    assert math.isnan(test.p)
    assert numbers.paired(row(found, "ditto"), row(found, "fedavg")) is None
    assert numbers.best_row(found) is row(found, "fedper")


# ------------------------------------------------------------------ clients


def test_gains_over_local(tmp_path: Path) -> None:
    """Mean over seeds .7 and .4 against .5 and .5, 100 rows: +.2 with error
    sqrt((.21 + .25)/100) = .068 is clear, -.1 with sqrt((.24 + .25)/100) = .07 is not."""
    for seed, values in enumerate([(0.6, 0.5), (0.8, 0.3)]):
        write_run(tmp_path / f"a{seed}", "local", [(0.5, 0.5)], seed=seed)
        write_run(tmp_path / f"b{seed}", "fedper", [values], seed=seed)
    found = one_group(tmp_path)
    line = numbers.gains(row(found, "fedper"), row(found, "local"))
    assert line is not None
    assert [cid for _, cid in line.clients] == ["0", "1"]
    assert line.found.gains == pytest.approx((0.2, -0.1))
    assert line.found.errors == pytest.approx((math.sqrt(0.0046), math.sqrt(0.0049)))
    assert (line.found.helped, line.found.harmed) == (0.5, 0.0)


def test_clients_of_other_partitions_are_other_clients(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", "local", [(0.5,)], seed=seed, partition=seed)
    means = numbers.client_means(one_group(tmp_path).rows[0])
    assert len(means) == 2


def test_a_run_without_a_scored_round_has_no_numbers(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", ended=False)
    (path / "metrics.jsonl").write_text("")
    found = one_group(tmp_path)
    line = numbers.accuracy_line(found.rows[0])
    assert line.accuracy is None
    assert line.best_five is None
    assert numbers.default_targets(found) == []
    assert numbers.cost_line(found.rows[0], [0.5], None).targets[0].rounds is None
    assert numbers.best_row(found) is None


@pytest.mark.parametrize(
    ("method", "protocol"),
    [
        ("fedavg", "fedloom"),
        ("fedavg_ft", "fedloom"),  # its result is of the models adapted at the end
        ("fedper", "dbe"),
        ("fedper", "dualfed"),
        ("fedper", "fedpac"),
        ("fedavg", "fedbr"),
    ],
)
def test_clients_of_a_result_average_to_it(method: str, protocol: str, tmp_path: Path) -> None:
    """Whichever rounds a protocol chose, the clients' numbers are of those rounds."""
    data = digits(((0, 1), 12), ((2, 3), 20), ((0, 4), 8))
    y = np.asarray(data.source.y)
    shared = {"low": np.flatnonzero(y < 3)[-40:], "high": np.flatnonzero(y > 3)[-40:]}
    data = replace(data, partition=replace(data.partition, shared=shared))
    fl.run(method, data, rounds=7, protocol=protocol, lr=0.5, out=str(tmp_path / "run"))
    run = StoredRun.read(tmp_path / "run")
    scores = list(run.client_scores.values())
    assert len(scores) == (2 if protocol == "fedbr" else 3)
    weights = [n if run.value == "weighted" else 1 for _, n in scores]
    mean = sum(a * w for (a, _), w in zip(scores, weights, strict=True)) / sum(weights)
    assert run.summary is not None
    assert mean == pytest.approx(run.summary.accuracy, abs=1e-12)
    assert run.accuracy == run.summary.accuracy
