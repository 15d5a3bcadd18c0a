"""Trees: flat dictionaries of tensors, the only thing that travels or is saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Tree = dict[str, Tensor]
"""Key such as "body.0.weight" -> tensor; buffers included, tied tensors once."""
State = dict[str, Tree]
"""Slice -> tree; a slice is named after the part that writes it."""


def clone(tree: Mapping[str, Tensor]) -> Tree:
    """A detached copy that shares no storage with the original."""
    return {k: v.detach().clone() for k, v in tree.items()}


def clone_state(state: Mapping[str, Mapping[str, Tensor]]) -> State:
    """`clone` for every slice."""
    return {name: clone(tree) for name, tree in state.items()}


def place(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor as a site computes with it: on its device, and images and convolution kernels
    channels last, which is faster. No copy where it is so already."""
    if tensor.ndim == 4:
        return tensor.to(device, memory_format=torch.channels_last)
    return tensor.to(device)


def place_state(state: Mapping[str, Mapping[str, Tensor]], device: torch.device) -> State:
    """`place` for every tensor."""
    return {n: {k: place(v, device) for k, v in tree.items()} for n, tree in state.items()}


def plain(tensor: Tensor) -> Tensor:
    """A dense, contiguous copy on the CPU that shares its storage with no other tensor. Every
    tensor leaves a site in this form, so that a state's bytes do not depend on the device."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def plain_state(state: Mapping[str, Mapping[str, Tensor]]) -> State:
    """`plain` for every tensor."""
    return {n: {k: plain(v) for k, v in tree.items()} for n, tree in state.items()}


def select(tree: Mapping[str, Tensor], keys: Iterable[str]) -> Tree:
    """The part of a tree under the given keys, in the tree's own order."""
    wanted = frozenset(keys)
    return {k: v for k, v in tree.items() if k in wanted}


def nbytes(state: Mapping[str, Mapping[str, Tensor]]) -> int:
    """Bytes of all tensors of a state.

    >>> nbytes({"model": {"w": torch.zeros(3, 4)}, "dbe": {"n": torch.tensor(1)}})
    56
    """
    return sum(v.numel() * v.element_size() for tree in state.values() for v in tree.values())


class WeightedSum:
    """The one weighted mean: trees are folded in, one at a time, and may be forgotten afterwards.

    Accumulates in float64 and returns each tensor in its own type; integers (BatchNorm's
    `num_batches_tracked`) are rounded.

    >>> s = WeightedSum()
    >>> s.fold({"a": torch.tensor([0.0])}, 1.0)
    >>> s.fold({"a": torch.tensor([4.0])}, 3.0)
    >>> s.mean()["a"], s.sum()["a"]
    (tensor([3.]), tensor([12.]))
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._sum: Tree = {}
        self._dtype: dict[str, torch.dtype] = {}

    def fold(self, tree: Mapping[str, Tensor], weight: float) -> None:
        """Add one tree with its weight."""
        if not self._dtype:
            self._dtype = {k: v.dtype for k, v in tree.items()}
            self._sum = {k: v.detach().double() * weight for k, v in tree.items()}
        else:
            for k, total in self._sum.items():
                total.add_(tree[k].detach().double(), alpha=weight)
        self.weight += weight

    def sum(self) -> Tree:
        """The weighted sum."""
        return {k: _cast(v, self._dtype[k]) for k, v in self._sum.items()}

    def mean(self) -> Tree:
        """The weighted sum over the sum of weights."""
        return {k: _cast(v / self.weight, self._dtype[k]) for k, v in self._sum.items()}


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if dtype.is_floating_point else value.round().to(dtype)
