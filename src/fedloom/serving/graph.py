"""The whole prediction as one module and one graph: raw rows in, the task's prediction out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedloom.core.flat_rows import flat_rows, inputs_of
from fedloom.core.tree import State
from fedloom.errors import BadInput
from fedloom.serving.draws import FixedDraws
from fedloom.serving.model import PersonalModel

if TYPE_CHECKING:
    from torch.export import ExportedProgram

ROWS, PREDICTION = "rows", "prediction"
"""What the graph's input and output are called."""
_TRACED_ROWS = 3
"""Torch takes a dimension of 0 or 1 for fixed."""


class Predictor(nn.Module):
    """A client's model with every tensor as a buffer: weights, what the method keeps beside them,
    the encoder before the network, normalisation and draws."""

    def __init__(self, model: PersonalModel) -> None:
        super().__init__()
        # In a tuple, so that the network's own slots are not taken for further tensors.
        self._model = (model,)
        self._places: dict[str, tuple[str, str]] = {}
        for name, tree in model.state.items():
            for key, value in tree.items():
                buffer = self._new_buffer(f"{name}__{key}", value)
                self._places[buffer] = (name, key)
        encoding = {} if model.encoder is None else model.encoder.weights
        self._encoding = {k: self._new_buffer(f"encoder__{k}", v) for k, v in encoding.items()}
        scale, offset = model.card.preprocessing.scale_and_offset
        self._scale = self._constant("scale", scale)
        self._offset = self._constant("offset", offset)
        self._draws = [self._new_buffer(f"draw__{i}", drawn) for i, drawn in enumerate(model.draws)]

    def forward(self, rows: Tensor) -> Tensor:
        """The prediction of raw rows."""
        (model,) = self._model
        state: State = {name: {} for name in model.state}
        for buffer, (name, key) in self._places.items():
            state[name][key] = getattr(self, buffer)
        if model.encoder is not None:
            rows = model.encoder({k: getattr(self, b) for k, b in self._encoding.items()}, rows)
        scale, offset = self._value(self._scale), self._value(self._offset)
        inputs = model.card.preprocessing(rows, scale, offset)
        with FixedDraws([getattr(self, name) for name in self._draws]):
            return model.prediction(state, inputs)

    def _new_buffer(self, name: str, value: Tensor) -> str:
        """Register under a name that Python can write; the name."""
        plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
        while hasattr(self, plain):
            plain += "_"
        self.register_buffer(plain, value.detach().contiguous().clone())
        return plain

    def _constant(self, name: str, value: Tensor | float) -> str | float:
        return value if isinstance(value, float) else self._new_buffer(name, value)

    def _value(self, constant: str | float) -> Tensor | float:
        if isinstance(constant, float):
            return constant
        value: Tensor = getattr(self, constant)
        return value


class PredictorOfInputs(Predictor):
    """The same for several inputs, each an argument of its own, with its lengths where rows are of
    unlike length."""

    def __init__(self, model: PersonalModel, names: Iterable[str]) -> None:
        super().__init__(model)

        def forward(**inputs: Tensor) -> Tensor:
            return Predictor.forward(self, flat_rows(inputs.values()))

        # The tracer takes the arguments' names from the signature.
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward  # type: ignore[assignment]


def _inputs(model: PersonalModel) -> dict[str, Tensor]:
    """Rows of zeros by the names of a graph's arguments; of several inputs each in its own type."""
    fields, rows = tuple(model.card.fields), model.card.preprocessing.zeros(_TRACED_ROWS)
    if not fields:
        return {ROWS: rows}
    pixels = {field.name for field in fields if field.pixels}
    return {
        # A position cannot be an argument's name.
        f"input_{name}" if name[0].isdigit() else name: value.byte() if name in pixels else value
        for name, value in inputs_of(fields, rows).items()
    }


def exported_program(model: PersonalModel) -> ExportedProgram:
    """The prediction as a graph of torch operations, for any number of rows.

    It is traced with rows of zeros: nothing of anybody's data gets into it but what the method
    keeps.
    """
    inputs = _inputs(model)
    predictor = PredictorOfInputs(model, inputs) if model.card.fields else Predictor(model)
    any_number = {name: {0: torch.export.Dim(ROWS, min=1)} for name in inputs}
    with torch.no_grad(), _quiet(), _released(model):
        try:
            return torch.export.export(
                predictor.eval(),
                () if model.card.fields else tuple(inputs.values()),
                inputs if model.card.fields else None,
                dynamic_shapes=any_number,
                strict=False,
            )
        except Exception as e:  # the tracer's errors are of many kinds
            raise BadInput(
                f"{model.card.method} with network {model.card.network} cannot be exported as a"
                f" graph ({type(e).__name__}: {str(e).splitlines()[0]}); export it with --format"
                " safetensors, or change what its predict does with the number of rows"
            ) from e


@contextmanager
def _released(model: PersonalModel) -> Iterator[None]:
    """The tracer's tensors do not stay in the network's slots."""
    try:
        yield
    finally:
        model.net.unbind()
        if model.encoder is not None:
            model.encoder.net.unbind()


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
