"""Exported models, read as their users read them: without fedloom."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CLOSE = 1e-5
"""How near an exported model's predictions are to the evaluated ones."""


def opened(file: Path) -> Any:
    """A generated `model.py`, imported by its path."""
    spec = importlib.util.spec_from_file_location("generated_model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_program(folder: Path, rows: Tensor) -> Tensor:
    module: Any = torch.export.load(folder / "model.pt2").module()
    prediction: Tensor = module(rows)
    return prediction


def by_source(folder: Path, rows: Tensor) -> Tensor:
    prediction: Tensor = opened(folder / "model.py").load()(rows)
    return prediction


def by_onnx(folder: Path, rows: Tensor) -> Tensor:
    from onnxruntime import InferenceSession

    session = InferenceSession(folder / "model.onnx")
    return torch.from_numpy(session.run(None, {"rows": rows.numpy()})[0])


READERS = {"torch": by_source, "exported-program": by_program, "onnx": by_onnx}
"""Format of a graph -> how it is read and asked."""
