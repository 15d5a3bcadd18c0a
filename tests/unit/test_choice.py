"""From clients' scores to the number of a run, on records made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedloom.core.protocol import Protocol
from fedloom.core.score import ClientScore
from fedloom.errors import BadInput
from fedloom.record import At, Chosen, RoundRecord, Score, Spread
from fedloom.runs.choice import choose, curve_at, headline, newcomers
from fedloom.runs.evaluation import ScoreSheet

ROWS = (1, 3, *[1] * 20)
RECEIVED, VAL = At("received", "test"), At("received", "val")


def score(at: At, *accuracies: float) -> Score:
    """Of clients 0, 1, ... with 1, 3, 1, 1, ... rows."""
    n = len(accuracies)
    return Score(at, tuple(range(n)), ROWS[:n], {"accuracy": accuracies, "nll": (0.0,) * n})


def record(t: int, *scores: Score) -> RoundRecord:
    return RoundRecord(t - 1, t, "train", "model", (), None, 0, 0, 0.0, {}, scores)


def rounds(*accuracies: tuple[float, ...], at: At = RECEIVED) -> list[RoundRecord]:
    return [record(t, score(at, *a)) for t, a in enumerate(accuracies, start=1)]


def judge(records: list[RoundRecord], **protocol: Any) -> Chosen:
    """By a protocol as a run settles it."""
    return choose(Protocol(**{"moment": "received", **protocol}), records)


# ------------------------------------------------------------------ one round


def test_statistics_of_a_round():
    """Accuracies 1 and 0.5 with 1 and 3 rows: mean 0.75, weighted (1 + 1.5)/4 = 0.625, deviation
    0.25 (over N, not N - 1), worst tenth of two clients: the worse one."""
    one = score(RECEIVED, 1.0, 0.5)
    assert one.spread() == Spread(mean=0.75, weighted=0.625, std=0.25, worst_decile=0.5)
    assert one.by_client() == {0: 1.0, 1: 0.5}


@pytest.mark.parametrize(
    ("clients", "worst"),
    [(1, 0.0), (9, 0.0), (10, 0.0), (19, 0.0), (20, 0.5), (29, 0.5), (30, 1.0), (100, 4.5)],
)
def test_worst_decile_is_the_mean_of_the_worst_tenth(clients, worst):
    """Values 0, 1, 2, ...: the worst k = max(1, N // 10) have the mean (k - 1)/2, in whatever
    order they come."""
    values = [float(i) for i in reversed(range(clients))]
    assert Spread.of(values, [1] * clients).worst_decile == worst


def test_scores_of_clients_are_gathered_by_model_moment_and_split():
    """In the order of ids, whoever answers first; whole models stand before single heads."""
    sheet = ScoreSheet()
    head = ClientScore("trained", "test", 2, {"accuracy": 0.0}, "generic_head")
    sheet.add(4, [head, ClientScore("trained", "test", 2, {"accuracy": 0.5})])
    sheet.add(2, [ClientScore("trained", "test", 5, {"accuracy": 1.0})])
    sheet.add(7, [ClientScore("adapted", "test", 3, {"accuracy": 0.25})], "newcomers")
    assert sheet.scores() == (
        Score(At("adapted", "test", group="newcomers"), (7,), (3,), {"accuracy": (0.25,)}),
        Score(At("trained", "test"), (2, 4), (5, 2), {"accuracy": (1.0, 0.5)}),
        Score(At("trained", "test", "generic_head"), (4,), (2,), {"accuracy": (0.0,)}),
    )


def test_the_headline_of_a_step_is_averaged_as_the_protocol_says():
    scores = [score(RECEIVED, 1.0, 0.5), score(At("trained", "test"), 0.0, 0.0)]
    for average, value in (("uniform", 0.75), ("samples", 0.625)):
        number = headline(Protocol(moment="received", average=average), scores)
        assert number is not None
        assert (number.at, number.value) == (RECEIVED, value)
    assert headline(Protocol(moment="adapted"), scores) is None


def test_the_curve_of_a_method_that_adapts_at_the_end_is_of_what_clients_receive():
    assert curve_at(Protocol(moment="final")) == RECEIVED
    assert curve_at(Protocol(moment="trained")) == At("trained", "test")
    assert curve_at(Protocol(moment="adapted", clients="new")) == RECEIVED


# ------------------------------------------------------------------ which round

CURVE = rounds((0.2, 0.2), (0.9, 0.5), (0.6, 0.6), (0.1, 0.7))
"""Mean 0.2, 0.7, 0.6, 0.4; by samples 0.2, 0.6, 0.6, 0.55."""


def test_last():
    found = judge(CURVE)
    assert found.value == pytest.approx(0.4)
    assert found.std == pytest.approx(0.3)
    assert found.worst_decile == 0.1
    assert found.rounds == (4,)


def test_last_is_the_last_that_was_scored():
    assert judge([*CURVE, record(5), record(6)]).rounds == (4,)


def test_best_test():
    found = judge(CURVE, select="best_test")
    assert found.value == pytest.approx(0.7)
    assert found.std == pytest.approx(0.2)
    assert found.rounds == (2,)


def test_best_test_by_samples_is_another_round():
    """(0.9 + 3 * 0.3)/4 = 0.45 and (0.3 + 3 * 0.7)/4 = 0.6, while the means are 0.6 and 0.5."""
    curve = rounds((0.9, 0.3), (0.3, 0.7))
    assert judge(curve, select="best_test").rounds == (1,)
    found = judge(curve, select="best_test", average="samples")
    assert (found.value, found.rounds) == (pytest.approx(0.6), (2,))


def test_the_first_of_equal_rounds_is_chosen():
    assert judge(rounds((0.5, 0.5), (0.25, 0.75)), select="best_test").rounds == (1,)


def test_best_val_reports_the_test_score_of_that_round():
    """Validation 0.5, 0.8, 0.6 chooses round 2, whose test score 0.3 is not the best."""
    records = [
        record(t, score(VAL, v, v), score(RECEIVED, a, a))
        for t, v, a in ((1, 0.5, 0.9), (2, 0.8, 0.3), (3, 0.6, 0.7))
    ]
    found = judge(records, select="best_val")
    assert (found.value, found.rounds) == (pytest.approx(0.3), (2,))


@pytest.mark.parametrize("model", ["personal", "global"])
def test_on_shared_tests_the_clients_validation_rows_select(model):
    """Validation at the clients 0.5, then 0.8: round 2, which has 0.3 on the shared sets."""
    group = "shared tests" if model == "global" else "clients on shared tests"
    shared = At("received", "test", model, group)
    val = At("received", "val", model)
    records = [
        record(t, score(val, v, v), score(shared, a, a))
        for t, v, a in ((1, 0.5, 0.9), (2, 0.8, 0.3))
    ]
    chosen = judge(records, select="best_val", on="shared", model=model)
    assert (chosen.value, chosen.rounds) == (pytest.approx(0.3), (2,))


def test_best_val_weighs_as_the_average_says():
    """n = (1, 3). Validation means 0.6 and 0.5; by samples 0.45 and 0.6."""
    records = [
        record(1, score(VAL, 0.9, 0.3), score(RECEIVED, 0.1, 0.1)),
        record(2, score(VAL, 0.3, 0.7), score(RECEIVED, 0.2, 0.2)),
    ]
    assert judge(records, select="best_val").rounds == (1,)
    assert judge(records, select="best_val", average="samples").rounds == (2,)


def test_best_test_per_client():
    """Client 0's best is 0.9 (round 2), client 1's 0.7 (round 4): mean 0.8, by samples
    (0.9 + 2.1)/4 = 0.75, deviation 0.1, worst 0.7. Every scored round contributes."""
    found = judge(CURVE, select="best_test_per_client")
    assert found.value == pytest.approx(0.8)
    assert found.std == pytest.approx(0.1)
    assert found.worst_decile == pytest.approx(0.7)
    assert found.rounds == (1, 2, 3, 4)
    assert found.by_client() == {0: 0.9, 1: 0.7}
    weighted = judge(CURVE, select="best_test_per_client", average="samples")
    assert weighted.value == pytest.approx(0.75)


def test_best_test_per_client_counts_everybody_who_was_ever_scored():
    """Cohorts {0}, then {1}: both clients count, 0.8 and 0.4, not only those of the last round."""
    second = replace(score(RECEIVED, 0.4), clients=(1,), rows=(3,))
    records = [*rounds((0.8,)), record(2, second)]
    found = judge(records, select="best_test_per_client", clients="cohort")
    assert found.value == pytest.approx(0.6)
    weighted = judge(records, select="best_test_per_client", clients="cohort", average="samples")
    assert weighted.value == pytest.approx((0.8 + 3 * 0.4) / 4)


def test_mean_of_the_five_best():
    """Of 0.1, 0.9, 0.3, 0.8, 0.7, 0.2, 0.6 the five best are 0.9, 0.8, 0.7, 0.6, 0.3: 0.66."""
    curve = rounds(*((v, v) for v in (0.1, 0.9, 0.3, 0.8, 0.7, 0.2, 0.6)))
    found = judge(curve, select="mean_of_five_best_test")
    assert found.value == pytest.approx(0.66)
    assert found.rounds == (3, 7, 5, 4, 2)
    assert found.by_client() == pytest.approx({0: 0.66, 1: 0.66})


def test_mean_of_the_five_best_of_fewer():
    curve = rounds((0.2, 0.2), (0.6, 0.6))
    assert judge(curve, select="mean_of_five_best_test").value == pytest.approx(0.4)


# ------------------------------------------------------------------ which moment, whom


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ({"moment": "received"}, 0.1),
        ({"moment": "trained"}, 0.2),
        ({"moment": "adapted"}, 0.3),
        ({"moment": "received", "split": "val"}, 0.4),
        ({"on": "shared", "model": "global"}, 0.5),
        ({"moment": "adapted", "clients": "new"}, 0.6),
        ({"moment": "received", "clients": "new"}, 0.7),
        ({"on": "shared"}, 0.8),
    ],
)
def test_every_choice_reads_its_own_scores(protocol, expected):
    keys = [
        RECEIVED,
        At("trained", "test"),
        At("adapted", "test"),
        VAL,
        At("received", "test", "global", "shared tests"),
        At("adapted", "test", group="newcomers"),
        At("received", "test", group="newcomers"),
        At("received", "test", group="clients on shared tests"),
    ]
    records = [record(1, *(score(at, i / 10, i / 10) for i, at in enumerate(keys, start=1)))]
    assert judge(records, **protocol).value == pytest.approx(expected)


def test_newcomers_are_reported_beside_the_result():
    joined = score(At("adapted", "test", group="newcomers"), 0.5, 1.0)
    records = [*CURVE[:-1], record(4, score(RECEIVED, 0.1, 0.7), joined)]
    assert judge(records).value == pytest.approx(0.4)
    after_joining = newcomers(Protocol(select="best_test"), records)
    assert after_joining is not None
    assert after_joining.value == pytest.approx(0.75)
    assert after_joining.by_client() == {0: 0.5, 1: 1.0}
    assert newcomers(Protocol(), CURVE) is None


def test_a_run_that_ended_before_its_final_models_is_judged_by_its_curve():
    chosen = judge(CURVE, moment="final")
    assert (chosen.at, chosen.value) == (RECEIVED, pytest.approx(0.4))


def test_best_val_without_validation_rows_says_what_to_do():
    with pytest.raises(BadInput, match="no validation rows were scored"):
        judge(CURVE, select="best_val")


def test_nothing_scored_is_an_error_that_names_the_moment():
    with pytest.raises(BadInput, match="nothing was scored at trained/test"):
        judge(CURVE, moment="trained")
