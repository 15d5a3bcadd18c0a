"""Every registered method and term with every kind of task: it runs, or refuses in a sentence."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import fedloom as fl
from fedloom.core.method import Method
from fedloom.core.task import WHAT, parse_task
from fedloom.methods import register

ROWS, SHAPE = 24, (1, 8, 8)
SETTINGS = {
    "rounds": 1,
    "clients": 2,
    "partition": "iid",
    "lr": 0.01,
    "model": "mlp(hidden=[8], norm=batch)",
    "protocol": "fedloom(also=none)",
}


def inputs() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, *SHAPE)).astype(np.float32)


TARGETS = {
    "regression": inputs()[:, 0, 0, :2] * 3 + 20,
    "multilabel": (inputs()[:, 0, 0, :3] > 0).astype(int),
    "classification(smoothing=0.1, weights=balanced)": np.arange(ROWS) % 3,
    "binary": np.arange(ROWS) % 2,
}


def runnable(name: str) -> str:
    return name if isinstance(register[name](), Method) else f"fedavg + {name}"


WITH_OTHER_CLASSES = ("fedavg", "fedcr", "fedpac", "fedrod", "knnper", "mixup")
CASES = [
    *((name, task) for name in register for task in ("regression", "multilabel")),
    *((name, task) for name in WITH_OTHER_CLASSES for task in list(TARGETS)[2:]),
]


@pytest.mark.parametrize(("name", "task"), CASES)
def test_a_part_runs_with_a_task_or_says_what_it_lacks(name: str, task: str) -> None:
    expression = runnable(name)
    parts = fl.methods.parse_method(expression).parts
    lacking = [(p, n) for p in parts for n in p.needs if n not in parse_task(task).provides]
    if lacking:
        part, need = lacking[0]
        with pytest.raises(fl.BadInput, match=re.escape(f"{part.name} needs {WHAT[need]}")):
            fl.run(expression, (inputs(), TARGETS[task]), task=task, **SETTINGS)
        return
    result = fl.run(expression, (inputs(), TARGETS[task]), task=task, **SETTINGS)
    assert result.summary.metric == parse_task(task).primary
    assert math.isfinite(result.value)
    for record in result.records:
        for score in record.scores:
            assert all(map(math.isfinite, score.metrics[result.summary.metric]))


WITHOUT_CLASSES = (
    *("apfl", "apple", "ditto", "fedavg", "fedavg_ft", "fedbabu", "fedbn", "fedcm", "feddecorr"),
    *("fedem", "fedfomo", "fedper", "fedprox", "fedrep", "groupdro", "hypcluster", "ifca"),
    *("lg_fedavg", "local", "mixup", "moon", "perfedavg", "pfedhn", "pfedme", "proximal"),
    *("scaffold", "dbe", "prbm", "mean_regularization"),
)


def test_what_only_regularises_features_or_weights_needs_no_classes() -> None:
    for name in WITHOUT_CLASSES:
        for part in fl.methods.parse_method(runnable(name)).parts:
            assert not part.needs, name
