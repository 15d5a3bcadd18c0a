"""Every registered method, recipe and term can be played with made-up rows."""

from __future__ import annotations

import pytest
import torch
from cases import ALL, case

from fedloom.core.dry_run import MadeUpData, in_short, play
from fedloom.core.tree import State
from fedloom.testing.case import CLIENTS, ROUNDS

Form = dict[tuple[str, str], tuple[torch.Size, torch.dtype]]


def form(state: State) -> Form:
    return {(n, k): (v.shape, v.dtype) for n, tree in state.items() for k, v in tree.items()}


@pytest.mark.parametrize("name", ALL)
def test_a_dry_run_shows_what_real_clients_send(name: str) -> None:
    """Names, shapes and types of every upload of a run on digits."""
    data = MadeUpData(in_short(case(name).program()), classes=10, rows=8, labels=10)
    played = play(data, data.program.schedule(ROUNDS), range(CLIENTS))
    assert {(p.visit.down.plan, p.visit.cid): form(p.up.state) for p in played} == {
        (real.plan, real.cid): form(real.up.state) for real in case(name).straight.answers
    }
