"""Every registered method and term leaves the house: exported, it predicts as it was evaluated."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import ALL, case

from exported import CLOSE, READERS
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.runs.result import Result
from fedloom.serving.export import export
from fedloom.serving.model import PersonalModel

pytestmark = pytest.mark.xdist_group("exports")  # each method is trained once
UNLIKE = ["apfl", "fedcr", "knnper"]
"""A mixture, random draws and neighbours; the others are in the slow tests."""
REST = [pytest.param(name, marks=pytest.mark.slow) for name in ALL if name not in UNLIKE]
CLIENT = 1


@cache
def ended(name: str) -> Result:
    return start(case(name).experiment(rounds=1, eval_every=1), Inline())


def rows_of(result: Result, split: str = "test", cid: int = CLIENT) -> np.ndarray:
    data: Any = result.experiment.data
    return np.asarray(data.source.x)[getattr(data.partition.clients[cid], split)]


tested_graphs: set[str] = set()
"""As plain source. Most methods end in the same graph with other tensors, and the translation to
ONNX, which takes a second or two, depends on the graph alone."""


@pytest.mark.parametrize("name", [*UNLIKE, *REST])
def test_every_method_predicts_the_same_in_every_format(name: str, tmp_path: Path) -> None:
    """For one row and for several, of raw pixels."""
    model = ended(name).client(CLIENT)
    rows = torch.from_numpy(rows_of(ended(name)))
    expected = model.predict(rows.numpy())
    graph = tmp_path / "torch" / "model.py"
    for format, read in READERS.items():
        if format == "onnx" and graph.read_text() in tested_graphs:
            continue
        folder = export(model, format, tmp_path / format)
        assert (read(folder, rows) - expected).abs().max() < CLOSE, format
        assert (read(folder, rows[:1]) - expected[:1]).abs().max() < CLOSE, format
    tested_graphs.add(graph.read_text())
    folder = export(model, "safetensors", tmp_path / "safetensors")
    assert torch.equal(PersonalModel.load(folder).predict(rows), expected)


@pytest.mark.parametrize("name", [*UNLIKE, *REST])
def test_every_method_hands_out_the_model_that_was_scored(name: str) -> None:
    """By the same number on the client's test rows, also where the client joined last; a method
    that draws anew for every row is near it."""
    result = ended(name)
    data: Any = result.experiment.data
    for cid in (CLIENT, len(data) - 1):
        model = result.client(cid)
        labels = data.client(cid).test.y
        right = (model.predict(rows_of(result, cid=cid)).argmax(1) == labels).double().mean()
        tested = model.card.metrics_of_fixed_draws or model.card.metrics
        assert tested["test"]["accuracy"] == right
