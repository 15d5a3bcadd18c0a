"""Rules in place of the mean, worked by hand; and what hostile clients send."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom import BadInput, run
from fedloom.core.aggregation import parse_aggregation
from fedloom.core.data import ClientData, HeldRows
from fedloom.core.hostile import parse_hostile
from fedloom.core.message import Plan
from fedloom.core.tree import Tree

VALUES = [1.0, 2.0, 3.0, 4.0, 90.0]


def combined(rule: str, values: list[Any], weights: list[float] | None = None) -> Tree:
    accumulator = parse_aggregation(rule).accumulator({"w": torch.zeros_like(tensor(values[0]))})
    for value, weight in zip(values, weights or [1.0] * len(values), strict=True):
        accumulator.fold({"w": tensor(value)}, weight)
    return accumulator.mean()


def tensor(value: Any) -> Tensor:
    return torch.tensor(value)


def test_the_plain_mean_is_weighted() -> None:
    """(1 + 3 * 4) / (1 + 3) = 3.25."""
    assert combined("mean", [1.0, 4.0], [1.0, 3.0])["w"] == 3.25


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        ("median", VALUES, 3.0),
        ("median", VALUES[1:], 3.5),
        ("trimmed_mean(share=0.2)", VALUES, 3.0),
        ("trimmed_mean(share=0.19)", VALUES, 20.0),
        ("trimmed_mean(share=0.4)", VALUES, 3.0),
        ("median", [7], 7),
    ],
)
def test_number_by_number(rule: str, values: list[float], expected: float) -> None:
    """Of 1, 2, 3, 4, 90 the median is 3, without the 1 it is (3 + 4) / 2. A fifth of five is one
    from each end: (2 + 3 + 4) / 3; 0.19 of five is none: 100 / 5. Weights do not count."""
    result = combined(rule, values, [100.0] + [1.0] * (len(values) - 1))["w"]
    assert result == expected
    assert result.dtype == tensor(values[0]).dtype


def test_each_number_has_its_own_middle() -> None:
    assert combined("median", [[0.0, 9.0], [1.0, 0.0], [5.0, 1.0]])["w"].tolist() == [1.0, 1.0]


def test_krum_takes_the_upload_that_is_closest_to_its_neighbours() -> None:
    """m = 6, f = floor(0.2 * 6) = 1, so m - f - 2 = 3 nearest others count. Of 0, 1, 2, 4, 10, 11
    the scores are 0: 1 + 4 + 16 = 21; 1: 1 + 1 + 9 = 11; 2: 1 + 4 + 4 = 9; 4: 4 + 9 + 16 = 29;
    10: 1 + 36 + 64 = 101; 11: 1 + 49 + 81 = 131. The least is 2's; the least three 2, 1 and 0's.
    Two nearest would choose 1, whose score were 2 against 5."""
    values = [0.0, 1.0, 2.0, 4.0, 10.0, 11.0]
    assert combined("krum(share=0.2)", values)["w"] == 2.0
    assert combined("krum(share=0.2, keep=3)", values)["w"] == 1.0
    assert combined("krum(share=0.2, keep=0)", values)["w"] == pytest.approx(
        (0 + 1 + 2 + 4 + 10) / 5
    )


def test_krum_needs_enough_uploads() -> None:
    with pytest.raises(BadInput, match="5 uploads of which 2 may be hostile are too few"):
        combined("krum(share=0.4)", VALUES)


def test_norm_bound_brings_far_uploads_nearer() -> None:
    """The server has (0, 0). (3, 4) is at distance 5 and (0, 20) at 20; bound 10: (0, 20) becomes
    (0, 10), and the mean with weights 1 and 3 is (3/4, (4 + 30) / 4)."""
    result = combined("norm_bound(most=10)", [[3.0, 4.0], [0.0, 20.0]], [1.0, 3.0])["w"]
    assert result.tolist() == [0.75, 8.5]


def test_norm_bound_without_a_number_takes_the_median_distance() -> None:
    """Distances 1, 2, 90: the third comes down to 2, so (1 + 2 + 2) / 3."""
    assert combined("norm_bound", [1.0, 2.0, 90.0])["w"] == pytest.approx(5 / 3)


def test_norm_bound_measures_from_what_the_server_has() -> None:
    """From 10: 11 is at 1, 14 at 4, bound 2: 11 and 12."""
    accumulator = parse_aggregation("norm_bound(most=2)").accumulator({"w": tensor([10.0])})
    for value in (11.0, 14.0):
        accumulator.fold({"w": tensor([value])}, 1.0)
    assert accumulator.mean()["w"] == 11.5


def test_sums_are_over_what_is_accepted() -> None:
    """Krum's keep=3 of the values above, weights 2: 2 (0 + 1 + 2); of medians the sum is plain."""
    values = [0.0, 1.0, 2.0, 4.0, 10.0, 11.0]
    for rule, expected in (("krum(keep=3)", 6.0), ("median", 56.0)):
        accumulator = parse_aggregation(rule).accumulator({})
        for value in values:
            accumulator.fold({"w": tensor(value)}, 2.0)
        assert accumulator.sum()["w"] == expected


def test_uploads_that_weigh_nothing_or_are_not_numbers_take_no_part() -> None:
    values = [1.0, 2.0, 3.0, float("nan"), 50.0]
    assert combined("median", values, [1.0, 1.0, 1.0, 1.0, 0.0])["w"] == 2.0


@pytest.mark.parametrize(
    "text", ["trimmed_mean(share=0.5)", "krum(keep=-1)", "norm_bound(most=-1)"]
)
def test_settings_without_sense_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"share is|keep is|most is"):
        parse_aggregation(text)


@pytest.mark.parametrize("text", ["mean", "krum(share=0.1, keep=2)", "norm_bound(most=3.0)"])
def test_an_expression_reads_back(text: str) -> None:
    assert str(parse_aggregation(text)) == text


# ------------------------------------------------------------------ hostile clients


def test_a_sign_flip_and_a_scaled_upload() -> None:
    """From 1 the client trained to 3: flipped 1 - 2 = -1, half of it 1 - 1 = 0, ten times 21. A
    slice that was not sent down starts at 0; counts stay."""
    up = {"model": {"w": tensor([3.0]), "n": tensor([5])}, "part": {"mean": tensor([4.0])}}
    received = {"model": {"w": tensor([1.0]), "n": tensor([0])}}
    plan = Plan(1)
    for text, expected in (("sign_flip", -1.0), ("sign_flip(scale=0.5)", 0.0), ("scaled", 21.0)):
        sent = parse_hostile(text).upload(up, received, plan)
        assert sent["model"]["w"] == expected
        assert sent["model"]["n"] == 5
    assert parse_hostile("sign_flip").upload(up, received, plan)["part"]["mean"] == -4.0


def test_those_who_collude_send_the_same() -> None:
    """At half the length of what they received, (3, 4): 2.5 from it, whatever they trained."""
    received = {"model": {"w": tensor([3.0, 4.0])}}
    collude = parse_hostile("collude(size=0.5)")
    one, other = (
        collude.upload({"model": {"w": tensor(w)}}, received, Plan(1))["model"]["w"]
        for w in ([0.0, 0.0], [9.0, 9.0])
    )
    assert torch.equal(one, other)
    assert (one - tensor([3.0, 4.0])).norm() == pytest.approx(2.5)


def test_labels_are_turned_round_in_training_only() -> None:
    rows = HeldRows(torch.zeros(3, 1), tensor([0, 1, 9]))
    flipped = parse_hostile("label_flip").data(ClientData(rows, None, rows, 10))
    assert flipped.train.y.tolist() == [9, 8, 0]
    assert flipped.test is rows


SMALL: dict[str, Any] = {
    "clients": 10,
    "rounds": 2,
    "model": "mlp(hidden=[8])",
    "partition": "iid",
    "progress": False,
}


def test_a_run_scores_its_honest_clients_and_is_the_same_on_every_engine() -> None:
    results = [
        run("fedper + prbm", **SMALL, engine=engine, hostile="sign_flip", aggregation="krum")
        for engine in ("inline", "pool")
    ]
    assert results[0].summary.state_sha256 == results[1].summary.state_sha256
    hostile = results[0].experiment.program.hostile_clients
    assert len(hostile) == 2
    for score in results[0].records[-1].scores:
        assert set(score.clients) == set(range(10)) - hostile


@pytest.mark.parametrize(
    "method", ["fedavg", "fedrep", "fedavg + dbe", "fedcr(dim=8)", "fedpac", "dualfed"]
)
def test_the_papers_methods_run_under_every_rule(method: str) -> None:
    for rule in ("median", "trimmed_mean", "krum", "norm_bound"):
        result = run(method, **{**SMALL, "rounds": 1}, aggregation=rule, hostile="scaled")
        assert result.accuracy > 0


def test_a_rule_keeps_what_the_mean_loses() -> None:
    """One of five clients sends a hundred times too much, and the mean with it is useless."""
    few = {**SMALL, "clients": 5, "rounds": 5, "lr": 0.2, "model": "mlp(hidden=[32])"}
    peaceful = run("fedavg", **few).accuracy
    lost, kept = (
        run("fedavg", **few, hostile="scaled(factor=-100)", aggregation=rule).accuracy
        for rule in ("mean", "median")
    )
    assert lost < 0.3 < peaceful - 0.3
    assert kept > peaceful - 0.1
