"""What the clients of a block send and keep, where `finish` is called once for all of them.

That is where all parts' `finish` goes number by number, and nothing else acts on single uploads:
no noise, masks, compression or hostile client, and no score of the trained model. What a hook made
of the stacks leaves as it is, and no client's model is ever taken out of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedloom.core.block import Block
from fedloom.core.compression import NONE
from fedloom.core.evaluate import Ask
from fedloom.core.hook_errors import naming_hooks
from fedloom.core.leaving import check_kept, check_upload
from fedloom.core.term import goes_number_by_number
from fedloom.core.together import Stacks
from fedloom.core.tree import State, plain_states, unstacked
from fedloom.errors import LeakError


def can_finish_together(block: Block, ask: Ask | None) -> bool:
    """Would every client by itself answer the same?"""
    program = block.program
    return (
        block.plan.kind == "train"
        and (ask is None or "trained" not in ask.moments)
        and block.device.type == "cpu"
        and program.privacy is None
        and program.secure is None
        and program.compression == NONE
        and not program.frozen.keys
        and not any(program.hostile_at(member.cid) for member in block.members)
        and all(goes_number_by_number(part, "finish") for part in block.method.parts)
    )


@torch.no_grad()
def finish_together(block: Block) -> list[tuple[State, State]]:
    """Of every member, what goes up and what it keeps, in the form in which it leaves."""
    stacks, up = Stacks(block), State()
    with naming_hooks("at clients side by side, ", block.plan):
        for part in block.method.parts:
            before, written = dict(stacks.own.written), stacks.own.written
            up |= part.finish(stacks)  # type: ignore[arg-type]
            new = [name for name, tree in written.items() if tree is not before.get(name)]
            _check_writes(block, new, part.name)
    check_upload(f"clients side by side, {block.plan}", stacks, up)
    written = stacks.own.written
    rest = []
    for member in block.members:
        check_kept(member)
        rest.append({n: tree for n, tree in member.own.items() if tree and n not in written})
    taken = set[int]()
    ups, own = _parts(up, len(rest), taken), _parts(written, len(rest), taken)
    answers = []
    for member, sent, left, mine in zip(block.members, ups, plain_states(rest), own, strict=True):
        kept = {name: mine.get(name) or left.get(name) for name in {**member.own, **written}}
        answers.append((sent, {name: tree for name, tree in kept.items() if tree}))
    return answers


def _parts(state: State, size: int, taken: set[int]) -> list[State]:
    """Every client's part of stacks, which share no memory with those that are taken."""
    parts: dict[str, dict[str, Sequence[torch.Tensor]]] = {}
    for name, tree in state.items():
        parts[name] = {}
        for key, stack in tree.items():
            if stack.shape[:1] != (size,):
                raise ValueError(f"{name}/{key} is no stack of the clients' tensors")
            dense = stack.detach().contiguous()
            memory = dense.untyped_storage()
            if memory.data_ptr() in taken or memory.nbytes() != dense.nbytes:
                dense = dense.clone()
            taken.add(dense.untyped_storage().data_ptr())
            parts[name][key] = unstacked(dense)
    return [
        {name: {k: v[i] for k, v in tree.items()} for name, tree in parts.items()}
        for i in range(size)
    ]


def _check_writes(block: Block, names: Sequence[str], writer: str) -> None:
    for name in names:
        if block.program.writers.get(name) != writer:
            raise LeakError(f"{block.plan}: {writer} wrote {name}, which belongs to another part")
