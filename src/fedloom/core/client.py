"""The client's answer to one message, with the checks that make it trustworthy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch

from fedloom.core.adaptation import adapt, adapted_model
from fedloom.core.block import Block, Member
from fedloom.core.compression import NONE, RESIDUAL
from fedloom.core.evaluate import FINAL, Ask, score_client
from fedloom.core.finish_together import can_finish_together, finish_together
from fedloom.core.hook_errors import naming_hooks
from fedloom.core.leaving import check_kept, check_upload
from fedloom.core.message import Up
from fedloom.core.method import Method
from fedloom.core.revelations import ROWS_UNTOLD
from fedloom.core.rng import Stream, rng_scope
from fedloom.core.score import ClientScore, Moment
from fedloom.core.secure import client as secure
from fedloom.core.secure.slices import SECURE, keep_secret, of_method
from fedloom.core.site import Site, Visit
from fedloom.core.stopwatch import timed
from fedloom.core.tree import State, Tree, clone_state, plain_state, plain_states
from fedloom.errors import LeakError

_Marks = dict[str, dict[str, int]]
"""Slice -> key -> identity and version of the tensor there, as one number: pairs of them would be
many objects for Python's garbage collector to look through."""


class _Received:
    """What clients got, as it was: hooks may read it and not change it. A tree that several of them
    got is looked at once."""

    def __init__(self, states: Sequence[State]) -> None:
        self._states = states
        self._slices = [_slices(state) for state in states]
        self._trees = {id(tree): tree for state in states for tree in state.values()}
        self._marks = self._marks_now()

    def _marks_now(self) -> list[dict[str, int]]:
        return [_marks_of(tree) for tree in self._trees.values()]

    def check(self, who: str) -> None:
        """Raise if it is not as it was."""
        slices = [_slices(state) for state in self._states]
        if slices != self._slices or self._marks_now() != self._marks:
            raise LeakError(f"{who}: a hook changed what was received; copy it first")


def _slices(state: State) -> dict[str, int]:
    return {name: id(tree) for name, tree in state.items()}


def client(visit: Visit, ask: Ask | None = None) -> tuple[Up, State]:
    """What goes up and what the client keeps.

    `ask` measures inside the call, where the trained model is at hand anyway.
    """
    # The whole call has a stream of its own: layers may draw outside the loop too.
    if visit.down.plan.part == SECURE:
        with timed("secure aggregation"):
            return secure.answer(visit)
    with timed("local training"), rng_scope(*_key(visit)), naming_hooks(f"at {visit.place}"):
        sent = _Received([visit.down.state])
        call = _Call(visit)
        # On another device it is a copy; and the site may have changed it while it was made.
        arrived = _Received([call.site.down])
        _learn(call.site)
        up, kept = call.answer(ask)
        for received in (sent, arrived):
            received.check(visit.place)
        return up.carrying(plain_state(up.state)), plain_state(kept)


def clients_together(
    visits: Sequence[Visit], ask: Ask | None = None, watch: Callable[[], None] = lambda: None
) -> list[tuple[Up, State]]:
    """`client` for several visits that train as one block; what that needs is in `block`.

    `watch` is called before every step and may raise.
    """
    with timed("local training"), rng_scope("block"):
        streams = [Stream(*_key(visit)) for visit in visits]
        sent, calls = _Received([visit.down.state for visit in visits]), []
        for visit, stream in zip(visits, streams, strict=True):
            named = naming_hooks("at client ", visit.cid, ", ", visit.down.plan)
            with stream if _may_draw_first(visit) else nullcontext(), named:
                calls.append(_Call(visit, Member))
        arrived = _Received([call.site.down for call in calls])
        block = Block([call.site for call in calls], watch)
        _learn_together(block)
        if can_finish_together(block, ask):
            states = finish_together(block)
            answers = [
                (call.leaving(up, ()), own) for call, (up, own) in zip(calls, states, strict=True)
            ]
        else:
            answers = _one_by_one(block, calls, streams, ask)
        for received in (sent, arrived):
            received.check(f"clients side by side, {block.plan}")
        return answers


def _may_draw_first(visit: Visit) -> bool:
    """Before training: to begin with a state, or to make a model of its own of what it received?"""
    method = visit.program.method
    receives = type(method).receive is not Method.receive
    return (
        of_method(visit.own) is None or receives or visit.program.hostile_at(visit.cid) is not None
    )


def _one_by_one(
    block: Block, calls: Sequence[_Call], streams: Sequence[Stream], ask: Ask | None
) -> list[tuple[Up, State]]:
    """The answers of clients that were trained together."""
    block.hand_out()
    ups, kept = [], []
    for call, stream in zip(calls, streams, strict=True):
        # Where this client's own call would be.
        visit = call.visit
        with stream, naming_hooks("at client ", visit.cid, ", ", visit.down.plan):
            up, own = call.answer(ask)
        ups.append(up)
        kept.append(own)
    sent = plain_states([up.state for up in ups])
    answers = zip(ups, sent, plain_states(kept), strict=True)
    return [(up.carrying(state), own) for up, state, own in answers]


class _Call:
    """A client's call up to its training and from there on."""

    def __init__(self, visit: Visit, site: type[Site] = Site) -> None:
        self.hostile = visit.program.hostile_at(visit.cid)
        if self.hostile is not None:
            visit = replace(visit, data=self.hostile.data(visit.data))
        self.visit, self.site = visit, site(visit)
        # A special round and an adaptation give back what was there, whatever was done to it.
        trains = visit.down.plan.kind == "train"
        self.kept = {} if trains else clone_state(self.site.own)

    def answer(self, ask: Ask | None) -> tuple[Up, State]:
        """What goes up and what is kept, measured and checked; not plain yet."""
        visit, site = self.visit, self.site
        up, scores = _UPLOADS[site.plan.kind](site, self.kept, ask)
        check_upload(f"client {site.cid}, {site.plan}", site, up)
        check_kept(site)
        kept = {name: tree for name, tree in site.own.items() if tree}
        left_out = site.program.frozen.left_out
        leaving = self.leaving(up, scores)
        if (privacy := site.program.privacy) is not None:
            leaving = privacy.leaving(leaving, site)
        state = left_out(leaving.state)
        if self.hostile is not None:
            state = self.hostile.upload(state, site.down, site.plan)
        kept = left_out(kept)
        if site.plan.kind == "train" and site.program.compression != NONE:
            state, kept = self._compressed(plain_state(state), plain_state(kept))
        leaving = leaving.carrying(state)
        if site.program.secure is not None:
            leaving = leaving.carrying(plain_state(state))
            leaving, kept = _hidden(visit, leaving), keep_secret(visit.own, kept)
        return leaving, kept

    def leaving(self, up: State, scores: tuple[ClientScore, ...]) -> Up:
        """The answer, with what is told beside the tensors."""
        loss = self.site.mean_loss
        return Up(up, len(self.visit.data.train), {} if loss is None else {"loss": loss}, scores)

    def _compressed(self, up: State, kept: State) -> tuple[State, State]:
        """The upload as it travels, and what is kept with what it left out."""
        site, compression = self.site, self.site.program.compression
        gen = site.plan.gen(site.cid, "compression")
        received, left = self.visit.down.state, kept.get(RESIDUAL, {})
        up, left = compression.compressed(up, received, site.net.params, left, gen)
        return up, {**kept, RESIDUAL: left} if left else kept


def _hidden(visit: Visit, leaving: Up) -> Up:
    """An upload behind its masks; an adaptation has nothing to hide but the number of rows."""
    state = leaving.state
    if visit.down.plan.kind != "adapt":
        with timed("secure aggregation"):
            state = secure.masked(visit, state, leaving.n)
    return replace(leaving, state=state, n=ROWS_UNTOLD)


def _learn(site: Site) -> None:
    """The training of a round that trains."""
    if site.plan.kind == "train":
        site.method.local(site)
    elif site.plan.kind == "adapt":
        adapt(site)


def _learn_together(block: Block) -> None:
    """The same of a block."""
    before = torch.get_rng_state()
    # Whose error it is shows where its clients are computed one by one.
    with naming_hooks("at clients side by side, ", block.plan):
        if block.plan.kind == "train":
            block.train()
        else:
            adapt(block)
    if not torch.equal(torch.get_rng_state(), before):
        raise ValueError("it draws outside of the training loop, and clients draw each for itself")


_Uploaded = tuple[State, tuple[ClientScore, ...]]


def _train(site: Site, kept: State, ask: Ask | None) -> _Uploaded:
    scores = _measure(site, ask, "trained", site.method.personalize)
    up: State = {}
    marks = _marks(site.own)
    for part in site.method.parts:
        up |= part.finish(site)
        marks = _check_writes(site, marks, part.name)
    return up, scores


def _special(site: Site, kept: State, ask: Ask | None) -> _Uploaded:
    """Only the owner's slice may change on either side; weights trained here vanish."""
    owner = site.program.owner(site.plan)
    up = owner.special(site)
    site.own = kept | {k: t for k, t in site.own.items() if k == owner.name}
    return up, ()


def _adapt(site: Site, kept: State, ask: Ask | None) -> _Uploaded:
    state = adapted_model(site)
    site.own = kept | {FINAL + name: tree for name, tree in state.items()}
    return {}, _measure(site, ask, "final", lambda site: state)


_UPLOADS = {"train": _train, "special": _special, "adapt": _adapt}
"""By a plan's kind: from a trained site to the upload; `kept` is what it had before training."""


def _measure(
    site: Site, ask: Ask | None, moment: Moment, model: Callable[[Site], State]
) -> tuple[ClientScore, ...]:
    if ask is None or moment not in ask.moments:
        return ()
    with timed("evaluation"), rng_scope(*site.plan.key, site.cid, "evaluate", moment):
        state = model(site)
        return tuple(score_client(site.program, site.cid, site.data, state, moment, ask))


def _check_writes(site: Site, before: _Marks, writer: str) -> _Marks:
    """What changed in `own` must belong to the part that was just called; returns how it is now."""
    after, writers = _marks(site.own), site.program.writers
    for name in before.keys() | after.keys():
        was, now = before.get(name, {}), after.get(name, {})
        if was != now and writers.get(name) != writer:
            key = next(k for k in was.keys() | now.keys() if was.get(k) != now.get(k))
            raise LeakError(
                f"client {site.cid}, {site.plan}: {writer} wrote {name}/{key},"
                " which belongs to another part"
            )
    return after


def _marks(state: State) -> _Marks:
    return {name: _marks_of(tree) for name, tree in state.items()}


def _marks_of(tree: Tree) -> dict[str, int]:
    return {k: id(v) + (v._version << 64) for k, v in tree.items()}


def _key(visit: Visit) -> tuple[Hashable, ...]:
    """Of the seeded scope of a client's whole call."""
    return (*visit.down.plan.key, visit.cid)
