"""What a run tells about the quantities that papers print, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fedloom as fl
from fedloom.record import At, Chosen, Headline, RoundRecord, Score
from fedloom.reproduce.quantities import QUANTITIES, Ended, in_percent, is_measured, value_of


@pytest.fixture(scope="module")
def run() -> Ended:
    result = fl.run("fedavg", model="mlp(hidden=[16])", rounds=3, clients=2, partition="iid")
    curve = [Headline(At("received", "test"), "accuracy", value) for value in (0.5, 0.7, 0.9)]
    records = [
        replace(record, headline=number, bytes_up=2_000_000, bytes_down=4_000_000)
        for record, number in zip(result.records, curve, strict=True)
    ]
    chosen = replace(result.summary.result, value=0.8, values=(0.7, 0.9), std=0.1)
    summary = replace(result.summary, result=chosen, seconds=120.0)
    return Ended(result.experiment, summary, records, target=65.0)


def test_rounds_megabytes_and_seconds_follow_the_curve(run: Ended) -> None:
    """Two of three rounds reach 65 %; 2 clients share 2 x 6 MB until then."""
    assert value_of("accuracy", run) == 80.0
    assert value_of("rounds_to_target", run) == 2
    assert value_of("rounds_to_90", run) == 3
    assert value_of("rounds_to_95.5", run) is None
    assert value_of("megabytes_to_target", run) == 6.0
    assert value_of("minutes_per_round", run) == pytest.approx(2 / 3)
    assert value_of("worst_client", run) == 70.0
    assert value_of("rounds_to_target", replace(run, target=None)) is None
    assert value_of("newcomers", run) is None
    assert value_of("parameters", run) == 64 * 16 + 16 + 16 * 10 + 10


def test_one_client_is_found_by_its_name(run: Ended) -> None:
    assert value_of("accuracy/1", run) == 90.0
    assert value_of("accuracy/sketch", run) is None


def test_the_worst_test_set_of_the_five_best_rounds(run: Ended) -> None:
    """The lowest of each round are 1 ... 6 percent; the five best of these are 2 to 6."""
    at = At("received", "test", "global", "shared tests")
    scores = [Score(at, (0, 1), (5, 5), {"accuracy": (i / 100, 0.5)}) for i in range(1, 7)]
    record = run.records[0]
    records: list[RoundRecord] = [replace(record, scores=(score,)) for score in scores]
    chosen: Chosen = replace(run.summary.result, at=at, select="mean_of_five_best_test")
    ended = replace(run, records=records, summary=replace(run.summary, result=chosen))
    assert value_of("worst_client", ended) == pytest.approx(4.0)


def test_what_is_measured_and_what_is_in_percent() -> None:
    assert all(map(is_measured, QUANTITIES))
    assert is_measured("rounds_to_85")
    assert is_measured("accuracy/photo")
    assert not is_measured("mdl")
    assert value_of("mdl", None) is None  # type: ignore[arg-type]
    assert in_percent("accuracy/photo")
    assert not in_percent("seconds")
