"""A masked upload: how a client makes one, and how the server adds them up.

A tensor [...] becomes bytes [..., modulus / 8] under its own name. Beside them, every slice has two
masked numbers, the client's weight and how many of its numbers were clipped, and the tensors' types
in the clear.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.core.frozen import FROZEN
from fedloom.core.program import Program
from fedloom.core.secure.numbers import KINDS, Numbers, packed, rounded, signed, unpacked
from fedloom.core.secure.setting import Pairwise
from fedloom.core.tree import State, Tree, cast_back
from fedloom.errors import BadInput

HEAD = "@head"
"""Key of the weight and the number of clipped numbers."""
TYPES = "@types"
"""Key of the tensors' types, by their keys in order."""

Place = tuple[str, str]
"""Slice and key."""


def clear_part(program: Program, upload: State) -> State:
    """What of an upload has no mask, masked or not: digests of frozen tensors, and what parts
    declare to tell nothing of rows."""
    clear_keys = {part.name: part.in_the_clear for part in program.method.parts}
    clear = {
        name: {
            key: value
            for key, value in tree.items()
            if name == FROZEN or key == TYPES or key in clear_keys.get(name, ())
        }
        for name, tree in upload.items()
    }
    return {name: tree for name, tree in clear.items() if tree}


def hidden_part(upload: State, clear: State) -> State:
    """The rest."""
    hidden = {
        name: {key: value for key, value in tree.items() if key not in clear.get(name, {})}
        for name, tree in upload.items()
    }
    return {name: tree for name, tree in hidden.items() if tree}


class Encoded:
    """An upload in whole numbers that are weighed already, before masks are added."""

    def __init__(self, setting: Pairwise, clear: State) -> None:
        self._setting = setting
        self._clear = {name: dict(tree) for name, tree in clear.items()}
        self._numbers: dict[Place, Numbers] = {}
        self._shapes: dict[Place, torch.Size] = {}

    def take(self, name: str, tree: Tree, weight: int, totals: bool, where: str) -> None:
        """One slice; `totals` says whether it holds a method's totals over rows."""
        levels, clipped = self._setting.levels(totals), 0
        for key, tensor in tree.items():
            multiples = rounded(tensor, self._setting.step, levels, f"{where}/{key}")
            self._numbers[name, key] = (multiples.numbers * weight).view(np.uint64)
            self._shapes[name, key] = tensor.shape
            clipped += multiples.clipped
        self._numbers[name, HEAD] = np.array([weight, clipped], np.uint64)
        self._shapes[name, HEAD] = torch.Size([2])
        types = [KINDS.index(tree[key].dtype) for key in sorted(tree)]
        self._clear.setdefault(name, {})[TYPES] = torch.tensor(types, dtype=torch.uint8)

    @property
    def count(self) -> int:
        """How many numbers take a mask."""
        return sum(map(len, self._numbers.values()))

    def masked(self, mask: Numbers) -> State:
        """What leaves the client."""
        state = {name: dict(tree) for name, tree in self._clear.items()}
        at, modulus = 0, self._setting.modulus
        for name, key in sorted(self._numbers):
            numbers, shape = self._numbers[name, key], self._shapes[name, key]
            hidden = packed(numbers + mask[at : at + len(numbers)], modulus)
            state[name][key] = hidden.reshape(*shape, modulus // 8)
            at += len(numbers)
        return state


class MaskedSum:
    """Masked uploads, added up as they are."""

    def __init__(self, setting: Pairwise) -> None:
        self._setting = setting
        self._shapes: dict[Place, torch.Size] | None = None
        self._clear = State()
        self._sum: Numbers = np.zeros(0, np.uint64)

    def add(self, cid: int, upload: State, clear: State) -> None:
        """One client's; `clear` is what of it has no mask."""
        rest = hidden_part(upload, clear)
        hidden = {(name, key): value for name, tree in rest.items() for key, value in tree.items()}
        places = sorted(hidden)
        shapes = {place: hidden[place].shape[:-1] for place in places}
        numbers = [unpacked(hidden[place]) for place in places]
        together = np.concatenate(numbers) if numbers else np.zeros(0, np.uint64)
        if self._shapes is None:
            self._shapes, self._clear, self._sum = shapes, clear, together
            return
        if shapes != self._shapes:
            raise BadInput(
                f"client {cid} sends other tensors than the clients before it, and masked ones"
                " cannot be added to others; leave out secure_aggregation"
            )
        self._sum = self._sum + together

    @property
    def count(self) -> int:
        """How many numbers take a mask."""
        return len(self._sum)

    def without(self, masks: Numbers) -> dict[str, SliceSum]:
        """The sums of all slices, when masks that are left are taken away."""
        whole = signed(self._sum - masks, self._setting.modulus)
        slices: dict[str, SliceSum] = {}
        sums: dict[str, dict[str, Tensor]] = {}
        at = 0
        for (name, key), shape in (self._shapes or {}).items():
            end = at + shape.numel()
            sums.setdefault(name, {})[key] = torch.from_numpy(whole[at:end].copy()).reshape(shape)
            at = end
        for name, tree in sums.items():
            weight, clipped = tree.pop(HEAD).tolist()
            types = [KINDS[code] for code in self._clear[name][TYPES].tolist()]
            dtypes = dict(zip(tree, types, strict=True))
            slices[name] = SliceSum(tree, dtypes, self._setting.step, weight, clipped)
        return slices


@dataclass
class SliceSum:
    """The sum of one slice over the clients of a round, in place of a `WeightedSum`."""

    sums: Tree
    """In multiples of the step."""
    dtypes: dict[str, torch.dtype]
    step: float
    weight: int
    clipped: int
    """How many numbers were, over all clients."""
    constants: Tree | None = None
    """What nobody trains, the same in all uploads."""

    def fold(self, tree: object, weight: float) -> None:
        """Nothing can be added any more."""
        raise RuntimeError("the sum of masked uploads is complete")

    def mean(self) -> Tree:
        """The sum over the sum of weights."""
        means = {k: self._cast(k, self._value(k) / self.weight) for k in self.sums}
        return {**means, **(self.constants or {})}

    def sum(self) -> Tree:
        """The weighted sum."""
        constants = {
            k: cast_back(v.double() * self.weight, v.dtype)
            for k, v in (self.constants or {}).items()
        }
        return {**{k: self._cast(k, self._value(k)) for k in self.sums}, **constants}

    def _value(self, key: str) -> Tensor:
        step = self.step if self.dtypes[key].is_floating_point else 1.0
        return self.sums[key].double() * step

    def _cast(self, key: str, value: Tensor) -> Tensor:
        return cast_back(value, self.dtypes[key])
