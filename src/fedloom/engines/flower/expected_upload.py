"""What an honest client would send: the server plays one with made-up rows, and compares.

Nobody declares the names and shapes of an upload; they follow from the method, the network and the
round. A client of a few random rows, trained here on the very message that goes out, has them all.
What a client should send must be known for its reply to count: a method that cannot be played is
refused before the run begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedloom.core.dry_run import MadeUpData, PlayedVisit, in_short, play, play_client
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.frozen import FROZEN
from fedloom.core.message import Up
from fedloom.core.metrics import metric
from fedloom.core.net import METHOD
from fedloom.core.program import Program
from fedloom.core.revelations import ROWS_UNTOLD
from fedloom.core.score import GLOBAL, ClientScore
from fedloom.core.secure.form import answer_form
from fedloom.core.secure.slices import SECURE
from fedloom.core.tree import State, Tree
from fedloom.engines import Job
from fedloom.engines.flower.reply_size import SMALL, most_bytes
from fedloom.errors import BadInput, FedloomError

Form = dict[tuple[str, str], tuple[torch.Size, torch.dtype]]
"""(slice, key) -> shape and type."""
MOST_ROWS = 32


class ExpectedUpload:
    """Plays clients of one run, and compares their uploads with what arrives."""

    def __init__(self, program: Program, classes: int, tokens: bool) -> None:
        """`tokens`: inputs are text. Refuses a method that cannot be played, by name."""
        self.program = in_short(program)
        rows = max(2, min(MOST_ROWS, program.method.opt.batch))
        self._data = MadeUpData(self.program, classes, rows, labels=classes, tokens=tokens)
        self._forms: dict[tuple[int, bool], Form] = {}
        """Of the round's uploads, by (number of the network, whether the client is new)."""
        self._marks: dict[tuple[int, bool], Tree] = {}
        """The same: what stands for frozen tensors in them."""
        self._kept: dict[int, State] = {}
        """Number of the network -> what a played client kept when it last came again."""
        self._score_names = self._play_first_round()

    def _play_first_round(self) -> dict[str, tuple[str, ...]]:
        """One client of every network; returns the models that are scored, with their metrics."""
        plans = [plan for plan in self.program.schedule(1) if plan.kind != "adapt"]
        one_of_each = range(min(self.program.clients, len(self.program.nets)))
        names: dict[str, tuple[str, ...]] = {}
        try:
            for played in play(self._data, plans, one_of_each):
                if played.visit.down.plan.kind == "train":
                    names |= score_names(played)
        except Exception as e:  # whatever it is, replies could not be checked
            raise BadInput(
                f"{_method_name(self.program)} cannot be run over Flower: played with made-up rows,"
                f" as the server does to check what clients send, it fails ({_reason(e)}); use"
                " another engine, or make it work with any rows"
            ) from e
        return names

    def begin_round(self) -> None:
        """Uploads of the round that begins may look different."""
        self._forms = {}

    def most_bytes(self, job: Job) -> int:
        """Bytes that a reply to this job may have."""
        if job.down.plan.kind == "adapt":
            return SMALL
        try:
            form = self._form(job)
        except Exception:  # `objection_to` says why; an error of the client's is small
            return SMALL
        nbytes = sum(shape.numel() * kind.itemsize for shape, kind in form.values())
        return most_bytes(nbytes, len(form))

    def objection_to(self, job: Job, up: Up) -> str:
        """Why the upload of this job cannot be used; empty if it can."""
        hidden = self.program.secure is not None
        if (up.n != ROWS_UNTOLD) if hidden else (up.n < 1):
            return f"it says that it has {up.n} rows"
        if job.down.plan.kind == "adapt":  # nothing goes up
            return _difference(up.state, {})
        try:
            form = self._form(job)
        except Exception as e:  # a reply that cannot be checked costs the round, not the run
            return f"what it should hold cannot be known ({_reason(e)})"
        return (
            _personal(self.program, job.cid, up.state)
            or _difference(up.state, form)
            or _other_frozen(up.state, self._marks.get(self._kind(job), {}))
            or _unusable(self.program.compression.restored(up.state, job.down.state))
        )

    def objection_to_scores(self, scores: Sequence[ClientScore], ask: Ask | None) -> str:
        """Why scores cannot be used; empty if they can. Not every client has every split."""
        seen = set()
        for score in scores:
            if ask is None or score.moment not in ask.moments or score.split not in ask.splits:
                return f"nobody asked for {score.moment!r} on {score.split!r}"
            names = self._score_names.get(score.model)
            if names is None or (score.model == GLOBAL) != (ask.model == GLOBAL):
                return f"nobody asked for a model {score.model!r}"
            if score.metrics.keys() != set(names):
                return f"its metrics are {sorted(score.metrics)}, not {sorted(names)}"
            for name, value in score.metrics.items():
                if not (metric(name).possible(value) and score.rows >= 1):
                    return f"a score of {value} on {score.rows} rows cannot be"
            key = (score.moment, score.split, score.model)
            if key in seen:
                return f"it has two scores of {' '.join(key)}"
            seen.add(key)
        return ""

    def _kind(self, job: Job) -> tuple[int, bool]:
        return job.cid % len(self.program.nets), job.own is None

    def _form(self, job: Job) -> Form:
        plan = job.down.plan
        if plan.part == SECURE:
            members = job.down.state.get(SECURE, {}).get("members", ())
            return _form_of(answer_form(plan.owner, len(members)))
        network, new = self._kind(job)
        if (network, new) not in self._forms:
            played = play_client(self._data, job.cid, job.down)
            if not new:
                kept = self._kept.get(network, played.kept)
                played = play_client(self._data, job.cid, job.down, kept)
                self._kept[network] = played.kept
            self._forms[network, new] = _form_of(played.up.state)
            self._marks[network, new] = played.up.state.get(FROZEN, {})
        return self._forms[network, new]


def score_names(played: PlayedVisit) -> dict[str, tuple[str, ...]]:
    """Model -> names of its metrics, as this client scores them when it comes again."""
    visit = replace(played.visit, own=played.kept)
    scores = evaluate(visit, Ask(("received",)))
    if not visit.program.global_model_missing():
        scores += evaluate(visit, Ask(("received",), model="global"))
    return {score.model: tuple(score.metrics) for score in scores}


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, FedloomError) else f"{type(error).__name__}: {error}"


def _method_name(program: Program) -> str:
    return " + ".join(part.name for part in program.method.parts)


def _form_of(state: State) -> Form:
    return {(n, k): (v.shape, v.dtype) for n, tree in state.items() for k, v in tree.items()}


def _personal(program: Program, cid: int, state: State) -> str:
    personal = program.net(cid).initial.keys() - program.shared(cid)
    leaked = sorted(personal & state.get(METHOD, {}).keys())
    return f"it holds the personal tensor {leaked[0]!r}" if leaked else ""


def _difference(state: State, expected: Form) -> str:
    actual = _form_of(state)
    for at in sorted(actual.keys() | expected.keys()):
        name = "/".join(at)
        if at not in expected:
            return f"it holds the unknown tensor {name!r}"
        if at not in actual:
            return f"it lacks the tensor {name!r}"
        if actual[at] != expected[at]:
            (shape, kind), (wanted, wanted_kind) = actual[at], expected[at]
            return f"{name!r} is {kind} {list(shape)}, not {wanted_kind} {list(wanted)}"
    return ""


def _other_frozen(state: State, expected: Tree) -> str:
    for place, mark in state.get(FROZEN, {}).items():
        if not torch.equal(mark, expected[place]):
            return "the tensors that nobody trains are others at this site than at the server"
    return ""


def _unusable(state: State) -> str:
    return _not_finite(state) or _below_zero(state)


def _not_finite(state: State) -> str:
    for name, tree in state.items():
        for key, value in tree.items():
            if not bool(torch.isfinite(value).all()):
                return f"'{name}/{key}' is not finite"
    return ""


def _below_zero(state: State) -> str:
    """A variance of BatchNorm, of which everybody who gets the mean takes the root."""
    for key, value in state.get(METHOD, {}).items():
        if key.endswith("running_var") and bool((value < 0).any()):
            return f"the variance {key!r} is below zero"
    return ""
