"""The numbers of a report against runs whose accuracies were written by hand."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path

import pytest
from folders import write_run
from pandas import read_csv

import fedloom as fl
from fedloom.launch.tables import OverSeeds
from fedloom.record import At
from fedloom.report import numbers
from fedloom.report.curves import mean_curve
from fedloom.report.export import csv_of
from fedloom.report.groups import MethodRuns, RunGroup, group_runs
from fedloom.report.runs import StoredRun, find_runs
from helpers import digits, with_shared_tests

SEVEN = [(0.5, 0.1), (0.6, 0.3), (0.7, 0.2), (0.8, 0.5), (0.7, 0.6), (0.9, 0.4), (0.6, 0.6)]
"""Means .30 .45 .45 .65 .65 .65 .60; lowest .1 .3 .2 .5 .6 .4 .6."""


def one_group(path: Path) -> RunGroup:
    (group,) = group_runs(find_runs([path]))
    return group


def row(group: RunGroup, label: str) -> MethodRuns:
    return next(r for r in group.rows if r.label == label)


def test_accuracies_of_one_method(tmp_path: Path) -> None:
    """Best five of the means: (.65 + .65 + .65 + .60 + .45)/5 = .60; of the lowest:
    (.6 + .6 + .5 + .4 + .3)/5 = .48. There are no ten last rounds."""
    write_run(tmp_path / "a", curve=SEVEN)
    line = numbers.accuracy_line(one_group(tmp_path).rows[0])
    assert line.accuracy == OverSeeds(pytest.approx(0.6), None)
    assert line.best_five == OverSeeds(pytest.approx(0.60), None)
    assert line.worst_best_five == OverSeeds(pytest.approx(0.48), None)
    assert line.last_ten is None
    assert line.worst == OverSeeds(pytest.approx(0.6), None)


def test_a_curve_of_another_model_than_the_result_gives_no_numbers(tmp_path: Path) -> None:
    """fedavg_ft reports clients' fine-tuned models, scored once; its curve is that of fedavg, whose
    best rounds and way to a target are not fedavg_ft's."""
    data = digits(((0, 1), 12), ((2, 3), 20), ((0, 4), 8))
    for method in ("fedavg", "fedavg_ft"):
        fl.run(method, data, rounds=6, lr=0.5, out=str(tmp_path / method))
    group = one_group(tmp_path)
    plain, tuned = row(group, "fedavg"), group.rows[1]
    assert (plain.runs[0].result_at, tuned.runs[0].result_at) == (
        At("received", "test"),
        At("final", "test"),
    )
    curves = [r.runs[0].curve().accuracy for r in (plain, tuned)]
    assert curves[0] == curves[1]
    assert numbers.default_targets(group) == curves[0][-1:]
    line = numbers.accuracy_line(tuned)
    assert line.accuracy == OverSeeds(tuned.runs[0].summary.accuracy, None)  # type: ignore[index]
    assert line.worst is not None
    assert line.best_five is line.worst_best_five is line.last_ten is None
    target = min(curves[0])
    assert numbers.target_line(tuned, target, plain) == numbers.TargetLine(target, None, None, None)
    beside = numbers.accuracy_line(plain)
    assert beside.best_five == OverSeeds(pytest.approx(sum(sorted(curves[0])[1:]) / 5), None)
    assert numbers.target_line(plain, target, plain).speed_up == 1.0


def test_spread_over_seeds_is_that_of_a_sample(tmp_path: Path) -> None:
    """Seeds end at .6 and .8: mean .7, sample deviation sqrt(2 x .01) = .1414."""
    write_run(tmp_path / "a0", curve=[(0.6, 0.6)], seed=0)
    write_run(tmp_path / "a1", curve=[(0.7, 0.9)], seed=1)
    line = numbers.accuracy_line(one_group(tmp_path).rows[0])
    assert line.accuracy == OverSeeds(pytest.approx(0.7), pytest.approx(math.sqrt(0.02)))
    assert line.worst == OverSeeds(pytest.approx(0.65), pytest.approx(math.sqrt(0.005)))


def test_cost_and_the_way_to_a_target(tmp_path: Path) -> None:
    """FedAvg's mean reaches .6 in round 4, the other in round 2: speed-up 2. A round moves
    (2 + 4)/2 = 3 MB for each of two clients, so 12 and 6 MB. A client sends 10 x 3 + 1 numbers."""
    write_run(tmp_path / "a", "fedavg", SEVEN)
    write_run(tmp_path / "b", "fedper", [(0.5, 0.5), (0.7, 0.6), *SEVEN[2:]])
    group = one_group(tmp_path)
    fedavg = row(group, "fedavg")
    lines = {r.label: numbers.cost_line(r, [0.6, 0.95], fedavg) for r in group.rows}
    reached = {label: line.targets[0] for label, line in lines.items()}
    assert reached["fedavg"] == numbers.TargetLine(0.6, 4, pytest.approx(12.0), 1.0)
    assert reached["fedper"] == numbers.TargetLine(0.6, 2, pytest.approx(6.0), 2.0)
    assert lines["fedavg"].targets[1] == numbers.TargetLine(0.95, None, None, None)
    assert lines["fedavg"].parameters == 31
    assert lines["fedavg"].megabytes_up == OverSeeds(pytest.approx(7.0), None)
    assert lines["fedavg"].megabytes_down == OverSeeds(pytest.approx(14.0), None)
    assert lines["fedavg"].seconds == OverSeeds(14.0, None)
    assert lines["fedavg"].round_seconds == OverSeeds(2.0, None)


def test_half_of_the_seeds_decide_whether_a_target_is_reached(tmp_path: Path) -> None:
    """Reached in rounds 1 and 2 and never: the median is 2; never by two of three: never."""
    for seed, curve in enumerate([[(0.9,), (0.9,)], [(0.1,), (0.9,)], [(0.1,), (0.1,)]]):
        write_run(tmp_path / f"a{seed}", curve=curve, seed=seed)
    three = one_group(tmp_path).rows[0]
    assert numbers.target_line(three, 0.8, None).rounds == 2
    late = MethodRuns("late", three.runs[1:] + three.runs[2:])
    assert numbers.target_line(late, 0.8, None).rounds is None


def test_the_target_is_what_fedavg_reached_in_every_seed(tmp_path: Path) -> None:
    write_run(tmp_path / "a0", "fedavg", [(0.9,), (0.6,)], seed=0)
    write_run(tmp_path / "a1", "fedavg", [(0.1,), (0.7,)], seed=1)
    write_run(tmp_path / "b0", "local", [(0.1,), (0.2,)], seed=0)
    group = one_group(tmp_path)
    assert numbers.default_targets(group) == [pytest.approx(0.6)]
    without = RunGroup([r for r in group.rows if r.label != "fedavg"])
    assert numbers.default_targets(without) == [pytest.approx(0.2)]


def test_few_rounds_have_no_best_five(tmp_path: Path) -> None:
    write_run(tmp_path / "five", "fedavg", SEVEN[:5], seed=0)
    line = numbers.accuracy_line(one_group(tmp_path).rows[0])
    assert line.best_five is line.worst_best_five is line.last_ten is None
    write_run(tmp_path / "ten" / "a", "fedavg", [*SEVEN, *SEVEN[:3]])
    line = numbers.accuracy_line(one_group(tmp_path / "ten").rows[0])
    assert line.last_ten == OverSeeds(pytest.approx((3.75 + 1.2) / 10), None)


def test_newcomers_are_read_from_the_summary(tmp_path: Path) -> None:
    """.4 and .8 in one seed, .6 and .4 in the other: .6 and .5, and clients .5 and .6."""
    write_run(tmp_path / "a0", joined=(0.4, 0.8), seed=0)
    write_run(tmp_path / "a1", joined=(0.6, 0.4), seed=1)
    (row,) = one_group(tmp_path).rows
    line = numbers.accuracy_line(row)
    assert line.newcomers == OverSeeds(pytest.approx(0.55), pytest.approx(math.sqrt(0.005)))
    means = numbers.newcomer_means(row)
    assert {cid: result.accuracy for (_, cid), result in means.items()} == pytest.approx(
        {2: 0.5, 3: 0.6}
    )
    assert row.runs[0].clients == 2


def test_single_heads_are_of_every_client(tmp_path: Path) -> None:
    write_run(tmp_path / "a0", heads={"generic_head": (0.1, 0.3)}, seed=0)
    write_run(tmp_path / "a1", heads={"generic_head": (0.3, 0.5)}, seed=1)
    (means,) = numbers.head_means(one_group(tmp_path).rows[0]).values()
    assert [result.accuracy for result in means.values()] == pytest.approx([0.2, 0.4])


def test_single_heads_are_of_the_last_of_several_rounds(tmp_path: Path) -> None:
    """Protocol dualfed takes every client's best round, so all rounds count."""
    data = digits(((0, 1), 12), ((2, 3), 20), ((0, 4), 8))
    fl.run("fedrod", data, rounds=3, protocol="dualfed", lr=0.5, out=str(tmp_path / "run"))
    run = StoredRun.read(tmp_path / "run")
    assert run.summary is not None
    assert run.summary.result.rounds == (1, 2, 3)
    heads = [record.score(At("received", "test", "generic_head")) for record in run.records]
    first, last = (score.by_client() for score in (heads[0], heads[-1]) if score is not None)
    assert first != last
    assert {c: r.accuracy for c, r in run.single_heads["generic_head"].items()} == last


def test_a_curve_is_the_mean_of_its_seeds_in_a_band_between_them(tmp_path: Path) -> None:
    """Means over clients .5, .6 and .3, .8."""
    write_run(tmp_path / "a0", curve=[(0.4, 0.6), (0.5, 0.7)], seed=0)
    write_run(tmp_path / "a1", curve=[(0.3, 0.3), (0.8, 0.8)], seed=1)
    curve = mean_curve(one_group(tmp_path).rows[0], At("received", "test"))
    assert curve.rounds == [1, 2]
    assert curve.accuracy == pytest.approx([0.4, 0.7])
    assert curve.low == pytest.approx([0.3, 0.6])
    assert curve.high == pytest.approx([0.5, 0.8])


def test_the_csv_tells_seeds_from_clients(tmp_path: Path) -> None:
    """Clients at .5, .7 and at .6, 1: means .6 and .8 with deviation sqrt(2 x .01) between seeds;
    between clients .1 and .2, whose mean is .15."""
    write_run(tmp_path / "a0", curve=[(0.5, 0.7)], seed=0)
    write_run(tmp_path / "a1", curve=[(0.6, 1.0)], seed=1)
    (line,) = read_csv(StringIO(csv_of([one_group(tmp_path)]))).to_dict("records")
    assert (line["accuracy_seed_0"], line["accuracy_seed_1"]) == pytest.approx((0.6, 0.8))
    assert line["accuracy"] == pytest.approx(0.7)
    assert line["accuracy_std_over_seeds"] == pytest.approx(math.sqrt(0.02))
    assert line["std_over_clients"] == pytest.approx(0.15)


# ------------------------------------------------------------------ significance

AHEAD = [(0.52, 0.55), (0.51, 0.53), (0.53, 0.54)]
"""Less .5: .02 .05, .01 .03, .03 .04."""


def write_pair(path: Path, own_partitions: bool) -> RunGroup:
    for seed, values in enumerate(AHEAD):
        where = seed if own_partitions else 0
        write_run(path / f"a{seed}", "fedavg", [(0.5, 0.5)], seed=seed, partition=where)
        write_run(path / f"b{seed}", "fedper", [values], seed=seed, partition=where)
    return one_group(path)


def test_the_same_partition_is_crossed(tmp_path: Path) -> None:
    """The example of `analysis.significance.compare`: mean .03, p .169."""
    group = write_pair(tmp_path, own_partitions=False)
    test = numbers.paired(row(group, "fedper"), row(group, "fedavg"))
    assert test is not None
    assert test.mean == pytest.approx(0.03)
    assert test.p == pytest.approx(0.169, abs=0.001)
    assert test.test.startswith("crossed")


def test_partitions_of_their_own_are_nested(tmp_path: Path) -> None:
    """Seeds' means .035, .02, .035: mean .03, deviation .00866, error .005, t = 6 with 2 degrees
    of freedom: p = 1 - 6/sqrt(38) = .0267."""
    group = write_pair(tmp_path, own_partitions=True)
    test = numbers.paired(row(group, "fedper"), row(group, "fedavg"))
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
    group = one_group(tmp_path)
    best = numbers.best_row(group)
    assert best is row(group, "fedper")
    tests = numbers.comparisons(group, [best, row(group, "fedavg")])
    assert set(tests) == {("fedavg", "fedper"), ("local", "fedper"), ("local", "fedavg")}
    p = 3 * (1 - 6 / math.sqrt(38))
    assert tests["fedavg", "fedper"].holm == pytest.approx(p)
    assert tests["local", "fedper"].holm == pytest.approx(p)
    assert math.isnan(tests["local", "fedavg"].holm)
    low, high = tests["fedavg", "fedper"].interval
    assert low < 0 < high  # as 3 p = .08 says, though p = .027 alone would not
    alone = numbers.comparisons(group, [row(group, "fedavg")])["fedper", "fedavg"]
    assert alone.test is not None
    assert alone.test.interval[0] > 0


def test_only_common_seeds_of_ended_runs_are_paired(tmp_path: Path) -> None:
    write_run(tmp_path / "a0", "fedavg", [(0.5, 0.5)], seed=0)
    write_run(tmp_path / "a1", "fedavg", [(0.5, 0.5)], seed=1)
    write_run(tmp_path / "b1", "fedper", [(0.6, 0.8)], seed=1)
    write_run(tmp_path / "b2", "fedper", [(0.9, 0.9)], seed=2)
    write_run(tmp_path / "c0", "ditto", [(0.9, 0.9)], seed=0, ended=False)
    group = one_group(tmp_path)
    test = numbers.paired(row(group, "fedper"), row(group, "fedavg"))
    assert test is not None
    assert (test.seeds, test.mean) == (1, pytest.approx(0.2))
    assert math.isnan(test.p)
    assert numbers.paired(row(group, "ditto"), row(group, "fedavg")) is None
    assert numbers.best_row(group) is row(group, "fedper")


# ------------------------------------------------------------------ clients


def test_gains_over_local(tmp_path: Path) -> None:
    """Mean over seeds .7 and .4 against .5 and .5, 100 rows: +.2 with error
    sqrt((.21 + .25)/100) = .068 is clear, -.1 with sqrt((.24 + .25)/100) = .07 is not."""
    for seed, values in enumerate([(0.6, 0.5), (0.8, 0.3)]):
        write_run(tmp_path / f"a{seed}", "local", [(0.5, 0.5)], seed=seed)
        write_run(tmp_path / f"b{seed}", "fedper", [values], seed=seed)
    group = one_group(tmp_path)
    line = numbers.gains(row(group, "fedper"), row(group, "local"))
    assert line is not None
    assert [cid for _, cid in line.clients] == [0, 1]
    assert line.gain.gains == pytest.approx((0.2, -0.1))
    assert line.gain.errors == pytest.approx((math.sqrt(0.0046), math.sqrt(0.0049)))
    assert (line.gain.helped, line.gain.harmed) == (0.5, 0.0)


def test_clients_of_other_partitions_are_other_clients(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", "local", [(0.5,)], seed=seed, partition=seed)
    means = numbers.client_means(one_group(tmp_path).rows[0])
    assert len(means) == 2


def test_a_run_without_a_scored_round_has_no_numbers(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", ended=False)
    (path / "metrics.jsonl").write_text("")
    group = one_group(tmp_path)
    line = numbers.accuracy_line(group.rows[0])
    assert line.accuracy is None
    assert line.best_five is None
    assert numbers.default_targets(group) == []
    assert numbers.cost_line(group.rows[0], [0.5], None).targets[0].rounds is None
    assert numbers.best_row(group) is None


THREE = with_shared_tests(digits(((0, 1), 12), ((2, 3), 20), ((0, 4), 8)))


def test_test_sets_are_not_compared_with_clients(tmp_path: Path) -> None:
    """Protocol fedbr tests FedAvg's global model on two sets, and Local's three models on both."""
    out = str(tmp_path)
    fl.compare(["fedavg", "local", "fedper"], THREE, seeds=[0], rounds=1, protocol="fedbr", out=out)
    group = one_group(tmp_path)
    fedavg, local, fedper = (row(group, label) for label in ("fedavg", "local", "fedper"))
    assert numbers.gains(fedavg, local) is None
    assert numbers.paired(fedavg, local) is None
    gain = numbers.gains(fedper, local)
    assert gain is not None
    assert [cid for _, cid in gain.clients] == [0, 1, 2]
    names = [fedavg.runs[0].name_of(1), local.runs[0].name_of(1)]
    assert names == ["high", "1"]


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
    fl.run(method, THREE, rounds=7, protocol=protocol, lr=0.5, out=str(tmp_path / "run"))
    run = StoredRun.read(tmp_path / "run")
    results = run.client_results.values()
    assert len(results) == (2 if protocol == "fedbr" else 3)
    assert run.on_shared_tests == (protocol == "fedbr")
    assert run.mean(run.client_results) == pytest.approx(run.accuracy, abs=1e-12)
    assert run.summary is not None
    assert run.accuracy == run.summary.accuracy
