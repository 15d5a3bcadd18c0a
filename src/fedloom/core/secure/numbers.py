"""Tensors as whole numbers modulo a power of 256, and their bytes in an upload."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.errors import TrainingError

Numbers = NDArray[np.uint64]

KINDS = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
"""Types of tensors, by the number that stands for one in an upload."""


class Rounded(NamedTuple):
    """A tensor in multiples of a step."""

    numbers: NDArray[np.int64]
    clipped: int
    """How many of its numbers were beyond the bound."""


def rounded(tensor: Tensor, step: float, levels: int, where: str) -> Rounded:
    """The nearest multiples of the step, `levels` at most; integers are taken as they are.

    >>> rounded(torch.tensor([0.3, -9.0]), step=0.25, levels=4, where="")
    Rounded(numbers=array([ 1, -4]), clipped=1)
    """
    values = tensor.detach().cpu().double().flatten().numpy()
    if not np.isfinite(values).all():
        raise TrainingError(f"{where} is not finite; lower lr or set clip")
    multiples = np.rint(values / step) if tensor.is_floating_point() else values
    within = np.clip(multiples, -levels, levels)
    return Rounded(within.astype(np.int64), int((within != multiples).sum()))


def packed(numbers: Numbers, modulus: int) -> Tensor:
    """The lower bytes of every number, [n, modulus / 8]."""
    count = modulus // 8
    as_bytes = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :count]
    return torch.from_numpy(np.ascontiguousarray(as_bytes))


def unpacked(tensor: Tensor) -> Numbers:
    """The reverse of `packed`."""
    count = tensor.shape[-1]
    wide = np.zeros((tensor.numel() // count, 8), np.uint8)
    wide[:, :count] = tensor.reshape(-1, count).numpy()
    return wide.reshape(-1).view("<u8").astype(np.uint64)


def signed(numbers: Numbers, modulus: int) -> NDArray[np.int64]:
    """Numbers modulo a power of two as those around 0.

    >>> signed(np.array([2**32 - 5, 7], np.uint64), 32).tolist()
    [-5, 7]
    """
    unused = np.uint64(64 - modulus)
    shifted = np.left_shift(numbers, unused).view(np.int64)
    return np.right_shift(shifted, np.int64(unused))


def as_tensor(data: bytes) -> Tensor:
    """Bytes as they travel."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def as_bytes(tensor: Tensor) -> bytes:
    """Bytes that travelled."""
    data: bytes = tensor.cpu().numpy().tobytes()
    return data
