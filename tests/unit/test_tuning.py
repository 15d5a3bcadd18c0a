"""The parts of `fedloom tune`: what is searched, where, for how long, on which rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import fedloom as fl
from fedloom.core.protocol import PROTOCOLS
from fedloom.core.tunable import Choice, Integer, Linear, Log
from fedloom.errors import BadInput
from fedloom.methods import describe, parse_method, register
from fedloom.runs.config import RunConfig
from fedloom.tuning.budget import seconds_of, trials_within
from fedloom.tuning.halving import rungs, survivors, total_rounds
from fedloom.tuning.points import points
from fedloom.tuning.result import Trial, Tuned
from fedloom.tuning.space import Space
from fedloom.tuning.tune import rates
from fedloom.tuning.validation import on_validation_rows, without_tests
from helpers import with_shared_tests


def space(method: Any, rates: Log | None = None, **settings: Any) -> Space:
    return Space.of(method, RunConfig.checked(settings), rates)


# ------------------------------------------------------------------ what is searched


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("fedavg", {"lr"}),
        ("fedprox", {"lr", "proximal.mu"}),
        ("fedprox(mu=0.01)", {"lr"}),  # written, be it the default
        ("fedprox(0.01, lr=0.1)", set()),
        ("fedavg + dbe", {"lr", "mean_regularization.kappa", "mean_regularization.mu"}),
        ("fedavg + dbe(kappa=5)", {"lr", "mean_regularization.mu"}),
        ("ditto + proximal", {"lr", "ditto.lam", "proximal.mu"}),
        (fl.Ditto(lam=0.1), {"lr"}),
        (fl.Ditto() + fl.Proximal(), {"lr", "ditto.lam", "proximal.mu"}),
        (fl.FedAvg(opt=fl.Opt(lr=0.3)), set()),
    ],
)
def test_what_is_written_stays_and_the_rest_is_searched(method: Any, names: set[str]) -> None:
    assert space(method).ranges.keys() == names


def test_a_point_is_a_method_that_reads_back() -> None:
    tuned = space("fedavg + dbe(mu=0.5)").at({"lr": 0.2, "mean_regularization.kappa": 3.0})
    assert describe(tuned) == "fedavg(lr=0.2) + prbm + mean_regularization(kappa=3.0, mu=0.5)"
    assert parse_method(describe(tuned)) == tuned


@pytest.mark.parametrize(
    ("method", "settings", "searched"),
    [
        ("fedavg", {}, Log(1e-3, 1)),
        ("fedavg", {"optimizer": "adam"}, Log(1e-4, 1e-1)),
        ("spherefed", {}, Log(1e-2, 10)),  # its own declaration, which is of sgd
        ("spherefed", {"optimizer": "adam"}, Log(1e-4, 1e-1)),
    ],
)
def test_the_range_of_the_learning_rate(
    method: str, settings: dict[str, Any], searched: Log
) -> None:
    assert space(method, **settings).ranges["lr"] == searched
    assert space(method, Log(0.1, 0.2), **settings).ranges["lr"] == Log(0.1, 0.2)


def test_the_first_trial_has_the_callers_learning_rate() -> None:
    assert space("fedprox").default == {"lr": 0.05, "proximal.mu": 0.01}
    assert space("fedprox", lr=7.0).default["lr"] == 7.0


@pytest.mark.parametrize("name", list(register))
def test_every_declared_range_is_open_in_a_plain_expression(name: str) -> None:
    """A recipe whose defaults differ from those of its parts would tune nothing."""
    entry = register[name]
    is_term = isinstance(entry(), tuple) or not isinstance(entry(), fl.Method)
    plain = space(f"fedavg + {name}" if is_term else name)
    declared = {f"{p.name}.{field}" for p in plain.method.parts for field in p.tunable}
    assert plain.ranges.keys() - {"lr"} == {
        name for name in declared if name != f"{plain.method.name}.lr"
    }


@pytest.mark.parametrize("name", ["fedprox", "fedbabu", "fedcr", "fedem", "fedavg + dbe"])
def test_every_drawn_point_is_in_range_and_builds_the_method(name: str) -> None:
    searched = space(name)
    for values in points(searched.ranges, 32, seed=1):
        assert all(value in searched.ranges[key] for key, value in values.items())
        assert parse_method(describe(searched.at(values))) == searched.at(values)


def test_points_are_the_same_for_a_seed_and_begin_alike() -> None:
    ranges = {"a": Log(1e-3, 1), "b": Integer(1, 5), "c": Choice(("x", "y")), "d": Linear(0, 1)}
    assert points(ranges, 8, seed=0) == points(ranges, 12, seed=0)[:8]
    assert points(ranges, 8, seed=0) != points(ranges, 8, seed=1)


def test_points_lie_evenly() -> None:
    """Of 16 points in a log range of four decades, every decade gets some."""
    drawn = [values["a"] for values in points({"a": Log(1e-4, 1)}, 16, seed=0)]
    decades = np.floor(np.log10(drawn))
    assert np.unique(decades, return_counts=True)[1].min() >= 3


def test_a_declared_name_that_is_no_field_is_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(fl.Method):
        tunable: ClassVar[fl.Tunable] = {"stregth": Log(0.1, 1)}
        strength: float = 1.0

    with pytest.raises(BadInput, match=r"mine declares 'stregth' as tunable.*mean 'strength'"):
        space(Mine())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Log(0, 1), "a log range goes from a number above 0"),
        (lambda: Linear(1, 1), "to a larger one"),
        (lambda: Choice(("a",)), "between two values or more"),
        (lambda: rates("1e-3-1"), "lr_range = '1e-3-1' is no range; write for instance 1e-3..1"),
        (lambda: seconds_of("30 minutes"), "budget = '30 minutes' is no time; write for inst"),
        (lambda: seconds_of(0), "no time above 0"),
    ],
)
def test_ranges_and_times_that_are_none(wrong: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        wrong()


# ------------------------------------------------------------------ for how long


def test_rungs_are_distinct_and_end_with_the_whole_run() -> None:
    assert rungs(100, 81) == [9, 27, 81]
    assert rungs(16, 2) == [1, 2]
    assert rungs(2, 10) == [10]


def test_survivors_are_the_best_third_and_the_defaults() -> None:
    assert survivors({0: 0.2, 1: 0.5, 2: 0.5, 3: 0.4, 4: 0.1, 5: None, 6: 0.9}) == [0, 1, 2, 6]
    assert survivors({0: None, 1: None, 2: 0.1}) == [2]
    assert survivors({0: None}) == []


def test_a_budget_gives_the_most_trials_that_fit() -> None:
    """Half a second for a round of both methods, two at a time: 4 rounds of both fit in a
    second."""
    fitting = trials_within(100, [0.3, 0.2], rounds=30, workers=2)
    assert total_rounds(fitting, 30) * 0.5 / 2 <= 100 < total_rounds(fitting + 1, 30) * 0.5 / 2
    with pytest.raises(BadInput, match=r"too short: two trials of each method take about 15.0 s"):
        trials_within(10, [0.3, 0.2], rounds=30, workers=2)


def test_further_seeds_of_the_last_trials_are_in_the_budget() -> None:
    """16 trials for 9 rounds: 16 x 1, then 7 x 2 (a third, rounded up, and the defaults), then
    4 x 6; with two further seeds the last four train 9 rounds each twice more."""
    assert total_rounds(16, 9) == 16 + 14 + 24
    assert total_rounds(16, 9, confirm=2) == 16 + 14 + 24 + 4 * 9 * 2
    assert total_rounds(1, 9, confirm=2) == 9  # nothing to choose from
    without = trials_within(100, [0.5], rounds=30, workers=2)
    assert trials_within(100, [0.5], rounds=30, workers=2, confirm=1) < without


# ------------------------------------------------------------------ on which rows


def test_trials_have_no_test_rows_and_a_fifth_of_the_training_rows_to_be_scored_on() -> None:
    data = with_shared_tests(fl.federate("digits", clients=5))
    seen, remark = without_tests(data, seed=0)
    assert "no validation rows" in remark
    assert not seen.shared_tests
    for before, now in zip(data.partition.clients, seen.partition.clients, strict=True):
        assert len(now.test) == 0
        assert len(now.val) == max(1, round(0.2 * len(before.train)))
        assert sorted([*now.train, *now.val]) == sorted(before.train)


def test_validation_rows_of_the_split_are_used_as_they_are() -> None:
    data = fl.federate("digits", "iid", clients=3, split="merged(train=0.6, val=0.2)")
    seen, remark = without_tests(data, seed=0)
    assert remark == "scored on the split's validation rows"
    for before, now in zip(data.partition.clients, seen.partition.clients, strict=True):
        assert np.array_equal(before.train, now.train)
        assert np.array_equal(before.val, now.val)


def test_a_client_keeps_its_only_row_for_training() -> None:
    x = np.eye(4, dtype=np.float32)
    one = fl.FederatedData.from_clients([(x[:1], [0]), (x, [0, 1, 0, 1])], split="merged(train=1)")
    seen, _ = without_tests(one, seed=0)
    assert [len(client.train) for client in seen.partition.clients] == [1, 3]
    alone = fl.FederatedData.from_clients([(x[:1], [0]), (x[1:2], [1])], split="merged(train=1)")
    with pytest.raises(BadInput, match="no client has enough training rows to hold some out"):
        without_tests(alone, seed=0)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_is_scored_on_validation_rows_of_the_members(name: str) -> None:
    protocol = on_validation_rows(PROTOCOLS[name])
    assert (protocol.split, protocol.on, protocol.full_last_round) == ("val", "clients", False)
    assert protocol.moment == PROTOCOLS[name].moment
    assert on_validation_rows(replace(protocol, clients="new")).clients == "all"


# ------------------------------------------------------------------ which is the best


def tuned(*trials: Trial) -> Tuned:
    return Tuned("fedavg", list(trials), {}, RunConfig.checked({}))


def test_the_best_is_the_best_of_those_that_came_furthest() -> None:
    lucky_start = Trial(1, "a", {}, {3: 0.99})
    broke = Trial(2, "b", {}, {3: 0.9, 9: 0.95}, why="the loss is not finite")
    good, as_good = Trial(3, "c", {}, {3: 0.5, 9: 0.8}), Trial(4, "d", {}, {3: 0.6, 9: 0.8})
    default = Trial(0, "e", {}, {3: 0.4, 9: 0.7})
    assert tuned(default, lucky_start, broke, good, as_good).best is good


def test_further_seeds_are_averaged_and_one_that_breaks_down_counts_against_a_trial() -> None:
    """By one seed `lucky` would win; by three it has (0.9 + 0.3 + 0.3) / 3 = 0.5. `fragile` has the
    highest mean of what it came to, 0.8, and nothing with seed 2."""
    default = Trial(0, "e", {}, {9: 0.4}, confirmed={1: 0.4, 2: 0.4})
    lucky = Trial(1, "a", {}, {9: 0.9}, confirmed={1: 0.3, 2: 0.3})
    steady = Trial(2, "b", {}, {9: 0.6}, confirmed={1: 0.7, 2: 0.5})
    fragile = Trial(3, "c", {}, {9: 0.8}, confirmed={1: 0.8, 2: None})
    result = tuned(default, lucky, steady, fragile)
    assert result.best is steady
    assert result.score == pytest.approx(0.6)
    assert lucky.score == pytest.approx(0.5)
    assert (fragile.score, fragile.breakdowns) == (pytest.approx(0.8), 1)
    assert tuned(replace(default, confirmed={1: 0.4, 2: None}), fragile).best is fragile


def test_the_defaults_stand_where_all_trials_broke_down() -> None:
    default = Trial(0, "e", {}, why="the loss is not finite")
    result = tuned(default, Trial(1, "a", {}, why="the loss is not finite"))
    assert (result.best, result.score) == (default, None)
