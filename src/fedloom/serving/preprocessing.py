"""From raw rows, as a client's data has them, to what its network reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.core.fields import Fields
from fedloom.core.flat_rows import empty_rows, without_padding
from fedloom.data.arrays import as_array
from fedloom.data.federated import Inputs
from fedloom.data.normalization import Scaling
from fedloom.data.several_inputs import checked_flat, flat, several
from fedloom.data.source import Kind, Source
from fedloom.errors import BadInput

Dtype = Literal["uint8", "float32", "int64"]
"""Of raw rows: pixels of one byte, numbers, or token ids."""


def raw_dtype(source: Source) -> Dtype:
    """Of the raw rows of a source."""
    if source.kind == "text":
        return "int64"
    return "uint8" if source.x.dtype == np.uint8 else "float32"


@dataclass(frozen=True)
class Preprocessing:
    """What raw rows look like, and by which mean and deviation they are normalised."""

    kind: Kind
    shape: tuple[int, ...]
    dtype: Dtype
    scaling: Scaling
    fields: Fields = ()
    """The inputs of a row, where there are several or rows are of unlike length."""
    encoded: tuple[int, ...] = ()
    """Shape of what a frozen encoder makes of a row, where one comes before the network; then it is
    this that is normalised."""

    @property
    def behind_encoder(self) -> Preprocessing:
        """Of what the encoder makes of rows; the same where there is none."""
        if not self.encoded:
            return self
        return replace(self, shape=self.encoded, dtype="float32", encoded=())

    def rows(self, x: Any) -> Tensor:
        """A user's rows as one tensor [n, ...] of the model's type, checked. Several inputs are
        given as for training, or as flat rows."""
        if self.fields:
            x = self._flat(x)
        array = as_array(x, "data 'rows': x")
        if array.dtype.kind not in "biuf":
            raise BadInput(f"rows are {array.dtype}, and the model takes numbers ({self.dtype})")
        if array.shape[1:] != self.shape or not array.ndim:
            raise BadInput(
                f"rows have shape {array.shape[1:]}, those of the model {self.shape}; give rows as"
                " the client's data has them, also where it is a single one: [1, ...]"
            )
        if not len(array):
            raise BadInput("there are no rows to predict; give at least one")
        if self.dtype == "float32":
            with np.errstate(over="ignore"):  # too large for 32 bits is infinite, and refused below
                array = array.astype(np.float32)
            if not np.isfinite(array).all():
                raise BadInput("rows have NaN or infinite values; fill or drop those rows")
        elif array.dtype != np.uint8:
            array = self._whole(array)
        return torch.from_numpy(np.ascontiguousarray(array))

    def _flat(self, x: Any) -> np.ndarray:
        """Rows of several inputs as flat rows."""
        if not isinstance(x, Mapping | tuple) and not several(x, rows=-1):
            array = as_array(x, "data 'rows': x")
            if array.ndim == 2 and array.shape[1] == self.shape[0] and array.dtype.kind in "biuf":
                return checked_flat(array, self.fields)
        return flat(x, "rows", fields=self.fields)[1]

    def _whole(self, array: np.ndarray) -> np.ndarray:
        """Whole numbers that are not negative, perhaps given in another type."""
        most = 255 if self.dtype == "uint8" else np.iinfo(np.int64).max
        with np.errstate(invalid="ignore"):
            whole = array.astype(np.int64)
        if (whole != array).any() or whole.min() < 0 or whole.max() > most:
            what = "pixels from 0 to 255" if self.dtype == "uint8" else "token ids"
            raise BadInput(f"the model takes {what} as whole numbers, and the rows hold others")
        return whole.astype(self.dtype)

    def zeros(self, n: int) -> Tensor:
        """Rows of nothing, to try a model with."""
        if self.fields:
            return empty_rows(self.fields, n)
        return torch.zeros(n, *self.shape, dtype=getattr(torch, self.dtype))

    @property
    def scale_and_offset(self) -> tuple[Tensor | float, Tensor | float]:
        """The network reads `raw * scale + offset`, computed as in training."""
        zeros = self.behind_encoder.zeros(1)
        inputs = Inputs(zeros, 1.0, 0.0, None, self.fields).scaled(self.scaling)
        return inputs.scale, inputs.offset

    def __call__(self, raw: Tensor, scale: Tensor | float, offset: Tensor | float) -> Tensor:
        """The network's input of checked rows, or of what the encoder made of them."""
        if self.dtype == "int64":
            return raw
        inputs = torch.mul(raw, scale).add(offset)
        return without_padding(self.fields, inputs) if self.fields else inputs
