"""What an honest client would send: the server plays one with made-up rows, and compares.

Nobody declares the names and shapes of an upload; they follow from the method, the network and the
round. A client of a few random rows, trained here on the very message that goes out, has them all.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor

from fedloom.core.client import client
from fedloom.core.data import ClientData, HeldRows
from fedloom.core.message import Up
from fedloom.core.net import METHOD
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.site import Visit
from fedloom.core.tree import State
from fedloom.engines import Job

log = logging.getLogger("fedloom")

Form = dict[tuple[str, str], tuple[torch.Size, torch.dtype]]
"""(slice, key) -> shape and type."""
MOST_ROWS = 32


class ExpectedUpload:
    """A client that exists only to be compared with."""

    def __init__(self, program: Program, classes: int, tokens: bool) -> None:
        self.program, self.classes, self.tokens = program, classes, tokens
        self._own: State | None = None
        self._forms: dict[bool, Form | None] = {}

    def begin(self) -> None:
        """A round begins, in which uploads may look different."""
        self._forms = {}

    def refusal(self, job: Job, up: Up) -> str:
        """Why the upload of this job cannot be used; empty if it can."""
        if up.n < 1:
            return f"it says that it has {up.n} rows"
        if job.down.plan.kind == "adapt":  # nothing goes up
            return _difference(up.state, {})
        return (
            _personal(self.program, job.cid, up.state)
            or _difference(up.state, self._form(job))
            or _not_finite(up.state)
        )

    def _form(self, job: Job) -> Form | None:
        new = job.own is None
        if new not in self._forms:
            self._forms[new] = self._played(job)
        return self._forms[new]

    def _played(self, job: Job) -> Form | None:
        visit = Visit(self.program, job.cid, self._data(job.cid), job.down, None)
        try:
            up, kept = client(visit)
            if job.own is not None:
                up, self._own = client(replace(visit, own=self._own or kept))
        except Exception as e:  # such rows may be none the method can train on; no run ends here
            log.warning("names and shapes of uploads are not checked: %s: %s", type(e).__name__, e)
            return None
        return _form_of(up.state)

    def _data(self, cid: int) -> ClientData:
        shape = self.program.net(cid).shape
        rows = max(2, min(MOST_ROWS, self.program.method.opt.batch))
        gen = generator("phantom", cid)
        if self.tokens:
            x: Tensor = torch.randint(0, 2, (rows, *shape), generator=gen)
        else:
            x = torch.randn(rows, *shape, generator=gen)
        held = HeldRows(x, torch.arange(rows) % self.classes)
        return ClientData(held, held, held, self.classes)


def _form_of(state: State) -> Form:
    return {(n, k): (v.shape, v.dtype) for n, tree in state.items() for k, v in tree.items()}


def _personal(program: Program, cid: int, state: State) -> str:
    mine = program.net(cid).initial.keys() - program.shared(cid)
    leaked = sorted(mine & state.get(METHOD, {}).keys())
    return f"it holds the personal tensor {leaked[0]!r}" if leaked else ""


def _difference(state: State, form: Form | None) -> str:
    if form is None:
        return ""
    found = _form_of(state)
    for at in sorted(found.keys() | form.keys()):
        name = "/".join(at)
        if at not in form:
            return f"it holds the unknown tensor {name!r}"
        if at not in found:
            return f"it lacks the tensor {name!r}"
        if found[at] != form[at]:
            (shape, kind), (wanted, wanted_kind) = found[at], form[at]
            return f"{name!r} is {kind} {list(shape)}, not {wanted_kind} {list(wanted)}"
    return ""


def _not_finite(state: State) -> str:
    for name, tree in state.items():
        for key, value in tree.items():
            if not bool(torch.isfinite(value).all()):
                return f"'{name}/{key}' is not finite"
    return ""
