"""The parts of `fedloom check` and `fedloom advise` that need no training."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedloom as fl
from fedloom.advice.check import check
from fedloom.advice.duplicates import duplicates, on_both_sides
from fedloom.advice.evidence import weigh
from fedloom.advice.shortlist import shortlist
from fedloom.advice.skew import feature_skew, label_skew
from fedloom.core.metrics import metric
from fedloom.data.partition.assignment import ClientRows, Partition
from fedloom.errors import BadInput


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def federation(x: list[float], y: list[int], *clients: ClientRows) -> fl.FederatedData:
    source = fl.Source.from_arrays(np.array(x, np.float32)[:, None], y)
    return fl.FederatedData(source, Partition(clients, names=tuple("ABC"[: len(clients)])))


def normal_sites(shifts: list[float], size: int = 60) -> fl.FederatedData:
    """Two classes in eight columns; each client's inputs are shifted."""
    gen = np.random.default_rng(0)
    sites = []
    for shift in shifts:
        y = gen.integers(0, 2, size)
        sites.append((gen.standard_normal((size, 8)) + y[:, None] + shift, y))
    return fl.FederatedData.from_clients(sites)


# ------------------------------------------------------------------ duplicates


def test_equal_rows_are_counted_by_who_holds_them_and_what_for() -> None:
    """Inputs by row: 0 and 1 are equal (A trains on both), 2 and 5 (A trains, B tests), 3 and 4 (A
    trains and tests), 6 and 7 (B trains on both, with unlike classes)."""
    data = federation(
        [1, 1, 2, 3, 3, 2, 4, 4, 9],
        [0, 0, 1, 1, 1, 1, 0, 1, 0],
        ClientRows(rows(0, 1, 2, 3), rows(), rows(4)),
        ClientRows(rows(6, 7, 8), rows(), rows(5)),
    )
    counted = duplicates(data)
    assert (counted.within, counted.within_by_client) == (3, {"A": 2, "B": 1})
    assert (counted.across, counted.pairs) == (1, (("A", "B", 1),))
    assert (counted.leaks_within, counted.leaks_across) == (1, 1)
    assert counted.contradictions == 1
    leak = counted.examples["leaks_across"]
    assert (leak.row, leak.client, leak.other, leak.other_client) == (5, "B", 2, "A")


def test_a_common_test_set_leaks_too() -> None:
    data = federation([1, 2, 3, 1], [0, 1, 0, 0], ClientRows(rows(0, 1)), ClientRows(rows(2)))
    shared = Partition(data.partition.clients, {"test": rows(3)}, names=("A", "B"))
    counted = duplicates(fl.FederatedData(data.source, shared))
    assert (counted.leaks_across, counted.across, counted.within) == (1, 0, 0)


def test_groups_on_both_sides_are_named() -> None:
    data = federation(
        [1, 2, 3, 4], [0, 1, 0, 1], ClientRows(rows(0, 1), rows(), rows(2)), ClientRows(rows(3))
    )
    assert on_both_sides(data, np.array(["ann", "bob", "ann", "cid"])) == ["ann"]


# ------------------------------------------------------------------ skew


def test_label_skew_goes_from_chance_to_nothing_in_common() -> None:
    assert label_skew(fl.federate("digits", "iid", 10)).words == "none"
    disjoint = label_skew(fl.federate("digits", "pathological(1, order=label)", 10))
    assert disjoint.words == "extreme"
    assert disjoint.value == pytest.approx(1.0, abs=0.01)


def test_feature_skew_is_of_rows_of_one_class() -> None:
    assert feature_skew(normal_sites([0.0] * 5)).words == "none"
    shifted = feature_skew(normal_sites([-2.0, -1.0, 0.0, 1.0, 2.0]))
    assert shifted.clear
    # The variance of the shifts is 2, that of the rows of a class around them 1.
    assert shifted.value == pytest.approx(2 / 3, abs=0.05)
    only_labels = fl.federate("digits", "dirichlet(alpha=0.1)", 10)
    assert not feature_skew(only_labels).clear


def test_clients_that_disagree_on_classes_show_as_feature_skew() -> None:
    data = fl.federate("digits", "iid", 6, shift="permute_labels(groups=3)")
    assert feature_skew(data).clear
    assert label_skew(data).words != "extreme"


def test_skew_of_numbers_is_the_share_between_clients() -> None:
    gen = np.random.default_rng(1)
    sites = [(gen.standard_normal((50, 3)), gen.standard_normal(50) + level) for level in (-3, 3)]
    skew = label_skew(fl.FederatedData.from_clients(sites))
    assert skew.value == pytest.approx(0.9, abs=0.03)  # 9 of 9 + 1


# ------------------------------------------------------------------ the short list


def test_the_list_follows_from_how_clients_differ() -> None:
    alike = shortlist(check(normal_sites([0.0] * 5)), (), None)
    assert alike.methods == ["local", "fedavg", "fedavg_ft", "fedper"]
    unlike = shortlist(check(normal_sites([-2.0, -1.0, 0.0, 1.0, 2.0])), (), None)
    assert {"hypcluster", "dualfed", "fedavg + dbe"} <= set(unlike.methods)
    assert "fedcr" not in unlike.methods  # labels do not differ
    assert [name for name, _ in unlike.left_out] == ["fedbn"]  # the network has no BatchNorm


def test_methods_of_classes_are_not_on_the_list_of_numbers() -> None:
    gen = np.random.default_rng(1)
    sites = [(gen.standard_normal((50, 3)), gen.standard_normal(50) + level) for level in (-3, 3)]
    methods = shortlist(check(fl.FederatedData.from_clients(sites)), (), None).methods
    assert "fedrep" in methods
    assert not {"fedpac", "fedcr", "dualfed"} & set(methods)


def test_methods_that_the_caller_names_stand_beside_the_baselines() -> None:
    listed = shortlist(check("digits", clients=4, partition="iid"), ("apfl",), None)
    assert listed.methods == ["local", "fedavg", "fedavg_ft", "apfl"]
    assert listed.kind("apfl") == "personal model"


# ------------------------------------------------------------------ evidence


def values(*seeds: list[float]) -> list[dict[int, float]]:
    return [dict(enumerate(seed)) for seed in seeds]


def test_the_paired_test_over_seeds_worked_by_hand() -> None:
    """Both clients differ by .01, .02, .03, so that seeds move both at once and only their means
    count: mean .02, variance 1e-4, of the mean 1e-4 / 3, so t = 3.464 with two degrees of freedom
    and p = .0371 on one side. Rows add no noise of their own, so it does not matter whether seeds
    share them."""
    plain = values([0.5, 0.7], [0.5, 0.7], [0.5, 0.7])
    better = values([0.51, 0.71], [0.52, 0.72], [0.53, 0.73])
    for held_out in (0.0, 0.25):
        evidence = weigh({"local": plain, "fedavg": better}, metric("accuracy"), held_out)
        standing = evidence.of("local")
        assert standing.behind == pytest.approx(0.02)
        assert standing.p == pytest.approx(0.0371, abs=1e-4)
        assert standing.low == pytest.approx(0.02 - 4.3027 * math.sqrt(1e-4 / 3), abs=1e-5)


def test_noise_is_pooled_over_clients_that_seeds_do_not_move_at_once() -> None:
    """Differences .01, .02, .03 of one client and .03, .02, .01 of the other: each has variance
    1e-4, of the mean of all six 1e-4 / 6, so t = 4.899 with four degrees of freedom, p = .0040.
    With a quarter of a row held out for each that is trained on, the variance is 1 + 3 / 4 times as
    large: t = 3.703, p = .0104."""
    plain = values([0.5, 0.7], [0.5, 0.7], [0.5, 0.7])
    better = values([0.51, 0.73], [0.52, 0.72], [0.53, 0.71])
    scores = {"local": plain, "fedavg": better}
    standing = weigh(scores, metric("accuracy")).of("local")
    assert standing.behind == pytest.approx(0.02)
    assert standing.p == pytest.approx(0.0040, abs=1e-4)
    corrected = weigh(scores, metric("accuracy"), held_out=0.25).of("local")
    assert corrected.p == pytest.approx(0.0104, abs=1e-4)


@pytest.mark.parametrize(
    ("ahead", "advised"),
    [
        ([0.03, 0.031, 0.029], "fedavg"),  # clear, and worth it
        ([0.003, 0.0031, 0.0029], "local"),  # clear, but nobody would notice
        ([0.09, -0.05, 0.05], "local"),  # perhaps chance
    ],
)
def test_the_simplest_wins_that_is_not_clearly_worse(ahead: list[float], advised: str) -> None:
    base = [0.5, 0.6, 0.7]
    scores = {
        "local": values(base, base, base),
        "fedavg": values(*([v + a for v in base] for a in ahead)),
    }
    evidence = weigh(scores, metric("accuracy"))
    assert (evidence.best, evidence.advised) == ("fedavg", advised)


def test_of_errors_lower_is_better() -> None:
    scores = {
        "local": values([2.0, 3.0], [2.1, 3.1], [2.0, 3.1]),
        "fedavg": values([1.0, 2.0], [1.1, 2.1], [1.0, 2.1]),
    }
    evidence = weigh(scores, metric("rmse"))
    assert evidence.advised == "fedavg"
    assert evidence.of("local").mean == pytest.approx(2.55)
    assert evidence.of("local").behind == pytest.approx(1.0)


def test_clients_without_a_value_and_methods_that_broke_down_are_left_out() -> None:
    scores = {
        "local": values([0.5, math.nan], [0.5, 0.9]),
        "fedavg": values([0.6, 0.9], [0.6, 0.9]),
        "fedper": [{0: 0.9, 1: 0.9}, {}],
    }
    evidence = weigh(scores, metric("auroc"))
    assert (evidence.clients, evidence.advised) == (1, "fedavg")
    assert [one.method for one in evidence.standings] == ["local", "fedavg"]
    with pytest.raises(BadInput, match="the training of every method broke down"):
        weigh({"local": [{}, {}]}, metric("accuracy"))
