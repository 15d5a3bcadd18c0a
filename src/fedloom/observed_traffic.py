"""What a method sends, receives and keeps, seen in a tiny federation rather than written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from torch import Tensor, nn

from fedloom.core.dry_run import MadeUpData, PlayedVisit, play
from fedloom.core.evaluate import FINAL
from fedloom.core.frozen import FROZEN
from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net, stage_of
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.core.site import Site
from fedloom.core.threads import one_thread
from fedloom.core.tree import State, Tree
from fedloom.methods import parse_method, register

CLIENTS, CLASSES, FEATURES, INPUTS, ROWS, BATCH = 4, 5, 12, 16, 13, 7
"""All different, so that a size tells what it counts."""
WATCHED = 1
"""The client whose messages are described."""
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
        data = MadeUpData(program, CLASSES, ROWS, labels=2)
        run = play(data, program.schedule(2), range(CLIENTS))
        visits = [played for played in run if played.visit.cid == WATCHED]
        personal = _before_test(visits)
    words = _Words(program)
    up = words.over_rounds([(v.visit.down.plan, v.up.state) for v in visits])
    down = words.over_rounds([(v.visit.down.plan, v.visit.down.state) for v in visits])
    return Traffic(up, down, words.staying(visits, personal))


def _net() -> Net:
    """A body with BatchNorm, and a head."""
    with rng_scope("traffic"):
        body = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.BatchNorm1d(FEATURES), nn.ReLU())
        return Net((INPUTS,), body=body, head=nn.Linear(FEATURES, CLASSES))


def _last_training(visits: Sequence[PlayedVisit]) -> PlayedVisit:
    return [played for played in visits if played.visit.down.plan.kind == "train"][-1]


def _before_test(visits: Sequence[PlayedVisit]) -> State:
    """What the method makes of the client's state before a test, after the last training round."""
    last = _last_training(visits)
    with rng_scope("traffic", "test"):
        return last.visit.program.method.personalize(Site(replace(last.visit, own=last.kept)))


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

    def staying(self, visits: Sequence[PlayedVisit], personal: State) -> str:
        """What is kept between rounds, and what `personal` has beside it: made only for a test."""
        training = _last_training(visits)
        words = list(self.state(training.kept, own="own "))
        known = {*training.kept, *training.visit.down.state, METHOD}
        for_tests = {name: tree for name, tree in personal.items() if name not in known}
        words += [f"for tests {', '.join(self.state(for_tests))}"] if for_tests else []
        if FINAL + METHOD in visits[-1].kept:
            words.append("fine-tuned model")
        return _listed(words)

    def state(self, state: State, own: str = "") -> Iterator[str]:
        """Every slice: the model by its stages, the rest by name and shape."""
        for name, tree in state.items():
            if name == FROZEN:  # a few bytes in place of what is not sent again
                continue
            of_model = {k: v for k, v in tree.items() if k in self.net.initial}
            modules = [k for k in tree if "." in k and k not in of_model]
            parts = [*self.model(of_model), *dict.fromkeys(map(stage_of, modules))]
            if name == METHOD:
                yield from parts
            elif name == self.program.method.name:
                yield from (f"{own}{part}" for part in parts)
            elif parts:  # a term's slice is never expected to hold BatchNorm's statistics
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
        texts = {stage: self._stage(stage, tree) for stage in dict.fromkeys(map(stage_of, tree))}
        copies = {s for s in texts if s.rpartition("_")[0] in BASE and s[-1].isdigit()}
        if texts.keys() >= set(BASE) and all(map(_main, (texts[stage] for stage in BASE))):
            without = "".join(texts.pop(stage).removeprefix(stage) for stage in BASE)
            several = bool(copies) or first.ndim > initial.ndim
            yield f"{'several models' if several else 'model'}{without}"
        yield from dict.fromkeys(text for stage, text in texts.items() if stage not in copies)

    def _stage(self, stage: str, tree: Mapping[str, Tensor]) -> str:
        keys = self.net.match(f"{stage}.*")
        sent = keys & tree.keys()
        for layers, tag in ((STATISTICS, "@stats"), ("BatchNorm", "@bn")):
            tagged = self.net.match(tag) & keys
            if sent <= tagged:
                return layers
            if tagged and keys - sent == tagged:
                return f"{stage} without {layers}"
        return stage if sent == keys else f"part of {stage}"


def _main(text: str) -> bool:
    """Is it a stage, whole or without its BatchNorm, and not only that?"""
    return text.startswith(BASE)


def _shape(tensor: Tensor) -> str:
    sizes = [LETTERS.get(n, str(n)) for n in tensor.shape]
    return f" [{', '.join(sizes)}]" if sizes else ""


def _listed(words: list[str]) -> str:
    return ", ".join(words) or "nothing"
