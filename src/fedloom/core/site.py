"""One client while it answers one message: its data, its model, and the one local training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Generator, Tensor

from fedloom.core.data import ClientData, Split
from fedloom.core.digest import digest
from fedloom.core.example_gradients import clipped_sum
from fedloom.core.message import Down, Plan
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net, stage_of
from fedloom.core.noise_source import NoiseSource, SecretNoise, SeededNoise
from fedloom.core.optimizers import OPTIMIZER, Optimizer, make_optimizer
from fedloom.core.outputs import FIXED_NUMBERS, SCAN_ROWS, passes
from fedloom.core.phase import Opt, Phase, Schedule
from fedloom.core.privacy import ExamplePrivacy
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.core.secure.slices import SECURE, of_method
from fedloom.core.stopwatch import timed
from fedloom.core.task import Task
from fedloom.core.term import Batch, Term
from fedloom.core.tree import (
    State,
    Tree,
    clone,
    clone_state,
    place,
    place_state,
    placed_state,
)
from fedloom.errors import BadInput, TrainingError

GATHERED_NUMBERS = 2**22
"""How many inputs are fetched at a time (16 MB)."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Visit:
    """One client about to answer one message. `own=None`: it never answered one before."""

    program: Program
    cid: int
    data: ClientData
    down: Down
    own: State | None = None
    device: torch.device = CPU
    noise_key: bytes | None = None
    """A site's secret, from which the noise that hides something is made; None: from the seed."""

    @property
    def place(self) -> str:
        """Client and round, for messages."""
        return f"client {self.cid}, {self.down.plan}"


@dataclass
class _Loop:
    """What one call of `fit` works with."""

    training: str
    phase: Phase
    opt: Opt
    keys: list[str]
    modes: frozenset[str] | bool
    terms: tuple[Term, ...]
    inputs: list[Callable[[Batch, Site], None]]
    losses: list[Callable[[Batch, Site], Tensor | float]]
    corrections: list[Callable[[Tree, Site], Tree]]
    optimizer: Optimizer
    loss_sum: Tensor
    fixed: dict[str, Tensor] = field(default_factory=dict)
    """Outputs, for every training row, of stages that cannot change during this fit."""
    tuning: bool = False
    epoch: int = 0
    applied: int = 0
    batches: int = 0


@dataclass(frozen=True)
class _ScanKey:
    """All that the outputs of a scan depend on. It holds the tensors themselves: the address of one
    that was freed could be another's by now."""

    stages: list[str]
    split: Split
    weights: list[tuple[Tensor, int]]
    """With their versions: a tensor may be changed in place."""

    def same(self, other: _ScanKey) -> bool:
        """Does the other scan have the same outputs?"""
        pairs = zip(self.weights, other.weights, strict=False)
        return (
            self.stages == other.stages
            and self.split is other.split
            and len(self.weights) == len(other.weights)
            and all(a is b and v == u for (a, v), (b, u) in pairs)
        )


class Site:
    """One client while it answers one message: what its hooks see."""

    cid: int
    """The client's id."""
    plan: Plan
    """The round: `plan.t` is its number, `plan.kind` is train, special or adapt."""
    data: ClientData
    """The client's rows: `data.train`, and `data.val` and `data.test` where it has them."""
    net: Net
    """The client's network, without weights: `net(w, x)` gives every stage's output by name."""
    w: Tree
    """The model in training; inside `loss` and `grads`, the tree that is differentiated."""
    received: Tree
    """The model as it arrived, made by `receive`."""
    down: State
    """What the server sent, by slice. Read-only: copy before you change anything."""
    own: State
    """What the client keeps from round to round, by slice; hooks write their own slice, and the
    loop writes `optimizer` where an optimiser's state is kept."""
    shared: frozenset[str]
    """Model keys that may leave the client."""
    memo: dict[Hashable, Any]
    """Scratch for the hooks of this call; forgotten after it."""
    method: Method
    """The method, with its settings."""
    terms: tuple[Term, ...]
    """The terms that are active; none in a special round, which belongs to one part."""
    opt: Opt
    """How the client trains; a hook may replace it for its own call."""
    task: Task
    """The loss and the metrics."""
    steps: int
    """Mini-batches trained in this call."""
    travel: dict[str, float]
    """For each key of the model, the sum of the learning rates of its steps."""
    mean_loss: float | None
    """Mean training loss of the last `fit` of the client's own model."""
    device: torch.device
    """Where it computes."""
    noise: NoiseSource
    """Of the run's `privacy`."""
    program: Program
    """What all clients of the run have in common."""

    def __init__(self, visit: Visit) -> None:
        self.program, self.plan = visit.program, visit.down.plan
        self.cid, self.data, self.device = visit.cid, visit.data, visit.device
        self.method, self.task = self.program.method, self.program.task
        self.opt = self.method.opt
        self.noise = _noise(visit)
        self.net = self.program.net(self.cid)
        self.shared = self.program.shared(self.cid)
        put_back = self.program.frozen.put_back
        self.down = placed_state(put_back(visit.down.state), self.device)
        own = of_method(visit.own)
        self.own = clone_state(place_state(put_back(own or {}), self.device))
        self.memo, self.travel = {}, {}
        self.steps, self.mean_loss = 0, None
        self.terms = () if self.plan.kind == "special" else self.method.terms
        self._fits = {"model": 0, "second": 0}
        self._loop: _Loop | None = None
        self._scanned: tuple[_ScanKey, dict[str, Tensor]] | None = None
        if own is None:
            for part in self.method.parts:
                self.own |= place_state(part.client_init(self), self.device)
        self.received = self.method.receive(self)
        self.w = self._first_model()

    def _first_model(self) -> Tree:
        """Where training begins; hooks may change it in place."""
        return clone(self.received)

    # ------------------------------------------------------------------ what can be looked up

    @property
    def start(self) -> Tree:
        """Where a second model of the client begins: what was sent, else the initial values."""
        initial = place_state({METHOD: self.net.tree()}, self.device)[METHOD]
        return clone({**initial, **self.down.get(METHOD, {})})

    @property
    def newcomer(self) -> bool:
        """The client took part in no training round; it joins after the last one."""
        return self.cid >= self.plan.clients

    @property
    def counts(self) -> Tensor:
        """Class counts [K] of the local training set; where rows have classes."""
        if self.task.targets != "classes":
            raise BadInput(
                f"{self.method.name} counts the rows of every class, and with the task"
                f" {str(self.task)!r} rows have none; its author adds needs = ('classes',)"
            )
        counts = torch.bincount(self.data.train.y, minlength=self.data.classes)
        return counts.float().to(self.device)

    @property
    def phase(self) -> Phase:
        """The phase that is being trained; only inside `fit`, as the next six."""
        return self._running.phase

    @property
    def training(self) -> str:
        """Which model is being trained: the client's own ("model") or another ("second")."""
        return self._running.training

    @property
    def lr(self) -> float:
        """The learning rate of this phase in this round."""
        return self._running.opt.lr

    @property
    def epoch(self) -> int:
        """Epochs of this phase that are over."""
        return self._running.epoch

    @property
    def tuning(self) -> bool:
        """The training is fine-tuning before a test, whose result goes to no server."""
        return self._running.tuning

    @property
    def keys(self) -> list[str]:
        """Tensors trained in this phase."""
        return self._running.keys

    @property
    def modes(self) -> frozenset[str] | bool:
        """Stages in training mode: pass as `train` to `net(...)` for extra forward passes."""
        return self._running.modes

    @property
    def _running(self) -> _Loop:
        if self._loop is None:
            raise RuntimeError("phase, keys, modes and lr exist only inside fit")
        return self._loop

    def gen(self, purpose: Hashable) -> Generator:
        """This client's generator for one purpose in this round."""
        return self.plan.gen(self.cid, purpose)

    def scan(self, stage: str, w: Tree | None = None, split: Split | None = None) -> Tensor:
        """A stage's output over the whole local training set, in order, evaluation mode."""
        tree, rows = self.w if w is None else w, self.data.train if split is None else split
        return self._scan([stage], tree, rows)[stage]

    @torch.no_grad()
    def _scan(self, stages: list[str], w: Tree, split: Split) -> dict[str, Tensor]:
        """Outputs of stages, each on the way to the last of them.

        The last scan is remembered: FedPAC reads the features that its frozen body then feeds to
        the head.
        """
        path = set(self.net.path_to(stages[-1]))
        weights = [(v, v._version) for k, v in w.items() if stage_of(k) in path]
        key = _ScanKey(stages, split, weights)
        if self._scanned is not None and self._scanned[0].same(key):
            return dict(self._scanned[1])
        parts: dict[str, list[Tensor]] = {stage: [] for stage in stages}
        known = self.program.outputs.over(split, self.device)
        for rows in passes(len(split), SCAN_ROWS):
            x = place(split.x(rows), self.device)
            with self._knowing(x, known, rows):
                out = self.net(w, x, want=stages[-1])
            for stage in stages:
                parts[stage].append(out[stage])
        outputs = {stage: torch.cat(chunks) for stage, chunks in parts.items()}
        random = any(map(self.net.draws, path))
        self._scanned = None if random else (key, outputs)
        return dict(outputs)

    def _knowing(
        self, x: Tensor, known: Mapping[str, Tensor], rows: Tensor
    ) -> AbstractContextManager[None]:
        """For these rows, what stages give that nobody trains."""
        outputs = {stage: z[rows.to(self.device)] for stage, z in known.items()}
        return self.net.knowing(x, outputs, self.program.frozen.are_in)

    # ------------------------------------------------------------------ the loop

    def fit(
        self,
        phase: Phase,
        w: Tree | None = None,
        terms: Sequence[Term] | None = None,
        plain: bool = False,
    ) -> Tree:
        """Train over one phase and return the trained tree.

        Without `w` the client's own model is trained and replaced; with it, a copy of `w` (a
        second model). `terms` stands in for the method's; `plain` takes ordinary gradient steps,
        where the method has a `step` of its own and terms correct gradients: fine-tuning with
        SCAFFOLD's correction would undo what it tunes.
        """
        which = "model" if w is None else "second"
        self._fits[which] += 1
        # The batch order depends on which model and how many times, so a second model's fit does
        # not move the first one's: Ditto's global model is FedAvg's, bit for bit.
        tag = (which, self._fits[which])
        outer = (self.w, self.terms, self._loop)
        begin = self.w if w is None else w
        self.w = clone(begin)
        self.terms = self.terms if terms is None else tuple(terms)
        schedule = phase.over(self.opt, self.plan.t)
        self._loop = loop = self._prepare(schedule, which)
        loop.tuning = plain
        if plain:
            loop.corrections = []
        keeps_optimizer = self._keeps_optimizer(loop) and not plain
        if keeps_optimizer:
            self._restore_optimizer(loop)
        with rng_scope(*self.plan.key, self.cid, "layers", *tag):
            loop.fixed = self._fixed_outputs(loop, begin)
            self._train(schedule, tag, plain)
        trained = {k: v.detach() for k, v in self.w.items()}
        if keeps_optimizer:
            self._store_optimizer(loop)
        if w is None:
            outer = (trained, *outer[1:])
            for k in loop.keys:
                self.travel[k] = self.travel.get(k, 0.0) + loop.opt.lr * loop.applied
            if loop.batches:
                self.mean_loss = float(loop.loss_sum) / loop.batches
        self.w, self.terms, self._loop = outer
        return trained

    def _prepare(self, schedule: Schedule, training: str) -> _Loop:
        phase, opt = schedule.phase, schedule.opt
        owner = {k: self.net.owner[stage_of(k)] for k in self.w if k in self.net.params}
        trained_terms = {t.name for t in self.terms if t.train}
        pattern = self.net.match(phase.train)
        of_method = [k for k, o in owner.items() if o == METHOD and k in pattern]
        of_terms = [k for k, o in owner.items() if o in trained_terms]
        keys = of_method + of_terms
        if not keys:
            raise BadInput(
                f"{self.method.name}: phase {phase.name!r} trains nothing of this model"
                f" ({phase.train!r}); choose a model with such stages"
            )
        for k in keys:
            self.w[k].requires_grad_(True)
        parts = (self.method, *self.terms)
        return _Loop(
            training=training,
            phase=phase,
            opt=opt,
            keys=keys,
            modes=self.net.moving(set(map(stage_of, keys))) if phase.frozen_eval else True,
            terms=self.terms,
            inputs=[p.inputs for p in parts if p.overrides("inputs")],
            losses=[t.loss for t in self.terms if t.overrides("loss")],
            corrections=[p.grads for p in parts if p.overrides("grads")],
            optimizer=make_optimizer([self.w[k] for k in keys], opt, decayed=len(of_method)),
            loss_sum=torch.zeros((), device=self.device),
        )

    # An optimiser's state that is kept lies in a slice of its own, under model, phase and tensor.

    def _keeps_optimizer(self, loop: _Loop) -> bool:
        """A round that trains may keep it; of a second model where its phase says so."""
        wanted = loop.opt.keep_state if loop.training == "model" else loop.phase.keep_state
        return bool(wanted) and self.plan.kind == "train"

    def _restore_optimizer(self, loop: _Loop) -> None:
        prefix = _optimizer_prefix(loop)
        kept = self.own.get(OPTIMIZER, {})
        state = {k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)}
        loop.optimizer.restore(loop.keys, state)

    def _store_optimizer(self, loop: _Loop) -> None:
        prefix = _optimizer_prefix(loop)
        kept = self.own.get(OPTIMIZER, {})
        of_others = {k: v for k, v in kept.items() if not k.startswith(prefix)}
        state = {prefix + k: v for k, v in loop.optimizer.state(loop.keys).items()}
        self.own[OPTIMIZER] = {**of_others, **state}

    def _train(self, schedule: Schedule, tag: tuple[Hashable, ...], plain: bool) -> None:
        loop = self._running
        order, augment = self.gen(("batches", *tag)), self.gen(("augment", *tag))
        known = self._known_outputs()
        for batches in schedule.epochs(len(self.data.train), order):
            for b in self._gathered(batches, augment):
                with self._knowing(b.x, known, b.idx):
                    if plain:
                        self.apply(self.grad(b))
                    else:
                        self.method.step(b, self)
                self.steps += 1
            loop.epoch += 1
            if not torch.isfinite(loop.loss_sum):
                raise TrainingError(
                    f"client {self.cid}, {self.plan}, phase {loop.phase.name!r},"
                    f" epoch {loop.epoch}: the loss is not finite;"
                    f" lower lr (now {loop.opt.lr:g}) or set clip"
                )

    def _gathered(self, batches: Sequence[Tensor], augment: Generator) -> Iterator[Batch]:
        """The batches of an epoch, their rows fetched many batches at a time; augmented rows batch
        by batch, because a batch's draws belong to it."""
        train = self.data.train
        width = 1 if train.augmented else max(1, GATHERED_NUMBERS // self._numbers(batches[0]))
        for at in range(0, len(batches), width):
            chunk = batches[at : at + width]
            sizes = [len(idx) for idx in chunk]
            with timed("data"):
                rows = torch.cat(tuple(chunk))
                x = torch.split(place(train.x(rows, augment), self.device), sizes)
                y = torch.split(train.y[rows].to(self.device), sizes)
            yield from map(Batch, x, y, chunk, y)

    def _numbers(self, batch: Tensor) -> int:
        """How many numbers the inputs of a batch hold."""
        return len(batch) * math.prod(self.net.shape)

    def _known_outputs(self) -> Mapping[str, Tensor]:
        """Of stages that nobody trains, for all training rows; nothing is known of rows that are
        augmented, or changed by a part."""
        train = self.data.train
        if train.augmented or self._running.inputs:
            return {}
        return self.program.outputs.over(train, self.device)

    def _fixed_outputs(self, loop: _Loop, w: Tree) -> dict[str, Tensor]:
        """A frozen body is run once over the data and not at every step.

        Only where that changes no result: no part changes inputs or adds a loss of its own, rows
        are not augmented, and the outputs are small enough to hold.
        """
        stages = self._fixed_stages(loop)
        return self._scan(stages, w, self.data.train) if stages else {}

    def _fixed_stages(self, loop: _Loop) -> list[str]:
        needs_every_batch = loop.inputs or loop.losses or self.data.train.augmented
        if isinstance(loop.modes, bool) or needs_every_batch:
            return []
        stages = list(takewhile(self._is_fixed, self.net.path_to(self.net.logits)))
        width = sum(self.net.shape_of(stage).numel() for stage in stages)
        return stages if width * len(self.data.train) <= FIXED_NUMBERS else []

    def _is_fixed(self, stage: str) -> bool:
        modes = self._running.modes
        return not isinstance(modes, bool) and stage not in modes and not self.net.draws(stage)

    def grad(self, b: Batch, w: Tree | None = None, corrected: bool = True) -> Tree:
        """The gradient of a batch: inputs, forward pass, the sum of all losses, corrections.

        Corrections are for the model that is averaged; `corrected=False` leaves them out, for a
        personal one.
        """
        loop, outer = self._running, self.w
        if w is not None:
            self.w = w
        for change in loop.inputs:
            change(b, self)
        fixed = {stage: z[b.idx] for stage, z in loop.fixed.items()}
        privacy = self.program.privacy
        if isinstance(privacy, ExamplePrivacy) and self.plan.kind == "special":
            raise BadInput(
                f"privacy = example(...) and {self.plan.part}: it takes gradients in a round of its"
                " own, which nobody counts; privacy = client(...) hides what it sends"
            )
        if isinstance(privacy, ExamplePrivacy) and self.plan.kind == "train" and not loop.tuning:
            g, loss = self._private_gradient(b, fixed, privacy)
        else:
            g, loss = self._gradient(b, fixed)
        loop.loss_sum += loss  # a tensor: no waiting for the device at every step
        loop.batches += 1
        with torch.no_grad():
            for correct in loop.corrections if corrected else ():
                g = correct(g, self)
        self.w = outer
        return g

    def _loss(self, b: Batch, fixed: Mapping[str, Tensor]) -> Tensor:
        """Forward pass and the sum of all losses."""
        b.out = self.net(self.w, b.x, train=self._running.modes, given=fixed)
        loss = self.method.loss(b, self)
        for extra in self._running.losses:
            loss = loss + extra(b, self)
        return loss

    def _gradient(self, b: Batch, fixed: Mapping[str, Tensor]) -> tuple[Tree, Tensor]:
        """Of the batch's loss, and that loss."""
        loss, keys = self._loss(b, fixed), self._running.keys
        leaves = [self.w[k] for k in keys]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        g = {
            k: torch.zeros_like(leaf) if v is None else v
            for k, leaf, v in zip(keys, leaves, gradients, strict=True)
        }
        return g, loss.detach()

    def _private_gradient(
        self, b: Batch, fixed: Mapping[str, Tensor], privacy: ExamplePrivacy
    ) -> tuple[Tree, Tensor]:
        """The mean of the rows' clipped gradients with noise, and the mean of their losses."""
        whole = self.w

        def loss_of_row(leaves: Tree, *row: Any) -> Tensor:
            x, y, idx, target, given = row
            self.w = {**whole, **leaves}
            one = Batch(x[None], y[None], idx[None], target[None])
            return self._loss(one, {stage: z[None] for stage, z in given.items()})

        leaves = {k: whole[k].detach() for k in self._running.keys}
        rows = (b.x, b.y, b.idx.to(self.device), b.target, fixed)
        try:
            g, losses = clipped_sum(loss_of_row, leaves, rows, len(b.y), privacy.clip)
        finally:
            self.w = whole
        spread = privacy.noise * privacy.clip
        for k, total in g.items():
            drawn = self.noise.normal("gradients", total)
            g[k] = (total + spread * drawn).to(total.dtype) / len(b.y)
        return g, losses.mean()

    def apply(self, g: Tree) -> None:
        """Clip and take the optimiser's step with this gradient."""
        loop = self._running
        loop.optimizer.step([g[k] for k in loop.keys])
        loop.applied += 1


def _noise(visit: Visit) -> NoiseSource:
    plan = visit.down.plan
    if visit.noise_key is None:
        return SeededNoise(plan, visit.cid)
    # Without what only masks need, which is new in every attempt: another noise on the same change
    # would tell more of it.
    states = [
        digest({name: tree for name, tree in state.items() if name != SECURE})
        for state in (visit.down.state, visit.own or {})
    ]
    return SecretNoise(visit.noise_key, repr((plan.key, visit.cid, *states)))


def _optimizer_prefix(loop: _Loop) -> str:
    """What the keys of a kept optimiser's state begin with."""
    return f"{loop.training}/{loop.phase.name}/"
