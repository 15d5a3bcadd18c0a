"""Every kind of encoder leaves the house: exported, it predicts as it was evaluated."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from exported import CLOSE, READERS
from fedloom import Source, export, federate, run
from fedloom.serving.model import PersonalModel

pytestmark = pytest.mark.xdist_group("encoder exports")  # each encoder is trained once
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (18, 3, 32, 32), dtype=np.uint8)
TEXTS = RNG.integers(0, 40, (18, 12))
VIT = "name=vit, width=8, layers=1, heads=2, patch=16"
ENCODERS: dict[str, tuple[str, np.ndarray]] = {
    "vit": (f"transformers_encoder({VIT})", IMAGES),
    "bert": ("transformers_encoder(name=bert, width=8, layers=1, heads=2)", TEXTS),
    "cnn4 with adapters": ("cnn4(lora=2)", IMAGES),
    "vit with adapters": (f"transformers_encoder({VIT}, lora=2)", IMAGES),
    "vit without a pooler": (f"transformers_encoder({VIT.replace('vit', 'vit_mae')})", IMAGES),
    "cnn4": ("cnn4", IMAGES),
    "resnet18": ("resnet18", IMAGES),
    "efficientnet": (
        "efficientnet_lite0(after=stage6, frozen='body.*')",
        RNG.random((18, 192, 2, 2), np.float32),
    ),
}
QUICK = ["vit", "bert", "cnn4 with adapters"]
REST = [pytest.param(name, marks=pytest.mark.slow) for name in ENCODERS if name not in QUICK]


@cache
def trained(name: str) -> tuple[PersonalModel, torch.Tensor]:
    """A client's model after one step, and raw rows of its data."""
    network, rows = ENCODERS[name]
    if "transformers" in network:
        pytest.importorskip("transformers")
    more: dict[str, Any] = {"kind": "text"} if rows is TEXTS else {}
    data = federate(Source.from_arrays(rows, np.arange(18) % 3, **more), "iid", 2)
    result = run("fedper", data, model=network, rounds=1, steps=1, batch_size=4, progress=False)
    model = result.client(1)
    return model, torch.from_numpy(rows[:5]).to(getattr(torch, model.card.dtype))


@pytest.mark.parametrize("format", READERS)
@pytest.mark.parametrize("name", [*QUICK, *REST])
def test_an_encoder_predicts_the_same_in_every_format(
    name: str, format: str, tmp_path: Path
) -> None:
    """For one row and for several."""
    model, rows = trained(name)
    folder = export(model, format, tmp_path / "model")
    expected = model.predict(rows.numpy())
    assert (READERS[format](folder, rows) - expected).abs().max() < CLOSE
    assert (READERS[format](folder, rows[:1]) - expected[:1]).abs().max() < CLOSE
