"""Trees: flat dictionaries of tensors, the only thing that travels or is saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

Tree = dict[str, Tensor]
"""Key such as "body.0.weight" -> tensor; buffers included, tied tensors once."""
State = dict[str, Tree]
"""Slice -> tree; a slice is named after the part that writes it."""
FOLDED_TOGETHER = 32
"""Small trees that are added up by one call for each of their tensors."""
FOLDED_NUMBERS = 2**19
"""In such trees (4 MB as float64): large ones are added one by one."""
ALIGNMENT = 64
"""Bytes: where torch lets a tensor's memory begin."""


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
    # To ask is quicker than to move what is there.
    return tensor if tensor.device == device else tensor.to(device)


def placed_state(state: Mapping[str, Tree], device: torch.device) -> State:
    """`place_state` for what is only read: the very trees where their tensors are in place."""
    placed = place_state(state, device)
    return {
        name: tree if all(v is placed[name][k] for k, v in tree.items()) else placed[name]
        for name, tree in state.items()
    }


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


def unstacked(stack: Tensor) -> Sequence[Tensor]:
    """The parts of a dense stack, in its memory; or copies, where parts there would not be aligned
    as torch aligns its own tensors, which the bits of a product may depend on."""
    parts = stack.unbind()
    if parts and parts[0].nbytes % ALIGNMENT:
        return [part.clone() for part in parts]
    return parts


def with_own_memory(state: State) -> State:
    """The state without parts of larger tensors, which would keep all of these alive; the very same
    where there are none."""
    if not any(v._is_view() for tree in state.values() for v in tree.values()):
        return state
    return {
        name: {k: v.clone() if v._is_view() else v for k, v in tree.items()}
        for name, tree in state.items()
    }


def plain_states(states: Sequence[State]) -> list[State]:
    """`plain_state` of several; those of alike clients as parts of stacks, a copy for each key."""
    if len({form(state) for state in states}) != 1:
        return [plain_state(state) for state in states]
    stacks = {
        name: {k: unstacked(plain_stack([state[name][k] for state in states])) for k in tree}
        for name, tree in states[0].items()
    }
    return [
        {name: {k: parts[i] for k, parts in tree.items()} for name, tree in stacks.items()}
        for i in range(len(states))
    ]


def form(state: State) -> tuple[object, ...]:
    """What stacks need to be alike."""
    return tuple(
        (name, *[(k, v.dtype, v.shape) for k, v in tree.items()]) for name, tree in state.items()
    )


@torch.no_grad()
def plain_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one type and shape as one, dense and on the CPU."""
    return torch.stack(tuple(tensors)).cpu().contiguous()


def select(tree: Mapping[str, Tensor], keys: Iterable[str]) -> Tree:
    """The part of a tree under the given keys, in the tree's own order."""
    wanted = frozenset(keys)
    return {k: v for k, v in tree.items() if k in wanted}


def starting_point(tree: Mapping[str, Tensor], received: Mapping[str, Tensor]) -> Tree:
    """What each tensor of an upload began with; zeros where it was not sent down in this form."""
    return {
        key: received[key].to(value)
        if key in received and received[key].shape == value.shape
        else torch.zeros_like(value)
        for key, value in tree.items()
    }


def nbytes(state: Mapping[str, Mapping[str, Tensor]]) -> int:
    """Bytes of all tensors of a state.

    >>> nbytes({"model": {"w": torch.zeros(3, 4)}, "dbe": {"n": torch.tensor(1)}})
    56
    """
    # Loops and not a sum: small clients feel it, for each of whom it is asked several times.
    total = 0
    for tree in state.values():
        for value in tree.values():
            total += value.numel() * value.element_size()  # also of sparse ones
    return total


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
        self._alike: Tree = {}
        """Of tensors that were the same object in every tree so far; their sum is a product."""
        self._sum: Tree = {}
        self._dtype: dict[str, torch.dtype] = {}
        self._waiting: list[list[Tensor]] = []
        """Of trees of one weight that are in no sum yet: small ones are added several at once."""
        self._waiting_weight, self._most_waiting = 0.0, 1

    def fold(self, tree: Mapping[str, Tensor], weight: float) -> None:
        """Add one tree with its weight; its tensors stay as they are until the sum is asked for."""
        if not self._dtype:
            self._dtype = {k: v.dtype for k, v in tree.items()}
            self._alike = dict(tree)
        else:
            if unlike := [k for k, v in self._alike.items() if tree[k] is not v]:
                self._begin_sums(unlike)
            if weight != self._waiting_weight:
                self._add_waiting()
                self._waiting_weight = weight
            self._waiting.append([tree[k] for k in self._sum])
            if len(self._waiting) >= self._most_waiting:
                self._add_waiting()
        self.weight += weight

    def _begin_sums(self, keys: Iterable[str]) -> None:
        self._add_waiting()
        for k in keys:
            self._sum[k] = self._alike.pop(k).detach().double() * self.weight
        numbers = sum(v.numel() for v in self._sum.values())
        dense = all(v.is_cpu and v.is_contiguous() for v in self._sum.values())
        self._most_waiting = min(FOLDED_NUMBERS // max(numbers, 1), FOLDED_TOGETHER) if dense else 1

    @torch.no_grad()
    def _add_waiting(self) -> None:
        """In their order, one after the other, as one call for each would."""
        trees, self._waiting, weight = self._waiting, [], self._waiting_weight
        first = torch.zeros(len(trees), dtype=torch.long)
        for total, column in zip(self._sum.values(), zip(*trees, strict=True), strict=False):
            if len(column) > 1 and all(v.dtype == column[0].dtype for v in column):
                rows = torch.stack(column).double().view(len(column), total.numel())
                # Every row is added by the kernel that adds a tensor by itself.
                total.view(1, total.numel()).index_add_(0, first, rows, alpha=weight)
            else:
                for value in column:
                    total.add_(value, alpha=weight)

    def sum(self) -> Tree:
        """The weighted sum."""
        return {k: cast_back(self._total(k), kind) for k, kind in self._dtype.items()}

    def mean(self) -> Tree:
        """The weighted sum over the sum of weights."""
        return {k: cast_back(self._total(k) / self.weight, kind) for k, kind in self._dtype.items()}

    def _total(self, key: str) -> Tensor:
        self._add_waiting()
        if key in self._alike:
            return self._alike[key].detach().double() * self.weight
        return self._sum[key]


def cast_back(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A mean in float64 as a tensor of its own type; integers are rounded."""
    return value.to(dtype) if dtype.is_floating_point else value.round().to(dtype)
