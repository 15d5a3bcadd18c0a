"""What no client trains: it travels to a client once, and from then on a digest stands in for it.

Messages and states are written as if all of a network were trained. Where the frozen tensors of one
have the values that they had before the run, here and at every client, they can be left out without
a loss: whoever has the program puts them back. What a method keeps beside the model, a second one
for instance, may hold them too, under names of its own; so every slice is looked through.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor

from fedloom.core.digest import digest
from fedloom.core.net import METHOD, Net, stage_of
from fedloom.core.phase import Phase
from fedloom.core.tree import State, Tree, select
from fedloom.errors import BadInput

FROZEN = "@frozen"
"""The slice that tells where frozen tensors were left out; no part can have this name. Its keys are
`slice/` and what stands before the tensors' names there; its values are a digest of all frozen
tensors, and which of them were left out."""

MOST_CHECKED = 3
"""Trees that are remembered as having the frozen values: two models in training, and one more."""


def frozen_keys(net: Net, phases: Iterable[Phase]) -> frozenset[str]:
    """Tensors of the method's stages that none of the phases can change.

    Running statistics stay where nothing of their stage is trained, unless a phase has such stages
    in training mode.
    """
    trained = frozenset[str]()
    statistics_stay = True
    for phase in phases:
        trained |= net.match(phase.train) & net.params
        statistics_stay = statistics_stay and phase.frozen_eval
    trained_stages = {stage_of(k) for k in trained}

    def stays(key: str) -> bool:
        stage = stage_of(key)
        if net.owner[stage] != METHOD or key in trained:
            return False
        return net.is_parameter(key) or (statistics_stay and stage not in trained_stages)

    return frozenset(filter(stays, net.keys))


class Frozen:
    """The frozen tensors of a network, which states and messages do without.

    >>> from torch import nn
    >>> net = Net((2,), body=nn.Linear(2, 2), head=nn.Linear(2, 1)).freeze("body.*")
    >>> frozen = Frozen(net, frozen_keys(net, [Phase()]))
    >>> short = frozen.left_out({"model": net.tree()})
    >>> {name: list(tree) for name, tree in short.items()}
    {'model': ['head.weight', 'head.bias'], '@frozen': ['model/']}
    >>> sorted(frozen.put_back(short)["model"]) == sorted(net.keys)
    True
    """

    def __init__(self, net: Net, keys: frozenset[str] = frozenset()) -> None:
        self._net, self.keys = net, keys
        self._checked: list[list[tuple[Tensor, int]]] = []
        """Tensors with their versions of the last trees that held the frozen values. They are kept:
        the address of one that was freed could be another's by now."""

    @property
    def tree(self) -> Tree:
        """Their values, which are those that the network begins with."""
        return select(self._net.initial, self.keys)

    @cached_property
    def mark(self) -> Tensor:
        """Their digest, as 32 bytes."""
        return torch.tensor(list(bytes.fromhex(digest({METHOD: self.tree}))), dtype=torch.uint8)

    def left_out(self, state: State) -> State:
        """The state without the frozen tensors that it holds with their values."""
        if not self.keys or FROZEN in state:
            return state
        short, marks, values = dict(state), Tree(), self.tree
        for name, tree in state.items():
            gone: dict[str, set[str]] = {}
            for key, value in tree.items():
                prefix, of_net = self._parts(key)
                if of_net and _same(value, values[of_net]):
                    gone.setdefault(prefix, set()).add(of_net)
            for prefix, keys in gone.items():
                names = {prefix + key for key in keys}
                short[name] = {k: v for k, v in short[name].items() if k not in names}
                marks[f"{name}/{prefix}"] = self._mark_of(keys)
        return {**short, FROZEN: marks} if marks else state

    def put_back(self, state: State) -> State:
        """The state with the frozen tensors in their places; those of other values are refused."""
        if FROZEN not in state:
            return state
        whole = {name: tree for name, tree in state.items() if name != FROZEN}
        values = self.tree
        for place, mark in state[FROZEN].items():
            name, _, prefix = place.partition("/")
            added = {prefix + key: values[key] for key in self._keys_of(mark)}
            whole[name] = {**whole.get(name, {}), **added}
        return whole

    def _mark_of(self, keys: set[str]) -> Tensor:
        """The digest, then a byte for every frozen tensor: was it left out?"""
        bits = [key in keys for key in sorted(self.keys)]
        return torch.cat([self.mark, torch.tensor(bits, dtype=torch.uint8)])

    def _keys_of(self, mark: Tensor) -> list[str]:
        digest_here, bits = self.mark, mark.cpu()[len(self.mark) :]
        same = torch.equal(mark.cpu()[: len(digest_here)], digest_here)
        if not self.keys or not same or len(bits) != len(self.keys):
            raise BadInput(
                "the frozen tensors of the network here are not those that this state was made"
                " with; begin with the same weights (model, seed and start) everywhere"
            )
        return [key for key, bit in zip(sorted(self.keys), bits.tolist(), strict=True) if bit]

    def _parts(self, key: str) -> tuple[str, str]:
        """What a method puts before the name of a frozen tensor, and that name; both empty of
        other tensors."""
        for start, before in enumerate(["", *key[:-1]]):
            if not before.isalnum() and before != "_" and key[start:] in self.keys:
                return key[:start], key[start:]
        return "", ""

    def are_in(self, tree: Tree) -> bool:
        """Has a model the frozen values? Quick for one that had them a moment ago."""
        tensors = [(tree[k], tree[k]._version) for k in self.keys if k in tree]
        if len(tensors) < len(self.keys):
            return False
        for known in self._checked:
            if all(a is b and v == u for (a, v), (b, u) in zip(known, tensors, strict=True)):
                return True
        if not self._holds(tree):
            return False
        self._checked = [tensors, *self._checked[: MOST_CHECKED - 1]]
        return True

    def __getstate__(self) -> dict[str, object]:
        """For copies and worker processes."""
        return {**self.__dict__, "_checked": []}

    def _holds(self, tree: Tree) -> bool:
        return all(_same(tree[key], value) for key, value in self.tree.items())


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.dtype == b.dtype and torch.equal(a, b.to(a.device)))
