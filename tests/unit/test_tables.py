"""The comparison of methods over seeds as frames, CSV and LaTeX."""

from __future__ import annotations

import math
from io import StringIO

import pandas
import pytest

from fedloom.launch.tables import Labelled, OverSeeds, per_method, per_run, to_csv, to_latex
from fedloom.record import At, Chosen, Summary


def chosen(value: float) -> Chosen:
    return Chosen(
        At("received", "test"),
        metric="accuracy",
        select="last",
        average="uniform",
        rounds=(3,),
        value=value,
        std=0.1,
        worst_decile=value - 0.2,
        clients=(0, 1),
        rows=(10, 30),
        values=(value - 0.2, value + 0.2),
    )


def summary(seed: int, value: float, newcomers: float | None = None) -> Summary:
    return Summary(
        method="fedavg()",
        result=chosen(value),
        newcomers=None if newcomers is None else chosen(newcomers),
        protocol="personal",
        rounds=3,
        clients=2,
        seed=seed,
        bytes_up=6_000_000,
        bytes_down=2_000_000,
        seconds=4.0,
        activities={},
        state_sha256="",
        partition_sha256="",
        run=f"runs/{seed}",
    )


METHODS: list[Labelled] = [
    ("fedavg + dbe", [summary(0, 0.5), summary(1, 0.7)]),
    ("fed_rep", [summary(0, 0.8, newcomers=0.4)]),
]


def test_every_run_has_a_line() -> None:
    frame = per_run(METHODS)
    assert frame["method"].tolist() == ["fedavg + dbe", "fedavg + dbe", "fed_rep"]
    assert frame["seed"].tolist() == [0, 1, 0]
    assert frame["accuracy"].tolist() == [0.5, 0.7, 0.8]
    assert frame["megabytes_up_per_client"].tolist() == [3.0, 3.0, 3.0]
    assert frame["newcomers"].tolist()[2] == 0.4
    assert frame["run"].tolist() == ["runs/0", "runs/1", "runs/0"]


def test_a_method_has_a_line_with_every_seed() -> None:
    """Over 0.5 and 0.7: mean 0.6, deviation sqrt(2 * 0.01); a single seed has no deviation."""
    frame = per_method(METHODS).set_index("method")
    ours, single = frame.loc["fedavg + dbe"], frame.loc["fed_rep"]
    assert (ours["accuracy_seed_0"], ours["accuracy_seed_1"]) == (0.5, 0.7)
    assert ours["accuracy"] == pytest.approx(0.6)
    assert ours["accuracy_std_over_seeds"] == pytest.approx(math.sqrt(0.02))
    assert ours["worst_decile"] == pytest.approx(0.4)
    assert single["newcomers"] == 0.4
    assert single["seeds"] == 1
    assert math.isnan(single["accuracy_seed_1"])
    assert math.isnan(single["accuracy_std_over_seeds"])


def test_nothing_is_said_of_newcomers_where_there_are_none() -> None:
    assert "newcomers" not in per_method(METHODS[:1])
    assert "Newcomers" not in to_latex(METHODS[:1])


def test_csv_is_what_pandas_reads_back() -> None:
    pandas.testing.assert_frame_equal(
        pandas.read_csv(StringIO(to_csv(METHODS))), per_method(METHODS), check_dtype=False
    )


def test_latex_bolds_the_best_and_gives_no_deviation_to_a_single_seed() -> None:
    lines = to_latex(METHODS).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrr}"
    assert lines[2] == (
        r"Method & Accuracy (\%) & Worst tenth (\%) & Newcomers (\%) & MB sent & Seconds \\"
    )
    assert lines[4] == r"fedavg + dbe & 60.00 $\pm$ 14.14 & 40.00 $\pm$ 14.14 & -- & 3.00 & 4.0 \\"
    assert lines[5] == r"fed\_rep & \textbf{80.00} & \textbf{60.00} & 40.00 & 3.00 & 4.0 \\"


def test_latex_bolds_all_that_read_alike() -> None:
    alike: list[Labelled] = [("a", [summary(0, 0.50001)]), ("b", [summary(0, 0.50002)])]
    assert to_latex(alike).count(r"\textbf{50.00}") == 2


def test_a_number_no_seed_has_is_none() -> None:
    assert OverSeeds.of([math.nan, None]) is None
