"""Made-up rows: of the network's shape, of the classes asked for, token ids for text."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedloom.core.dry_run import MadeUpData, in_short, play, play_client
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, send
from fedloom.methods import parse_method
from fedloom.models import build_model
from helpers import mlp


def program(method: str = "fedper", clients: int = 3) -> Program:
    return Program(parse_method(method), mlp(), clients)


def test_every_client_has_its_own_classes() -> None:
    """Five rows of two classes in turn, the first one the client's number; of three there are."""
    data = MadeUpData(program(), classes=3, rows=5, labels=2)
    assert data.client(1).train.y.tolist() == [1, 2, 1, 2, 1]
    assert data.client(2).train.y.tolist() == [2, 0, 2, 0, 2]
    assert data.client(1).train.x(torch.arange(5)).shape == (5, 4)


def test_text_is_made_of_token_ids() -> None:
    net = build_model("fasttext", (12,), 3, seed=0, vocabulary=50)
    data = MadeUpData(Program(parse_method("fedavg"), net, 2), 3, 4, 3, tokens=True)
    assert data.client(0).train.x(torch.arange(4)).unique().tolist() == [0, 1]
    assert len(list(play(data, data.program.schedule(1), range(2)))) == 2


def test_a_client_that_comes_again_has_what_it_kept() -> None:
    data = MadeUpData(program(), 3, 5, 3)
    first, second = list(play(data, data.program.schedule(2), [1]))
    assert first.visit.own is None
    assert second.visit.own is first.kept


def test_a_played_client_answers_the_very_message() -> None:
    data = MadeUpData(program(), 3, 5, 3)
    (plan,) = data.program.schedule(1)
    down = send(Round(data.program, plan, initial_server(data.program), [2]), 2)
    played = play_client(data, 2, down)
    assert played.visit.down is down
    assert played.up.n == 5


def test_a_long_local_training_is_played_in_short() -> None:
    method = replace(parse_method("fedavg"), opt=Opt(lr=0.3, epochs=9, steps=1000))
    long = Program(method, mlp(), 2)
    assert in_short(long).method.opt == Opt(lr=0.3)
    assert long.method.opt.steps == 1000
