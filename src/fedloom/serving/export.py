"""A client's model in files, with its card: some need no fedloom to be used."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from fedloom.errors import BadInput, UnknownName, needs_extra
from fedloom.files import write_atomic
from fedloom.serving.graph import PREDICTION, ROWS, exported_program
from fedloom.serving.model import PersonalModel
from fedloom.serving.plain_module import written

Files = Mapping[str, bytes]
"""Name -> content."""


def export(model: PersonalModel, format: str, folder: str | Path) -> Path:
    """Write a model and its card into a folder that holds nothing else.

    `format` is one of `FORMATS`. The prediction includes normalisation: raw rows go in.
    """
    if format not in FORMATS:
        raise UnknownName("format", format, FORMATS)
    folder = empty_folder(Path(folder))
    if format == "safetensors":
        model.save(folder)
        return folder
    files = {**FORMATS[format](model), **model.word_file()}
    for name, content in files.items():
        write_atomic(folder / name, content)
    model.card.write(folder, files)
    return folder


def _program(model: PersonalModel) -> Files:
    """`torch.export.load("model.pt2").module()(rows)`."""
    saved = io.BytesIO()
    torch.export.save(exported_program(model), saved)
    return {"model.pt2": saved.getvalue()}


def _torch(model: PersonalModel) -> Files:
    """Plain torch source and its tensors."""
    from safetensors.torch import save

    card = model.card
    inputs = f"rows: {card.dtype} [n, {', '.join(map(str, card.shape))}]"
    if card.fields:
        inputs = "; ".join(map(str, card.fields))
    source, tensors = written(exported_program(model), "model.safetensors", inputs)
    return {"model.py": source.encode(), "model.safetensors": save(tensors)}


def _onnx(model: PersonalModel) -> Files:
    """For ONNX Runtime and others."""
    with needs_extra("export"):
        import onnx  # noqa: F401 (torch's exporter needs both)
        import onnxscript  # noqa: F401
    program = exported_program(model)
    with TemporaryDirectory() as scratch, _silent():
        program = program.run_decompositions(_WITHOUT_ONNX)
        file = Path(scratch) / "model.onnx"
        translated = torch.onnx.export(
            program,
            dynamo=True,
            input_names=None if model.card.fields else [ROWS],
            output_names=[PREDICTION],
            verbose=False,
        )
        assert translated is not None
        translated.save(str(file), external_data=False)
        return {"model.onnx": file.read_bytes()}


def _distances(a: Tensor, b: Tensor, p: float, mode: int | None = None) -> Tensor:
    """`torch.cdist`, which ONNX lacks, by its definition for the 2-norm."""
    if p != 2:
        raise BadInput(
            f"distances of the {p:g}-norm cannot be exported to ONNX; use another format"
        )
    return (a.unsqueeze(-2) - b.unsqueeze(-3)).pow(2).sum(-1).sqrt()


_WITHOUT_ONNX = {
    torch.ops.aten._cdist_forward.default: _distances,
    torch.ops.aten.cdist.default: _distances,
}
"""Operations without a translation -> what they are made of."""


@contextmanager
def _silent() -> Iterator[None]:
    """Without the exporter's remarks, which are about packages that nobody asked for."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def empty_folder(folder: Path) -> Path:
    """A folder without a model, made if missing: what lies there is not overwritten."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = next(folder.iterdir(), None)
    except OSError as e:
        raise BadInput(f"cannot make the folder {folder} ({e.strerror}); pick another") from None
    if taken is not None:
        raise BadInput(f"{folder} is not empty (it has {taken.name}); pick another --out")
    return folder


FORMATS: Mapping[str, Callable[[PersonalModel], Files]] = {
    "torch": _torch,
    "safetensors": lambda model: {},
    "onnx": _onnx,
    "exported-program": _program,
}
"""How a model can be written. torch: `model.py` and `model.safetensors`, which need torch alone;
exported-program: `model.pt2` for `torch.export.load`; onnx: `model.onnx`; safetensors: the method's
own tensors, for `PersonalModel.load`."""
