"""What every comparison with an author's program needs, whichever the method.

A comparison is a `Parity`: small data, a network, our expression for the published reading, and two
functions that name the tensors of a round: one from fedloom's rounds, one from the author's program
that is driven with the same initial weights, rows and batches. `play` runs fedloom and writes down
which batches every client drew; `Batches` hands them to the author's training loop.
"""

from __future__ import annotations

import copy
import importlib
import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file
from torch import Generator, Tensor, nn

from fedloom.core.client import client
from fedloom.core.data import ClientData, HeldRows
from fedloom.core.message import Down, Plan, Up
from fedloom.core.net import Net
from fedloom.core.phase import Schedule
from fedloom.core.program import Program
from fedloom.core.rng import generator, rng_scope
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Visit
from fedloom.core.tree import State, Tree, clone
from fedloom.errors import BadInput
from fedloom.methods import parse_method

HERE = Path(__file__).parent
RESULTS, REFERENCE = HERE / "results", HERE / "reference"
LIMIT = 1e-4
"""A larger difference has to be explained by a named deviation."""
MARGIN = 1e-5
"""What another machine's arithmetic may add to the difference that was measured."""

# ------------------------------------------------------------------ what a comparison consists of


@dataclass(frozen=True)
class Deviation:
    """Where paper and published program disagree, and how the comparison deals with it."""

    what: str
    paper: str
    code: str
    flag: str
    """Our setting for the published reading, or how the program is driven instead."""


@dataclass(frozen=True)
class Parity:
    """One method against its author's program."""

    repository: str
    """owner/name on GitHub."""
    commit: str
    method: str
    """Our expression for the published reading, training settings included."""
    wrong: tuple[str, ...]
    """Expressions with another reading or hyper-parameter, which must not agree."""
    data: Sequence[ClientData]
    net: Callable[[], Net]
    ours: Callable[[Recorded], list[Tree]]
    """The tensors of every round under the names that `theirs` uses too."""
    theirs: Callable[[Recorded], list[Tree]]
    """Drive the author's program like the recorded rounds; its folder is on the path by then."""
    folder: str = "."
    """Where in the repository its modules are."""
    cohorts: tuple[tuple[int, ...] | None, ...] = (None, None, None)
    """Who takes part in each round; None: everybody."""
    patches: tuple[Callable[[], None], ...] = ()
    """Called before the author's modules are imported: what torch or numpy removed since, packages
    that are imported and not used. Name and docstring of each are published."""
    deviations: tuple[Deviation, ...] = ()


# ------------------------------------------------------------------ data and networks


def federation(
    sizes: Sequence[int],
    classes: int = 4,
    shape: tuple[int, ...] = (6,),
    held: Sequence[Sequence[int]] = (),
    test: int = 4,
    scale: float = 1.0,
) -> list[ClientData]:
    """Clients with so many training rows each, clouds around a point for each class, `scale` wide.

    `held` lists the classes of every client; without it all clients hold all classes.
    """
    centers = torch.randn(classes, *shape, generator=generator("parity", "centers"))

    def split(n: int, labels: Sequence[int], *key: object) -> HeldRows:
        y = torch.tensor([labels[i % len(labels)] for i in range(n)])
        noise = torch.randn(n, *shape, generator=generator("parity", *map(str, key)))
        return HeldRows(scale * (centers[y] + noise), y)

    members = []
    for cid, n in enumerate(sizes):
        labels = held[cid] if held else range(classes)
        rows = split(n, labels, "train", cid), split(test, labels, "test", cid)
        members.append(ClientData(rows[0], None, rows[1], classes))
    return members


def two_layers(
    width: int = 6, hidden: int = 5, classes: int = 4, activation: type[nn.Module] = nn.LeakyReLU
) -> Net:
    """A seeded net: body (a linear layer and an activation) and head."""
    with rng_scope("parity", "net"):
        body = nn.Sequential(nn.Linear(width, hidden), activation())
        return Net((width,), body=body, head=nn.Linear(hidden, classes))


def module_of(net: Net, *stages: str) -> nn.Sequential:
    """Copies of a net's stages (none named: all) as one ordinary module, with the net's initial
    weights and keys: what an author's program trains."""
    net.unbind()
    copies = nn.Sequential()
    for name in stages or tuple(net.reads):
        copies.add_module(name, _trainable_copy(net.get_submodule(name)))
    return copies


def _trainable_copy(module: nn.Module) -> nn.Module:
    """A copy whose weights are parameters again: a net that ran holds plain tensors."""
    fresh = copy.deepcopy(module)
    for part in fresh.modules():
        for leaf, value in list(part._parameters.items()):
            if value is not None:
                part._parameters[leaf] = nn.Parameter(value.detach().clone())
    return fresh


# ------------------------------------------------------------------ fedloom's rounds, written down


@dataclass(frozen=True)
class Fit:
    """One stretch of a client's training: row indices by epoch and batch."""

    phase: str
    epochs: list[list[Tensor]]


@dataclass
class Played:
    """One round of fedloom."""

    plan: Plan
    cohort: list[int]
    down: dict[int, Down]
    up: dict[int, Up]
    fits: dict[int, list[Fit]]
    server: State
    """After the round, as the next."""
    kept: dict[int, State]
    """Of every client so far; a client that never took part has no entry."""

    def epochs(self, cid: int, phase: str | None = None) -> list[list[Tensor]]:
        """All epochs of a client in this round, or those of one phase."""
        fits = [f for f in self.fits[cid] if phase is None or f.phase == phase]
        return [epoch for f in fits for epoch in f.epochs]


@dataclass
class Recorded:
    """All rounds of fedloom, special ones included, and what they began with."""

    parity: Parity
    program: Program
    rounds: list[Played] = field(default_factory=list)
    adapted: Played | None = None
    """The fine-tuning of all clients after the last round, for a method that has one."""

    @property
    def initial(self) -> Tree:
        """The model before the first round."""
        return self.program.nets[0].tree()

    @property
    def trained(self) -> list[Played]:
        """The rounds that train, without special ones."""
        return [r for r in self.rounds if r.plan.kind == "train"]


@contextmanager
def in_double(parity: Parity) -> Iterator[Parity]:
    """The same comparison in double precision, in which a difference that is rounding vanishes."""

    def net() -> Net:
        drawn = parity.net().tree()
        torch.set_default_dtype(torch.float64)
        wide = parity.net()
        wide.load_state_dict(drawn)
        return wide

    def widened(rows: HeldRows) -> HeldRows:
        return replace(rows, inputs=rows.inputs.double())

    data = [replace(m, train=widened(m.train), test=widened(m.test)) for m in parity.data]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # the net is drawn as in the other comparison
    try:
        yield replace(parity, data=data, net=net)
    finally:
        torch.set_default_dtype(before)


def play(parity: Parity, method: str | None = None) -> Recorded:
    """fedloom's rounds under the method of this comparison, or under another expression."""
    net = parity.net()
    program = Program(parse_method(method or parity.method), net, len(parity.data))
    recorded = Recorded(parity, program)
    server, kept = initial_server(program), dict[int, State]()
    for plan in program.schedule(len(parity.cohorts)):
        cohort = parity.cohorts[plan.t - 1] if plan.kind == "train" else None
        r = Round(program, plan, server, range(program.clients) if cohort is None else cohort)
        played = Played(plan, r.cohort, {}, {}, {}, {}, {})
        for cid in r.cohort:
            played.down[cid] = send(r, cid)
            visit = Visit(program, cid, parity.data[cid], played.down[cid], kept.get(cid))
            with _writing_down(played.fits.setdefault(cid, [])):
                played.up[cid], kept[cid] = client(visit)
            r.add(cid, played.up[cid])
        server = merge(r)
        played.server, played.kept = server, dict(kept)
        if plan.kind == "adapt":
            recorded.adapted = played
        else:
            recorded.rounds.append(played)
    return recorded


@contextmanager
def _writing_down(fits: list[Fit]) -> Iterator[None]:
    """Every batch order drawn inside is appended to `fits`."""
    draw = Schedule.epochs

    def drawn(schedule: Schedule, n: int, gen: Generator) -> Iterator[list[Tensor]]:
        fit = Fit(schedule.phase.name, [])
        fits.append(fit)
        for batches in draw(schedule, n, gen):
            fit.epochs.append(batches)
            yield batches

    with mock.patch.object(Schedule, "epochs", drawn):
        yield


# ------------------------------------------------------------------ driving an author's program


def empty_module(name: str, **attributes: Any) -> None:
    """An import of a package that the driven part does not use finds this instead."""
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(attributes)


class Batches:
    """A client's rows as a data loader that repeats recorded batches.

    Each pass over it takes the next of the epochs in `queue`; with an empty queue it gives all rows
    in order as one batch, which is what a pass for statistics needs.
    """

    def __init__(self, rows: HeldRows) -> None:
        self.rows = rows
        self.dataset = torch.utils.data.TensorDataset(rows.inputs, rows.y)
        self.queue: list[list[Tensor]] = []

    @property
    def in_order(self) -> list[Tensor]:
        """An epoch of one batch with all rows in order."""
        return [torch.arange(len(self.rows))]

    def __iter__(self) -> OnePass:
        epoch = self.queue.pop(0) if self.queue else self.in_order
        return OnePass([(self.rows.x(idx), self.rows.y[idx]) for idx in epoch])

    def __len__(self) -> int:
        return len(self.queue[0]) if self.queue else 1


class OnePass:
    """One pass over a loader; as a torch loader's, it knows how many batches there are."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self._count, self._batches = len(batches), iter(batches)

    def __iter__(self) -> OnePass:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        return next(self._batches)

    def __len__(self) -> int:
        return self._count


@contextmanager
def quiet() -> Iterator[None]:
    """What the author's program prints is dropped."""
    with redirect_stdout(io.StringIO()):
        yield


def under(prefix: str, tree: Mapping[str, Tensor], keys: Iterable[str] | None = None) -> Tree:
    """Copies of a tree's tensors (or of those under `keys`) with the prefix before their names.

    >>> list(under("client 0", {"head.weight": torch.zeros(1)}))
    ['client 0/head.weight']
    """
    wanted = tree if keys is None else {k: tree[k] for k in keys}
    return {f"{prefix}/{k}": v for k, v in clone(wanted).items()}


# ------------------------------------------------------------------ comparing


Table = dict[str, list[float | None]]
"""Tensor -> the difference in each round; None: the round has no such tensor."""


def differences(ours: Sequence[Tree], theirs: Sequence[Tree]) -> Table:
    """The largest difference in every tensor of every round."""
    if len(ours) != len(theirs):
        raise BadInput(f"{len(ours)} rounds of fedloom stand against {len(theirs)} of the authors")
    table: Table = {name: [None] * len(ours) for tree in ours for name in tree}
    for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine.keys() != other.keys():
            unmatched = sorted(mine.keys() ^ other.keys())
            raise BadInput(f"one side alone has these tensors: {', '.join(unmatched)}")
        for name in mine:
            table[name][at] = difference(mine[name], other[name])
    return table


def difference(a: Tensor, b: Tensor) -> float:
    """max |a - b| over max(1, max |b|); infinite where a number is missing."""
    if a.shape != b.shape:
        raise BadInput(f"tensors of shapes {tuple(a.shape)} and {tuple(b.shape)} are compared")
    if a.numel() == 0:
        return 0.0
    a, b = a.double(), b.double()
    distance = float((a - b).abs().max() / b.abs().max().clamp_min(1))
    return float("inf") if math.isnan(distance) else distance


def largest(table: Table) -> float:
    """Of all tensors and rounds."""
    return max(d for row in table.values() for d in row if d is not None)


def tolerance(measured: float) -> float:
    """How far the test lets fedloom be from the reference."""
    return min(measured + MARGIN, LIMIT)


def numbered(rounds: Sequence[Tree]) -> Tree:
    """One tree of all rounds, for a file: "1/server/head.weight"."""
    return {f"{t}/{k}": v.contiguous() for t, tree in enumerate(rounds, 1) for k, v in tree.items()}


def reference(name: str) -> list[Tree]:
    """The author's tensors as they were committed, by round."""
    rounds: dict[int, Tree] = {}
    for key, value in load_file(REFERENCE / f"{name}.safetensors").items():
        t, tensor = key.split("/", 1)
        rounds.setdefault(int(t), {})[tensor] = value
    return [rounds[t] for t in sorted(rounds)]


def comparisons() -> list[str]:
    """The methods that have a comparison: the files here that define `PARITY`."""
    return sorted(p.stem for p in HERE.glob("*.py") if "\nPARITY = " in p.read_text("utf-8"))


def comparison(name: str) -> Parity:
    """The comparison of one method."""
    if name not in comparisons():
        raise BadInput(f"no comparison {name!r}; choose one of {', '.join(comparisons())}")
    module: Any = importlib.import_module(f"reproduce.parity.{name}")
    parity: Parity = module.PARITY
    return parity
