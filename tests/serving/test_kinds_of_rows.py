"""Raw rows of every kind go into an exported model, and no normalisation is left to its user."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from exported import CLOSE, READERS
from fedloom import PersonalModel, Source, export, federate, run
from fedloom.runs.result import Result

RNG = np.random.default_rng(0)
ROWS: dict[str, tuple[np.ndarray, str, dict[str, Any]]] = {
    "image": (RNG.integers(0, 256, (24, 3, 32, 32), dtype=np.uint8), "cnn4", {}),
    "image of floats": (RNG.normal(size=(24, 1, 8, 8)), "mlp(norm=batch)", {}),
    "signal": (RNG.normal(5, 3, size=(24, 9, 128)), "har_cnn", {}),
    "table": (RNG.normal(100, 20, size=(24, 6)), "mlp", {}),
    "text": (RNG.integers(0, 50, (24, 20)), "fasttext", {"kind": "text"}),
}


SLOW = pytest.param("onnx", marks=pytest.mark.slow)
"""Its translation takes seconds."""


@cache
def trained(kind: str) -> PersonalModel:
    """A client's model of such rows."""
    x, network, more = ROWS[kind]
    source = Source.from_arrays(x, np.arange(24) % 3, normalize="site", **more)
    result = run(
        "fedper",
        federate(source, "iid", 2),
        model=network,
        rounds=1,
        steps=1,
        batch_size=4,
        progress=False,
    )
    return result.client(1)


@pytest.mark.parametrize("format", ["torch", "exported-program", SLOW])
@pytest.mark.parametrize("kind", ROWS)
def test_raw_rows_of_every_kind_go_in(kind: str, format: str, tmp_path: Path) -> None:
    model, x = trained(kind), ROWS[kind][0][:5]
    folder = export(model, format, tmp_path / "model")
    rows = torch.from_numpy(x).to(getattr(torch, model.card.dtype))
    assert (READERS[format](folder, rows) - model.predict(x)).abs().max() < CLOSE


TARGETS: dict[str, np.ndarray] = {
    "regression": RNG.normal(50, 10, size=(24, 2)),
    "multilabel": RNG.integers(0, 2, (24, 3)).astype(np.float32),
    "binary": np.arange(24) % 2,
}


@cache
def ended(task: str) -> Result:
    """A run with such targets."""
    x, y = ROWS["table"][0], TARGETS[task]
    return run(
        "fedper + prbm",
        federate(Source.from_arrays(x, y), "iid", 2),
        task=task,
        rounds=1,
        model="mlp(hidden=[8])",
        progress=False,
    )


@pytest.mark.parametrize("task", TARGETS)
def test_a_model_of_every_task_scores_what_the_run_recorded(task: str, tmp_path: Path) -> None:
    """Saved and read back; numbers are in the units of the data."""
    x, y, result = ROWS["table"][0], TARGETS[task], ended(task)
    model = result.client(1)
    rows = result.experiment.data.partition.clients[1].test  # type: ignore[union-attr]
    prediction = model.predict(x[rows])
    scores = model.program.task.scores(prediction, torch.from_numpy(y[rows]))
    assert scores == pytest.approx(model.card.metrics["test"])
    model.save(tmp_path / "saved")
    assert torch.equal(PersonalModel.load(tmp_path / "saved").predict(x[rows]), prediction)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("regression", "each number, in the unit of the data: target 0, target 1."),
        ("multilabel", "each label, with the probability that a row has it: label 0,"),
        ("binary", "each class, with its probability: 0, 1."),
    ],
)
def test_a_card_says_what_the_columns_of_a_task_are(task: str, words: str) -> None:
    assert f"One column for {words}" in ended(task).client(1).card.in_words()


@pytest.mark.parametrize("format", ["torch", "exported-program", SLOW])
@pytest.mark.parametrize("task", TARGETS)
def test_a_model_of_every_task_is_exported(task: str, format: str, tmp_path: Path) -> None:
    """Within 1e-5 of the size of what it predicts: numbers are in the units of the data."""
    x, model = ROWS["table"][0][:5], ended(task).client(1)
    folder, prediction = export(model, format, tmp_path / "exported"), model.predict(x)
    near = CLOSE * max(1.0, float(prediction.abs().max()))
    exported = READERS[format](folder, torch.from_numpy(x).float())
    assert (exported - prediction).abs().max() < near


@pytest.mark.parametrize("network", ["mlp(frozen='body.*')", "mlp(lora=2)"])
def test_what_is_frozen_or_adapted_leaves_with_the_model(network: str, tmp_path: Path) -> None:
    """States lack what nobody trains; a model that leaves has all of it."""
    x = ROWS["table"][0]
    source = Source.from_arrays(x, np.arange(24) % 3)
    result = run("fedper", federate(source, "iid", 2), model=network, rounds=2, progress=False)
    model = result.client(1)
    assert set(model.state["model"]) >= set(model.net.keys)
    model.save(tmp_path / "saved")
    prediction = model.predict(x)
    assert torch.equal(PersonalModel.load(tmp_path / "saved").predict(x), prediction)
    rows = result.experiment.data.partition.clients[1].test  # type: ignore[union-attr]
    accuracy = (prediction[rows].argmax(1).numpy() == (np.arange(24) % 3)[rows]).mean()
    assert accuracy == model.card.metrics["test"]["accuracy"]
