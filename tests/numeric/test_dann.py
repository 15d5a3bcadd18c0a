"""DANN: one step of both players against plain PyTorch, and who takes part."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from sums import model, played, runs_with_fedbr_and_dbe

from fedloom.core.client import client
from fedloom.core.message import Down
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.site import Visit
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.dann import DANN
from fedloom.methods.fedavg import FedAvg
from helpers import mlp, same, tables

DATA = tables(9, 7, 8)


def visit(term, cid, steps=1, clients=2):
    """A client's full-batch steps from the initial model, which is returned beside its upload."""
    opt = Opt(lr=0.5, batch=16, epochs=steps)
    program = Program(replace(FedAvg() + term, opt=opt), mlp(), clients)
    start = program.nets[0].tree()
    down = Down(program.schedule(1)[0], {"model": start})
    return start, client(Visit(program, cid, DATA.client(cid), down))[0].state["model"]


def bare(w, x, y, cid, lam, steps, lr=0.5):
    """theta_f <- theta_f - lr (dL_y - lam dL_d), theta_d <- theta_d - lr dL_d, at the same time."""
    for _ in range(steps):
        w = {k: v.detach().clone().requires_grad_() for k, v in w.items()}
        z = torch.relu(x @ w["body.0.weight"].T + w["body.0.bias"])
        task = F.cross_entropy(z @ w["head.weight"].T + w["head.bias"], y)
        guess = z
        for i in (0, 2, 4):
            guess = guess @ w[f"dann.{i}.weight"].T + w[f"dann.{i}.bias"]
            guess = torch.relu(guess) if i < 4 else guess
        domain = F.cross_entropy(guess, torch.full((len(y),), cid))
        leaves = list(w.values())
        g_y, g_d = (
            torch.autograd.grad(v, leaves, retain_graph=True, allow_unused=True)
            for v in (task, domain)
        )
        w = {
            k: v
            - lr
            * (
                (0 if a is None else a)
                + (0 if b is None else b) * (1 if k.startswith("dann") else -lam)
            )
            for (k, v), a, b in zip(w.items(), g_y, g_d, strict=True)
        }
    return w


@pytest.mark.parametrize("cid", [0, 1])
@pytest.mark.parametrize(("lam", "steps"), [(1.0, 1), (0.1, 1), (0.5, 3)])
def test_every_step_moves_both_players(cid, lam, steps):
    """Alternating players, a gradient that is not reversed, a discriminator scaled by lam or the
    label of another client would each give other tensors."""
    start, up = visit(DANN(lam=lam, width=8), cid, steps)
    train = DATA.client(cid).train
    expected = bare(start, train.rows, train.y, cid, lam, steps)
    for k, v in expected.items():
        assert torch.allclose(up[k], v, atol=1e-6), k
        assert not torch.equal(up[k], start[k]), k


def test_three_layers_of_the_papers_width_and_one_output_per_client():
    start, up = visit(DANN(), 0)
    shapes = [tuple(start[f"dann.{i}.weight"].shape) for i in (0, 2, 4)]
    assert shapes == [(256, 5), (256, 256), (2, 256)]
    assert {k for k in up if k.startswith("dann.")} == {k for k in start if k.startswith("dann.")}


def test_the_server_averages_the_discriminator():
    end = played(FedAvg() + DANN(width=4), rounds=1)
    ups = [(a.up.n, a.up.state["model"]["dann.4.bias"]) for a in end.answers]
    mean = sum(n * v.double() for n, v in ups) / sum(n for n, _ in ups)
    assert torch.allclose(end.server["model"]["dann.4.bias"].double(), mean, atol=1e-7)


def test_lam_0_leaves_the_model_as_fedavg_has_it():
    plain = model(FedAvg())
    without_lam = model(FedAvg() + DANN(lam=0.0, width=8))
    assert same({k: v for k, v in without_lam.items() if not k.startswith("dann.")}, plain)
    other = model(FedAvg() + DANN(width=8))
    assert not same({k: v for k, v in other.items() if not k.startswith("dann.")}, plain)


def test_a_newcomer_has_no_label():
    """Client 2 of two: it trains as FedAvg would and leaves the discriminator alone."""
    start, up = visit(DANN(width=8), 2, steps=3)
    _, plain = visit(DANN(lam=0.0, width=8), 2, steps=3)
    train = DATA.client(2).train
    expected = bare(start, train.rows, train.y, 0, 0.0, 3)
    assert same(up, plain)
    for k, v in up.items():
        moved = start[k] if k.startswith("dann.") else expected[k]
        assert torch.allclose(v, moved, atol=1e-6), k


def test_composes_and_refuses():
    runs_with_fedbr_and_dbe("fedavg", "dann")
    runs_with_fedbr_and_dbe("fedper", "dann")
    for wrong in ("lam=-1", "width=0"):
        with pytest.raises(BadInput, match="dann"):
            parse_method(f"fedavg + dann({wrong})")
