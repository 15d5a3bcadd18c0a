"""What a method sends, receives and keeps, seen in a tiny federation rather than written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from fedloom.core.client import client
from fedloom.core.data import ClientData, HeldRows
from fedloom.core.evaluate import FINAL
from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net, stage_of
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import generator, rng_scope
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Site, Visit
from fedloom.core.threads import one_thread
from fedloom.core.tree import State, Tree
from fedloom.methods import parse_method, register

CLIENTS, CLASSES, FEATURES, INPUTS, ROWS, BATCH = 4, 5, 12, 16, 13, 7
"""All different, so that a size tells what it counts."""
LETTERS = {CLIENTS: "N", CLASSES: "K", FEATURES: "d", INPUTS: "inputs", ROWS: "rows"}
BASE = ("body", "head")
"""Stages of the network before the method adds its own."""
STATISTICS = "BatchNorm statistics"


@dataclass(frozen=True)
class Traffic:
    """In words: what leaves a client, what it is sent, what it keeps or makes for itself.

    Every upload also carries the client's number of training rows. N is the number of clients, K
    of classes, d of features; other numbers are defaults of the method.
    """

    up: str
    down: str
    stays: str


@dataclass(frozen=True)
class _Seen:
    """One client's visit."""

    plan: Plan
    down: State
    up: State
    kept: State
    for_a_test: State


def runnable(name: str) -> str:
    """The expression that runs a registered name: a term is run on FedAvg.

    >>> runnable("proximal"), runnable("ditto")
    ('fedavg + proximal', 'ditto')
    """
    return name if isinstance(register[name](), Method) else f"fedavg + {name}"


def traffic(name: str) -> Traffic:
    """What travels with a registered method, recipe or term at its defaults.

    >>> traffic("fedper")
    Traffic(up='body', down='body', stays='head')
    """
    return traffic_of(runnable(name))


@cache
def traffic_of(expression: str) -> Traffic:
    """The same for any expression."""
    method = replace(parse_method(expression), opt=Opt(batch=BATCH))
    with one_thread():
        program = Program(method, _net(), CLIENTS)
        seen = list(_visits(program))
    words = _Words(program)
    up = words.over_rounds([(s.plan, s.up) for s in seen])
    down = words.over_rounds([(s.plan, s.down) for s in seen])
    return Traffic(up, down, words.staying(seen))


# ------------------------------------------------------------------ the tiny federation


def _net() -> Net:
    """A body with BatchNorm, and a head."""
    with rng_scope("traffic"):
        body = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.BatchNorm1d(FEATURES), nn.ReLU())
        return Net((INPUTS,), body=body, head=nn.Linear(FEATURES, CLASSES))


def _data(cid: int) -> ClientData:
    """Two classes of all."""
    inputs = torch.randn(ROWS, INPUTS, generator=generator("traffic", cid))
    rows = HeldRows(inputs, (torch.arange(ROWS) % 2 + cid) % CLASSES)
    return ClientData(rows, rows, rows, CLASSES)


def _visits(program: Program, watched: int = 1) -> Iterator[_Seen]:
    """One client's visits over two rounds and whatever comes before and after them."""
    server, kept = initial_server(program), dict[int, State]()
    plans = program.schedule(2)
    for plan in plans:
        cohort = [watched] if plan.kind == "adapt" else range(CLIENTS)
        r = Round(program, plan, server, cohort)
        for cid in cohort:
            visit = Visit(program, cid, _data(cid), send(r, cid), kept.get(cid))
            up, kept[cid] = client(visit)
            r.add(cid, up)
            if cid == watched:
                test = replace(visit, own=kept[cid])
                yield _Seen(plan, visit.down.state, up.state, kept[cid], _personal(test))
        server = merge(r) if plan is not plans[-1] else server


def _personal(visit: Visit) -> State:
    """What the method makes of the client's state before a test."""
    if visit.down.plan.kind != "train":
        return {}
    with rng_scope("traffic", "test"):
        return visit.program.method.personalize(Site(visit))


# ------------------------------------------------------------------ in words


class _Words:
    """Names for the trees of one program."""

    def __init__(self, program: Program) -> None:
        self.program, self.net = program, program.nets[0]

    def over_rounds(self, states: list[tuple[Plan, State]]) -> str:
        """All that is in the states; "(once)" is what the last training round does without."""
        training = [list(self.state(state)) for plan, state in states if plan.kind == "train"]
        others = [list(self.state(state)) for plan, state in states if plan.kind == "special"]
        always = training[-1]
        every = dict.fromkeys(word for words in (*training, *others) for word in words)
        once = [f"{word} (once)" for word in every if word not in always]
        return _listed([*always, *once])

    def staying(self, seen: list[_Seen]) -> str:
        """What is kept between rounds, or made for a test and not kept."""
        training = [s for s in seen if s.plan.kind == "train"][-1]
        words = list(self.state(training.kept, own="own "))
        known = {*training.kept, *training.down, METHOD}
        made = {name: t for name, t in training.for_a_test.items() if name not in known}
        words += [f"for tests {', '.join(self.state(made))}"] if made else []
        if FINAL + METHOD in seen[-1].kept:
            words.append("fine-tuned model")
        return _listed(words)

    def state(self, state: State, own: str = "") -> Iterator[str]:
        """Every slice: the model by its stages, the rest by name and shape."""
        for name, tree in state.items():
            of_model = {k: v for k, v in tree.items() if k in self.net.initial}
            modules = [k for k in tree if "." in k and k not in of_model]
            parts = [*self.model(of_model), *dict.fromkeys(map(stage_of, modules))]
            if name == METHOD:
                yield from parts
            elif name == self.program.method.name:
                yield from (f"{own}{part}" for part in parts)
            elif parts:  # in a term's slice BatchNorm's statistics are not missed
                yield f"{name} ({', '.join(parts)})".replace(f" without {STATISTICS}", "")
            yield from (f"{k}{_shape(v)}" for k, v in tree.items() if "." not in k)

    def model(self, tree: Tree) -> Iterator[str]:
        """Model keys as stages: "model", "body without BatchNorm", "several models"."""
        if not tree:
            return
        first, initial = next((v, self.net.initial[k]) for k, v in tree.items())
        if first.ndim < initial.ndim:
            yield "a number per tensor"
            return
        found = {stage: self._stage(stage, tree) for stage in dict.fromkeys(map(stage_of, tree))}
        twins = {s for s in found if s.rpartition("_")[0] in BASE and s[-1].isdigit()}
        if found.keys() >= set(BASE) and all(map(_main, (found[b] for b in BASE))):
            less = "".join(found.pop(stage).removeprefix(stage) for stage in BASE)
            yield f"{'several models' if twins or first.ndim > initial.ndim else 'model'}{less}"
        yield from dict.fromkeys(text for stage, text in found.items() if stage not in twins)

    def _stage(self, stage: str, tree: Mapping[str, Tensor]) -> str:
        keys = self.net.match(f"{stage}.*")
        here = keys & tree.keys()
        for what, tag in ((STATISTICS, "@stats"), ("BatchNorm", "@bn")):
            tagged = self.net.match(tag) & keys
            if here <= tagged:
                return what
            if tagged and keys - here == tagged:
                return f"{stage} without {what}"
        return stage if here == keys else f"part of {stage}"


def _main(text: str) -> bool:
    """Is it a stage, whole or without its BatchNorm, and not only that?"""
    return text.startswith(BASE)


def _shape(tensor: Tensor) -> str:
    sizes = [LETTERS.get(n, str(n)) for n in tensor.shape]
    return f" [{', '.join(sizes)}]" if sizes else ""


def _listed(words: list[str]) -> str:
    return ", ".join(words) or "nothing"
