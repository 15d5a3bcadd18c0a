"""Real data with every kind of task, as docs/tasks.md shows it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom.report.page import report

needs_data = pytest.mark.skipif(not os.environ.get("FEDLOOM_DATA"), reason="needs FEDLOOM_DATA")
SMALL_NET = {"model": "mlp(hidden=[16])", "partition": "by_user"}


def by_hospital(x: np.ndarray, y: np.ndarray, **more: str) -> fl.Source:
    """Rows sorted by their first column and cut in three: hospitals see unlike patients."""
    order = np.argsort(x[:, 0], kind="stable")
    hospital = np.arange(len(x)) * 3 // len(x)
    return fl.Source.from_arrays(x[order], y[order], user=hospital, **more)  # type: ignore[arg-type]


def test_breast_cancer_by_hospital() -> None:
    pytest.importorskip("torchmetrics")
    from sklearn.datasets import load_breast_cancer

    data = by_hospital(*load_breast_cancer(return_X_y=True))
    protocol = "fedloom(metric=auroc)"
    result = fl.run(
        "fedper", data, task="binary", protocol=protocol, metrics="f1", rounds=5, **SMALL_NET
    )
    assert result.summary.metric == "auroc"
    assert result.value > 0.9
    assert {"accuracy", "nll", "f1", "auroc"} <= {*result.to_pandas().columns}


def test_diabetes_progression(tmp_path: Path) -> None:
    """The mean of all rows is wrong by 77 (their deviation)."""
    from sklearn.datasets import load_diabetes

    data = by_hospital(*load_diabetes(return_X_y=True), targets="numbers")
    settings = {"rounds": 10, "lr": 0.02, **SMALL_NET}
    comparison = fl.compare(
        ["local", "fedavg", "fedrep"], data, seeds=[0], out=str(tmp_path / "runs"), **settings
    )
    assert all(row.metric.name == "rmse" and 40 < row.accuracy < 77 for row in comparison.rows)
    assert "fedavg: RMSE" in repr(comparison)
    best = min(comparison.rows, key=lambda row: row.accuracy)
    assert f"textbf{{{best.accuracy:.2f}}}" in comparison.to_latex()
    page = report([tmp_path / "runs"], tmp_path / "report.html").read_text()
    assert "RMSE" in page
    assert "has the lowest RMSE" in page
    assert "Accuracy" not in page


def test_several_labels_of_a_row() -> None:
    """Five labels that overlap, each decided by a direction of its own."""
    pytest.importorskip("torchmetrics")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8)).astype(np.float32)
    y = (x @ rng.normal(size=(8, 5)) > 0.5).astype(int)
    settings = {"clients": 4, "partition": "iid", "lr": 0.3, "rounds": 15}
    result = fl.run("fedavg + dbe", (x, y), metrics="auroc", **settings)
    assert result.experiment.config.task == "multilabel"
    assert result.records[-1].scores[0].spread("auroc").mean > 0.8


KNOWN: dict[str, tuple[float, dict[str, Any]]] = {
    "har": (1 / 6, {"partition": "by_user", "participation": 0.2, "rounds": 2}),
    "ag_news": (
        1 / 4,
        {
            "partition": "iid + scarce(size=100)",
            "clients": 4,
            "rounds": 8,
            "optimizer": "adam",
            "lr": 0.02,
        },
    ),
}
"""Data set -> the balanced accuracy of guessing, and settings under which something is learned."""


@needs_data
@pytest.mark.parametrize("data", KNOWN)
def test_known_data_with_other_metrics(data: str) -> None:
    """`har` is read from hapt's windows where these are at hand. Well above chance after a few
    rounds: 0.43 and 0.63 when this was written."""
    pytest.importorskip("torchmetrics")
    chance, settings = KNOWN[data]
    result = fl.run(
        "fedavg",
        data,
        task="classification(smoothing=0.1)",
        protocol="cohort(metric=balanced_accuracy)",
        metrics="f1, ece",
        **settings,
    )
    assert result.summary.metric == "balanced_accuracy"
    assert result.value > chance + 0.1


def test_tuning_looks_for_the_lowest_error() -> None:
    pytest.importorskip("optuna")
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    settings = {"rounds": 1, "clients": 2, "partition": "iid", "workers": 1}
    tuned = fl.tune(["fedavg"], (x, x[:, 0] * 3), trials=3, **settings).methods[0]
    finished = [t.score for t in tuned.trials if t.rounds == 1 and t.score is not None]
    assert (tuned.metric, tuned.score) == ("rmse", min(finished))
