"""From clients' scores to the number of a run, on journals made by hand."""

from __future__ import annotations

import pytest

from fedloom.core.evaluate import Protocol, summarize
from fedloom.errors import BadInput
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedavg_ft import FedAvgFT
from fedloom.runs.evaluation import Scores
from fedloom.runs.scores import result, round_scores

N = (1, 3)
RECEIVED = "received/test"


def record(t: int, **scores: tuple[float, ...]) -> dict:
    """A line of the journal: accuracies of clients 0, 1, ... by moment, with n = (1, 3, 1, ...)."""
    sizes = (*N, *[1] * 20)
    at = {
        key.replace("__", "/"): {
            i: {"accuracy": v, "nll": 0.0, "n": float(sizes[i])} for i, v in enumerate(values)
        }
        for key, values in scores.items()
    }
    return {"round": t, "scores": round_scores(at)}


def rounds(*accuracies: tuple[float, ...], key: str = "received__test") -> list[dict]:
    return [record(t, **{key: a}) for t, a in enumerate(accuracies, start=1)]


def judge(records: list[dict], method=None, **protocol) -> dict:
    return result(Protocol(**{"moment": "received", **protocol}), method or FedAvg(), records)


# ------------------------------------------------------------------ one round


def test_statistics_of_a_round():
    """Accuracies 1 and 0.5 with n = 1 and 3: mean 0.75, weighted (1 + 1.5)/4 = 0.625, deviation
    0.25 (over N, not N - 1), worst tenth of two clients: the worse one."""
    found = record(1, received__test=(1.0, 0.5))["scores"][RECEIVED]
    assert found["mean"] == 0.75
    assert found["weighted"] == 0.625
    assert found["std"] == 0.25
    assert found["worst_decile"] == 0.5
    assert found["clients"] == {"0": 1.0, "1": 0.5}
    assert found["n"] == {"0": 1, "1": 3}


@pytest.mark.parametrize(
    ("clients", "worst"),
    [(1, 0.0), (9, 0.0), (10, 0.0), (19, 0.0), (20, 0.5), (29, 0.5), (30, 1.0), (100, 4.5)],
)
def test_worst_decile_is_the_mean_of_the_worst_tenth(clients, worst):
    """Values 0, 1, 2, ...: the worst k = max(1, N // 10) have the mean (k - 1)/2, in whatever
    order they come."""
    values = [float(i) for i in reversed(range(clients))]
    assert summarize(values, [1] * clients)["worst_decile"] == worst


def test_further_metrics_are_averaged_over_clients():
    found = round_scores(
        {
            "received/test": {
                0: {"accuracy": 1.0, "nll": 1.0, "n": 1.0},
                1: {"accuracy": 0.0, "nll": 3.0, "n": 3.0},
            }
        }
    )
    assert found[RECEIVED]["nll"] == 2.0


def test_a_moment_without_scores_is_left_out():
    assert round_scores({"received/test": {}}) == {}


def test_scores_measured_inside_a_client_are_read_back():
    """Flat keys "moment/split/name"; what has no moment (the loss) is no score."""
    scores = Scores()
    scores.read(4, {"loss": 9.0, "trained/test/accuracy": 0.5, "trained/test/n": 2.0})
    scores.read(2, {"trained/test/accuracy": 1.0, "trained/val/accuracy": 0.25})
    assert scores.at == {
        "trained/test": {4: {"accuracy": 0.5, "n": 2.0}, 2: {"accuracy": 1.0}},
        "trained/val": {2: {"accuracy": 0.25}},
    }


# ------------------------------------------------------------------ which round

CURVE = rounds((0.2, 0.2), (0.9, 0.5), (0.6, 0.6), (0.1, 0.7))
"""Mean 0.2, 0.7, 0.6, 0.4; by samples 0.2, 0.6, 0.6, 0.55."""


def test_last():
    found = judge(CURVE)
    assert found["accuracy"] == pytest.approx(0.4)
    assert found["accuracy_std"] == pytest.approx(0.3)
    assert found["worst_decile"] == 0.1
    assert found["selected"] == 4


def test_last_is_the_last_that_was_scored():
    assert judge([*CURVE, {"round": 5, "scores": {}}, {"round": 6}])["selected"] == 4


def test_best_test():
    found = judge(CURVE, select="best_test")
    assert found["accuracy"] == pytest.approx(0.7)
    assert found["accuracy_std"] == pytest.approx(0.2)
    assert found["selected"] == 2


def test_best_test_by_samples_is_another_round():
    """(0.9 + 3 * 0.3)/4 = 0.45 and (0.3 + 3 * 0.7)/4 = 0.6, while the means are 0.6 and 0.5."""
    curve = rounds((0.9, 0.3), (0.3, 0.7))
    assert judge(curve, select="best_test")["selected"] == 1
    found = judge(curve, select="best_test", average="samples")
    assert (found["accuracy"], found["selected"]) == (pytest.approx(0.6), 2)


def test_the_first_of_equal_rounds_is_chosen():
    assert judge(rounds((0.5, 0.5), (0.25, 0.75)), select="best_test")["selected"] == 1


def test_best_val_reports_the_test_score_of_that_round():
    """Validation 0.5, 0.8, 0.6 chooses round 2, whose test score 0.3 is not the best."""
    records = [
        record(t, received__val=(v, v), received__test=(a, a))
        for t, v, a in ((1, 0.5, 0.9), (2, 0.8, 0.3), (3, 0.6, 0.7))
    ]
    found = judge(records, select="best_val")
    assert (found["accuracy"], found["selected"]) == (pytest.approx(0.3), 2)


def test_best_val_weighs_as_the_average_says():
    """n = (1, 3). Validation means 0.6 and 0.5; by samples 0.45 and 0.6."""
    records = [
        record(1, received__val=(0.9, 0.3), received__test=(0.1, 0.1)),
        record(2, received__val=(0.3, 0.7), received__test=(0.2, 0.2)),
    ]
    assert judge(records, select="best_val")["selected"] == 1
    assert judge(records, select="best_val", average="samples")["selected"] == 2


def test_best_test_per_client():
    """Client 0's best is 0.9 (round 2), client 1's 0.7 (round 4): mean 0.8, by samples
    (0.9 + 2.1)/4 = 0.75, deviation 0.1, worst 0.7. No single round is selected."""
    found = judge(CURVE, select="best_test_per_client")
    assert found["accuracy"] == pytest.approx(0.8)
    assert found["accuracy_std"] == pytest.approx(0.1)
    assert found["worst_decile"] == pytest.approx(0.7)
    assert found["selected"] is None
    weighted = judge(CURVE, select="best_test_per_client", average="samples")
    assert weighted["accuracy"] == pytest.approx(0.75)


def test_best_test_per_client_counts_everybody_who_was_ever_scored():
    """Cohorts {0}, then {1}: both clients count, 0.8 and 0.4, not only those of the last round."""
    records = rounds((0.8,), (0.4,))
    at = records[1]["scores"][RECEIVED]
    at["clients"], at["n"] = {"1": 0.4}, {"1": 3}
    found = judge(records, select="best_test_per_client", clients="cohort")
    assert found["accuracy"] == pytest.approx(0.6)
    weighted = judge(records, select="best_test_per_client", clients="cohort", average="samples")
    assert weighted["accuracy"] == pytest.approx((0.8 + 3 * 0.4) / 4)


def test_mean_of_the_five_best():
    """Of 0.1, 0.9, 0.3, 0.8, 0.7, 0.2, 0.6 the five best are 0.9, 0.8, 0.7, 0.6, 0.3: 0.66."""
    curve = rounds(*((v, v) for v in (0.1, 0.9, 0.3, 0.8, 0.7, 0.2, 0.6)))
    found = judge(curve, select="mean_of_five_best_test")
    assert found["accuracy"] == pytest.approx(0.66)
    assert found["selected"] is None


def test_mean_of_the_five_best_of_fewer():
    curve = rounds((0.2, 0.2), (0.6, 0.6))
    assert judge(curve, select="mean_of_five_best_test")["accuracy"] == pytest.approx(0.4)


# ------------------------------------------------------------------ which moment, whom


def test_final_is_received_for_a_method_that_does_not_adapt():
    """The journal has both; FedAvg never adapts, FedAvg-FT does."""
    records = [record(3, received__test=(0.1, 0.1), final__test=(0.9, 0.9))]
    assert judge(records, FedAvg(), moment="final")["accuracy"] == pytest.approx(0.1)
    assert judge(records, FedAvgFT(), moment="final")["accuracy"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ({"moment": "received"}, 0.1),
        ({"moment": "trained"}, 0.2),
        ({"moment": "adapted"}, 0.3),
        ({"moment": "received", "split": "val"}, 0.4),
        ({"on": "shared", "model": "global"}, 0.5),
        ({"moment": "final", "clients": "new"}, 0.6),
        ({"moment": "received", "clients": "new"}, 0.7),
    ],
)
def test_every_choice_reads_its_own_scores(protocol, expected):
    keys = ("received__test", "trained__test", "adapted__test", "received__val", "shared__test")
    keys += ("newcomers__adapted__test", "newcomers__received__test")
    records = [record(1, **{k: (i / 10, i / 10) for i, k in enumerate(keys, start=1)})]
    assert judge(records, **protocol)["accuracy"] == pytest.approx(expected)


def test_nothing_scored_is_an_error_that_names_the_moment():
    with pytest.raises(BadInput, match="nothing was scored at trained/test"):
        judge(CURVE, moment="trained")
