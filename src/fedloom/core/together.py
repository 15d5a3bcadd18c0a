"""What hooks see of clients that train side by side, where they are called once for all.

`Method.local` gets stacks, and what it computed with them would mix the clients. So it may train,
read what the clients have in common, and pass trees on from `own` to `fit` and back. Hooks that go
number by number may compute with the stacks as with the tensors of one client. Anything else ends
the attempt, and the clients are trained one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from fedloom.core.phase import Phase
from fedloom.core.term import Term
from fedloom.core.tree import Tree, unstacked

if TYPE_CHECKING:
    from fedloom.core.block import Block

COMMON = ("plan", "net", "shared", "method", "task", "terms", "opt", "device", "program")
"""What all members of a block have alike."""
COMMON_IN_A_FIT = ("phase", "training", "lr", "epoch", "tuning", "keys", "modes", "steps")
"""The same of what the loop says."""


class NotInCommon(RuntimeError):
    """What is called once for all asked for something of which every client has its own."""


@dataclass(frozen=True)
class Passed:
    """A tree of every member, stacked: to be passed on, not to be computed with."""

    tree: Tree


class Together:
    """Stands in for the `Site` in `local`."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.own = _Slices(block)

    def __getattr__(self, name: str) -> Any:
        if name in COMMON:
            return getattr(self._block, name)
        raise NotInCommon(f"{self._block.method.name}.local reads s.{name}, each client's own")

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name != "own":
            raise NotInCommon(f"{self._block.method.name}.local writes s.{name}")
        super().__setattr__(name, value)

    def fit(
        self,
        phase: Phase,
        w: Passed | None = None,
        terms: Sequence[Term] | None = None,
        plain: bool = False,
    ) -> Passed:
        """`Site.fit` of all members."""
        return Passed(self._block.fit(phase, None if w is None else w.tree, terms, plain))


class _Slices:
    """The slices that the members keep."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def __getitem__(self, name: str) -> Passed:
        trees = [member.own[name] for member in self._block.members]
        if any(tree.keys() != trees[0].keys() for tree in trees):
            raise NotInCommon(f"clients keep unlike tensors in {name!r}")
        return Passed({k: torch.stack([tree[k] for tree in trees]) for k in trees[0]})

    def __setitem__(self, name: str, value: Passed) -> None:
        """At once to every member: hooks of the next `fit` may read it."""
        if not isinstance(value, Passed):
            raise NotInCommon(f"local writes s.own[{name!r}], and did not get it from s.fit")
        parts = {k: unstacked(v) for k, v in value.tree.items()}
        for i, member in enumerate(self._block.members):
            member.own[name] = {k: v[i] for k, v in parts.items()}

    def __getattr__(self, name: str) -> Any:
        raise NotInCommon(f"local uses s.own.{name}")


class Stacks:
    """Stands in for the `Site` in hooks that go number by number: trees of all members, stacked.

    What a hook writes to `own` or `memo` stays here, and the members do not see it.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self.down, self.own = _Trees(block, "down"), _Trees(block, "own")
        self.memo = block.memo_of_stacks

    @property
    def w(self) -> Tree:
        """The models in training, or as it left them."""
        return self._block.w

    @cached_property
    def received(self) -> Tree:
        """The models as they arrived."""
        return _stacked([member.received for member in self._block.members])

    @property
    def travel(self) -> dict[str, float]:
        """The same for all, as the rates and the numbers of steps are."""
        return self._block.travel

    def __getattr__(self, name: str) -> Any:
        if name in COMMON or name in COMMON_IN_A_FIT:
            return getattr(self._block, name)
        raise NotInCommon(f"a hook that goes number by number reads s.{name}")


class _Trees:
    """Slices of all members, each stacked when it is first asked for."""

    def __init__(self, block: Block, of: Literal["down", "own"]) -> None:
        self._block, self._of = block, of
        self._trees: dict[str, Tree] = {}
        self.written: dict[str, Tree] = {}

    def __getitem__(self, name: str) -> Tree:
        if name in self.written:
            return self.written[name]
        if name not in self._trees:
            held = [getattr(member, self._of).get(name) for member in self._block.members]
            if None in held:
                raise NotInCommon(f"some clients have no {name!r} in s.{self._of}")
            self._trees[name] = _stacked(held)
        return self._trees[name]

    def get(self, name: str, default: Tree | None = None) -> Any:
        """The slice, or something else where no member has it."""
        held = any(name in getattr(member, self._of) for member in self._block.members)
        return self[name] if held or name in self.written else default

    def __setitem__(self, name: str, tree: Tree) -> None:
        if self._of == "down":
            raise NotInCommon(f"a hook writes s.down[{name!r}]")
        self.written[name] = tree


def _stacked(trees: Sequence[Tree]) -> Tree:
    """What is the same tensor for all of them is not copied."""
    first, size = trees[0], len(trees)
    if any(tree.keys() != first.keys() for tree in trees):
        raise NotInCommon("clients have unlike tensors")
    return {
        k: v.expand(size, *v.shape)
        if all(tree[k] is v for tree in trees)
        else torch.stack([tree[k] for tree in trees])
        for k, v in first.items()
    }
