"""Several clients trained side by side: every tensor gets one dimension more, in front.

A `Block` is a `Site` whose model is the stack of its members' models, so the loop, the update rule
and the optimiser are the ones of a single client, and the passes through the network are one
computation (`batched_layers`). What a client has for itself stays its own: the order of its
batches, its stream of random numbers, the norm of its gradient, and all that a method's hooks do.
`inputs`, `loss` and `grads` are called member by member with the member's own site and its share of
the batch, so a hook may do whatever it does alone, and a method knows nothing of blocks; but hooks
of which their part says that they go `number_by_number` are called once, with stacks. `local` is
called once for all: it may train, and pass trees on; for more it is refused (`together`).

Whether the bytes are those of the clients one by one is no promise; `engines.trials` compares
before it trusts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.func import vmap

from fedloom.core.batched_layers import (
    MOST_ROWS_OF_MEAN,
    has_batched_form,
    means_of_losses,
    side_by_side,
    vmap_knows,
)
from fedloom.core.data import ClientData, inputs_side_by_side
from fedloom.core.method import Method
from fedloom.core.net import INPUT, Net, stage_of
from fedloom.core.optimizers import clipped
from fedloom.core.outputs import SCAN_ROWS
from fedloom.core.phase import Opt, Phase, Schedule
from fedloom.core.privacy import ExamplePrivacy
from fedloom.core.program import Program
from fedloom.core.rng import Stream
from fedloom.core.site import Site, _Loop
from fedloom.core.stopwatch import timed
from fedloom.core.task import Binary, Classification, Task
from fedloom.core.term import Batch, Term, goes_number_by_number
from fedloom.core.together import Stacks, Together
from fedloom.core.tree import Tree, place, unstacked


def has_rows(data: ClientData) -> bool:
    """Are there rows, the same at every look? A batch's augmentations are drawn for it alone."""
    return len(data.train) > 0 and not data.train.augmented


def trains_together(program: Program, cid: int, kind: str, device: torch.device) -> bool:
    """Can clients with this client's network be trained side by side in rounds of one kind, and
    nothing tell the difference?"""
    method = program.method
    # Adapting steps plainly; head epochs begin from what `personalize` says.
    hooks = ("step",) if kind == "train" else ("personalize",)
    phases = method.gradient_phases if kind == "train" else program.adapt
    return (
        kind != "special"
        # Gradients of single rows have a dimension more already.
        and not isinstance(program.privacy, ExamplePrivacy)
        and all(_steps_alike(phase.over(method.opt).opt) for phase in phases)
        and all(getattr(type(method), hook) is getattr(Method, hook) for hook in hooks)
        and (device.type == "cpu" or not _acts_in_the_loop(method, program.task))
        and _mostly_as_one(program.net(cid), device)
    )


def _acts_in_the_loop(method: Method, task: Task) -> bool:
    """Do parts have hooks in the training loop? Those may draw, and only the CPU's stream is kept
    for every member."""
    hooks = ("inputs", "loss", "grads")
    return (
        not _is_mean_of_rows(task)
        or type(method).loss is not Method.loss
        or any(part.overrides(hook) for part in method.terms for hook in hooks)
        or any(method.overrides(hook) for hook in ("inputs", "grads"))
    )


def _is_mean_of_rows(task: Task) -> bool:
    """Is the loss of a batch the mean of its rows' losses, each of one class?"""
    return type(task) in (Classification, Binary) and getattr(task, "plain", False) is True


def _steps_alike(opt: Opt) -> bool:
    """Does its optimiser move stacked tensors as it moves single ones? The roots and quotients of
    the adaptive ones are of no such promise; and kept state is one client's."""
    return opt.name == "sgd" and not opt.keep_state


def _stages_as_one(net: Net, device: torch.device) -> frozenset[str]:
    """Stages that all members run as one computation."""
    if device.type == "cpu":
        reads_fields = {k for k, source in net.reads.items() if net.fields and source == INPUT}
        return frozenset(
            name
            for name in net.reads
            if has_batched_form(net.get_submodule(name)) and name not in reads_fields
        )
    return frozenset(name for name in net.reads if vmap_knows(net.get_submodule(name)))


def _mostly_as_one(net: Net, device: torch.device) -> bool:
    """Are most of the weights in stages that run as one? Others run client by client, and where
    these are the most, as in a convolutional network, a block gains nothing."""
    as_one = _stages_as_one(net, device)
    if device.type != "cpu":
        return as_one == net.reads.keys()  # streams are kept for the CPU only
    weights = {key: value.numel() for key, value in net.initial.items()}
    inside = sum(numbers for key, numbers in weights.items() if stage_of(key) in as_one)
    return 2 * inside > sum(weights.values())


class Member(Site):
    """One client in a block, which gives it its model."""

    def _first_model(self) -> Tree:
        return self.received


class Block(Site):
    """Sites of one round with the same net, the same options and equally many rows, as one.

    After `fit` and `hand_out` every member is as if it had been trained alone. `watch` is called
    before every step and may raise; the members are then of no more use.
    """

    def __init__(self, members: Sequence[Site], watch: Callable[[], None] = lambda: None) -> None:
        vars(self).update(vars(members[0]))  # program, plan, options: what they have in common
        common = (self.method.opt, self.net, len(self.data.train))
        if any((m.opt, m.net, len(m.data.train)) != common for m in members):
            raise ValueError("clients that train differently cannot be one block")
        self.members, self.watch = members, watch
        self.w = {k: torch.stack([m.w[k] for m in members]) for k in self.w}
        self.travel, self._fits = dict(self.travel), dict(self._fits)
        self._row = torch.arange(len(members), device=self.device)[:, None]
        self._as_one = _stages_as_one(self.net, self.device)
        self._rows: tuple[Tensor, Tensor] | None = None
        """Inputs and targets of all training rows, once they are needed."""
        self.memo_of_stacks: dict[Hashable, Any] = {}
        """Scratch of hooks that are called once for all."""

    def hand_out(self) -> None:
        """Nothing more is trained: each member gets its model, which nobody else will change."""
        shares = {k: unstacked(v) for k, v in self.w.items()}
        for i, member in enumerate(self.members):
            member.w = {k: place(v[i], self.device) for k, v in shares.items()}

    def train(self) -> None:
        """The method's local training of one round, of all members."""
        self.method.local(Together(self))  # type: ignore[arg-type]

    def fit(
        self,
        phase: Phase,
        w: Tree | None = None,
        terms: Sequence[Term] | None = None,
        plain: bool = False,
    ) -> Tree:
        """The one loop, and each member gets its share of what came out."""
        self._losses = torch.zeros(len(self.members), device=self.device)
        outer = [(m.w, m.terms, m._loop) for m in self.members]
        before = self.steps
        trained = super().fit(phase, w, terms, plain)
        steps, losses = self.steps - before, self._losses.tolist()
        for member, (own_model, own_terms, loop) in zip(self.members, outer, strict=True):
            member.w, member.terms, member._loop = own_model, own_terms, loop
            member.travel, member._fits = dict(self.travel), dict(self._fits)
            member.steps = self.steps
        if w is None and steps:
            for member, loss in zip(self.members, losses, strict=True):
                member.mean_loss = loss / steps
        return trained

    def _prepare(self, schedule: Schedule, training: str) -> _Loop:
        """The loop's optimiser does not clip: that is done in `apply`, by client. Its batches are
        the first member's; the other orders are kept for `_gathered`."""
        if not _steps_alike(schedule.opt):
            raise ValueError(f"optimizer {schedule.opt.name} does not move stacked tensors alike")
        self._clip = schedule.opt.clip
        rows, tag = len(self.data.train), (training, self._fits[training])
        gens = [m.gen(("batches", *tag)) for m in self.members[1:]]
        self._orders = [schedule.orders(rows, gen) for gen in gens]
        self._streams = [Stream(*self.plan.key, m.cid, "layers", *tag) for m in self.members]
        unclipped = replace(schedule, opt=replace(schedule.opt, clip=0.0))
        loop = super()._prepare(unclipped, training)
        for member in self.members:
            member.terms, member._loop = self.terms, loop
        adding = [term for term in self.terms if term.overrides("loss")]
        self._own_losses = (
            type(self.method).loss is not Method.loss
            or not _is_mean_of_rows(self.task)
            or not all(goes_number_by_number(term, "loss") for term in adding)
        )
        # All outputs are for hooks; a prediction needs only the way to it.
        hooks_read = self._own_losses or adding
        self._route = self.net._route(None if hooks_read else self.net.logits)
        some_alone = any(name not in self._as_one for name, _ in self._route)
        corrects = [p for p in (self.method, *self.terms) if p.overrides("grads")]
        self._corrects_at_once = all(goes_number_by_number(part, "grads") for part in corrects)
        self._stacks = Stacks(self)
        hooks = loop.inputs or (loop.corrections and not self._corrects_at_once)
        self._members_see_weights = self._own_losses or bool(hooks) or some_alone
        return loop

    def _gathered(self, batches: Sequence[Tensor], augment: Generator) -> Iterator[Batch]:
        """The batches of an epoch: x [B, n, ...], y and idx [B, n]."""
        orders = (torch.cat(tuple(batches)), *(next(order) for order in self._orders))
        with timed("data"):
            x, y = self._all_rows()
            idx = torch.stack(orders)
        end = 0
        for size in map(len, batches):
            self.watch()
            rows = idx[:, end : (end := end + size)].contiguous()
            at = self._row, rows.to(self.device)
            target = y[at]
            yield Batch(x[at], target, rows, target)

    def _all_rows(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the members' training rows, fetched once for all epochs."""
        if self._rows is None:
            splits = [member.data.train for member in self.members]
            y = torch.stack([split.y for split in splits])
            self._rows = inputs_side_by_side(splits).to(self.device), y.to(self.device)
        return self._rows

    def _known_outputs(self) -> Mapping[str, Tensor]:
        """Nothing: what is fixed is given to the members' pass, each its own rows."""
        return {}

    def _fixed_outputs(self, loop: _Loop, w: Tree) -> dict[str, Tensor]:
        """Over all rows of a client at once, as it does alone: of all clients together, or member
        by member."""
        stages = self._fixed_stages(loop)
        if not stages:
            return {}
        if self._as_one.issuperset(stages) and len(self.data.train) <= SCAN_ROWS:
            return self._fixed_as_one(stages)
        models = self._shares(w)
        by_member = [
            member._fixed_outputs(loop, model)
            for member, model in zip(self.members, models, strict=True)
        ]
        return {stage: torch.stack([out[stage] for out in by_member]) for stage in by_member[0]}

    @torch.no_grad()
    def _fixed_as_one(self, stages: Sequence[str]) -> dict[str, Tensor]:
        outputs = {INPUT: self._all_rows()[0]}
        for name, source in self.net._route(stages[-1]):
            outputs[name] = self._run_as_one(name, outputs[source], False)
        return {stage: outputs[stage] for stage in stages}

    def _shares(self, tree: Tree) -> list[Tree]:
        """Each member's part of stacked tensors, in the same memory."""
        parts = {k: v.unbind() for k, v in tree.items()}
        return [{k: v[i] for k, v in parts.items()} for i in range(len(self.members))]

    # ------------------------------------------------------------------ one step

    def grad(self, b: Batch, w: Tree | None = None, corrected: bool = True) -> Tree:
        """Every member's gradient, stacked: one forward and one backward pass."""
        if w is not None:
            raise ValueError("a block differentiates the models in training, no others")
        loop = self._running
        if self._members_see_weights:
            for member, share in zip(self.members, self._shares(self.w), strict=True):
                member.w, member.steps = share, self.steps
        if loop.inputs:
            self._change(b)
        self._pass_forward(b)
        losses, total = self._losses_of_members(b) if self._own_losses else self._losses_at_once(b)
        self._losses += losses
        loop.loss_sum += losses.sum()
        loop.batches += 1
        leaves = [self.w[k] for k in loop.keys]
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        g = {
            k: torch.zeros_like(leaf) if v is None else v
            for k, leaf, v in zip(loop.keys, leaves, gradients, strict=True)
        }
        return self._corrected(g) if loop.corrections and corrected else g

    def _change(self, b: Batch) -> None:
        """`inputs`, member by member."""
        own = [Batch(*one) for one in zip(b.x, b.y, b.idx, b.target, strict=True)]
        for member, stream, batch in zip(self.members, self._streams, own, strict=True):
            with stream:
                for change in self._running.inputs:
                    change(batch, member)
        b.x = torch.stack([batch.x for batch in own])
        b.target = torch.stack([batch.target for batch in own])

    def _pass_forward(self, b: Batch) -> None:
        """The outputs of the stages, [B, n, ...] each."""
        modes, fixed = self._running.modes, self._running.fixed
        b.out = {INPUT: b.x}
        b.out |= {stage: z[self._row, b.idx.to(self.device)] for stage, z in fixed.items()}
        for name, source in self._route:
            if name in b.out:
                continue
            z = b.out[source]
            if name in self._as_one:
                b.out[name] = self._run_as_one(name, z, modes)
                continue
            alone = []
            for member, stream, own in zip(self.members, self._streams, z.unbind(), strict=True):
                with stream:
                    alone.append(self.net.stage(member.w, name, own, modes))
            b.out[name] = torch.stack(alone)

    def _run_as_one(self, name: str, z: Tensor, modes: frozenset[str] | bool) -> Tensor:
        if self.device.type == "cpu":
            return side_by_side(self.net._ready(self.w, name, modes), z)
        return vmap(lambda w, own: self.net.stage(w, name, own, modes))(self.w, z)

    def _losses_at_once(self, b: Batch) -> tuple[Tensor, Tensor]:
        """Each member's loss with the bits of its own, and what is differentiated: their sum."""
        losses, total = self._losses_of_rows(b)
        for extra in self._running.losses:
            added = extra(b, self._stacks)  # type: ignore[arg-type]
            if isinstance(added, Tensor):
                if added.shape != losses.shape:
                    raise ValueError("a loss of clients side by side is no number for each of them")
                total = total + added.sum()
                added = added.detach()
            losses = losses + added
        return losses, total

    def _losses_of_rows(self, b: Batch) -> tuple[Tensor, Tensor]:
        """The task's alone; the sum is one of rows."""
        logits = b.out[self.net.logits]
        rows = self.task.loss(logits.flatten(0, 1), b.target.flatten(), reduction="none")
        if logits.shape[1] <= MOST_ROWS_OF_MEAN:
            losses = means_of_losses(rows.detach().view(b.target.shape))
        else:
            pairs = zip(logits.detach(), b.target, strict=True)
            losses = torch.stack([self.task.loss(z, y) for z, y in pairs])
        return losses, rows.sum() / logits.shape[1]

    def _losses_of_members(self, b: Batch) -> tuple[Tensor, Tensor]:
        """The same of hooks, each called with a member's own site and share of the batch."""
        outputs = {stage: z.unbind() for stage, z in b.out.items()}
        losses = []
        rows = zip(b.x, b.y, b.idx, b.target, strict=True)
        for i, (member, stream, row) in enumerate(
            zip(self.members, self._streams, rows, strict=True)
        ):
            own = Batch(*row, {stage: z[i] for stage, z in outputs.items()})
            with stream:
                loss = self.method.loss(own, member)
                for extra in self._running.losses:
                    loss = loss + extra(own, member)
            losses.append(loss)
        every = torch.stack(losses)
        return every.detach(), every.sum()

    @torch.no_grad()
    def _corrected(self, g: Tree) -> Tree:
        """`grads`, member by member where it must be."""
        if self._corrects_at_once:
            for correct in self._running.corrections:
                g = correct(g, self._stacks)  # type: ignore[arg-type]
            return g
        corrected = []
        for member, stream, share in zip(self.members, self._streams, self._shares(g), strict=True):
            own = share
            with stream:
                for correct in self._running.corrections:
                    own = correct(own, member)
            corrected.append(own)
        return {k: torch.stack([own[k] for own in corrected]) for k in self.keys}

    def apply(self, g: Tree) -> None:
        """Clip each member's gradient by its own norm and take the step."""
        if self._clip:
            by_client = vmap(partial(clipped, bound=self._clip))([g[k] for k in self.keys])
            g = dict(zip(self.keys, by_client, strict=True))
        super().apply(g)
