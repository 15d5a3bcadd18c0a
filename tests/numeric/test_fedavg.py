"""FedAvg, FedAvg-FT and Local on quadratics: f_i(w) = (w - a_i)^2 / 2, so a local step is
w <- w - lr (w - a_i) and K steps leave w_K = a_i + (1 - lr)^K (w - a_i)."""

from __future__ import annotations

import pytest
import torch
from quadratic import Play, full, kept, point, product, rows, server_value, value
from torch import nn

from fedloom.core.client import client
from fedloom.core.data import ClientData
from fedloom.core.message import Down, Up
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, merge
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.site import Visit
from fedloom.core.tree import nbytes
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedavg_ft import FedAvgFT
from fedloom.methods.local import Local
from helpers import mlp, same, table

OPT = full(lr=0.5, epochs=2)
CLIENTS = (rows(16.0, n=1), rows(-8.0, n=3))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 0.5),
        ({"weighting": "uniform"}, 5.0),
        ({"server": ServerOpt(lr=0.5)}, 4.25),
        ({"server": ServerOpt(lr=2.0)}, -7.0),
        ({"server": ServerOpt(lr=0.0)}, 8.0),
        ({"weighting": "uniform", "server": ServerOpt(lr=0.5)}, 6.5),
    ],
)
def test_one_round(settings, expected):
    """w = 8, lr = 1/2, two steps: w_i = a_i + (8 - a_i)/4, so a = (16, -8) gives w_i = (14, -4).

    By samples, n = (1, 3): (14 - 12)/4 = 0.5; uniform: 5. The server goes from 8 by server_lr times
    the way: 8 + 0.5 (0.5 - 8) = 4.25, 8 + 2 (0.5 - 8) = -7, 8 + 0.5 (5 - 8) = 6.5.
    """
    play = Play(FedAvg(opt=OPT, **settings), point(8.0), *CLIENTS).round()
    assert [value(play.up[i].state["model"]) for i in (0, 1)] == [14.0, -4.0]
    assert server_value(play) == expected


def test_weights_are_of_the_cohort_not_of_everybody():
    """Only client 1 takes part: the mean is its own model, whatever share of all rows it holds."""
    assert server_value(Play(FedAvg(opt=OPT), point(8.0), *CLIENTS).round(1)) == -4.0


def test_two_rounds_and_the_fixed_point():
    """Round 1 ends at 0.5. Round 2: w_0 = 16 - 15.5/4 = 12.125, w_1 = -8 + 8.5/4 = -5.875, mean
    (12.125 - 17.625)/4 = -1.375. The map is w <- w/4 + 3/4 (16 - 24)/4, so w -> -2, the optimum of
    the pooled problem."""
    play = Play(FedAvg(opt=OPT), point(8.0), *CLIENTS).round().round()
    assert server_value(play) == -1.375
    for _ in range(40):
        play.round()
    assert server_value(play) == pytest.approx(-2.0, abs=1e-12)


def test_a_client_that_does_not_answer_is_left_out_of_the_mean():
    """Uploads 14 and -4, the second is lost: the mean over who answered is 14."""
    play = Play(FedAvg(opt=OPT), point(8.0), *CLIENTS).round()
    r = Round(play.program, play.program.schedule(1)[0], play.server, [0, 1])
    r.add(1, None)
    r.add(0, play.up[0])
    assert value(merge(r)["model"]) == 14.0


def test_uploads_are_folded_in_id_order_whatever_order_they_arrive_in():
    """1e16 + 1 - 1e16 is 0 in float64 in this order and 1 in the order 0, 2, 1: the sum must be
    the one of id order, bit for bit, in whatever order the cohort is listed and answers."""
    program = Program(FedAvg(weighting="uniform"), point(0.0), 3)
    ups = [Up({"model": {"head.weight": torch.tensor([[v]], dtype=torch.float64)}}, 1)
           for v in (1e16, 1.0, -1e16)]  # fmt: skip
    means = []
    for order in ([0, 1, 2], [0, 2, 1], [2, 1, 0]):
        r = Round(program, program.schedule(1)[0], initial_server(program), order)
        for cid in order:
            r.add(cid, ups[cid])
        means.append(value(merge(r)["model"]))
    assert means == [0.0, 0.0, 0.0]


def test_local_training_is_a_bare_loop_of_torch_bit_for_bit():
    """Two epochs of mini-batches on an MLP against a plain module and torch.optim.SGD."""
    opt = Opt(lr=0.1, epochs=2, batch=4, momentum=0.9, weight_decay=0.01)
    net, data = mlp(), ClientData(table(13), None, None, 3)
    program = Program(FedAvg(opt=opt), net, 1)
    plan, server = program.schedule(1)[0], initial_server(program)
    up, _ = client(Visit(program, 0, data, Down(plan, server)))

    bare = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    names = {"body.0": "0", "head": "2"}
    where = {f"{k}.{leaf}": f"{v}.{leaf}" for k, v in names.items() for leaf in ("weight", "bias")}
    bare.load_state_dict({where[k]: v for k, v in net.tree().items()})
    sgd = torch.optim.SGD(bare.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    order = plan.gen(0, ("batches", "model", 1))
    for _ in range(2):
        for idx in torch.randperm(13, generator=order).split(4):
            sgd.zero_grad()
            nn.functional.cross_entropy(bare(data.train.x(idx)), data.train.y[idx]).backward()
            sgd.step()
    assert same(up.state["model"], {k: bare.state_dict()[v] for k, v in where.items()})


# ------------------------------------------------------------------ FedAvg-FT


def test_fedavg_ft_final_is_fedavg_plus_fine_tuning_by_hand():
    """FedAvg's first round ends at w = 0.5 (above). Three steps of fine-tuning at lr = 1/2 leave
    a_i + (0.5 - a_i)/8: 16 - 15.5/8 = 14.0625 and -8 + 8.5/8 = -6.9375. The server's model is
    FedAvg's before and after, and the last round uploads nothing."""
    play = Play(FedAvgFT(opt=OPT, adapt_epochs=3), point(8.0), *CLIENTS).round().adapt()
    assert server_value(play) == 0.5
    assert [kept(play, i, "final/model") for i in (0, 1)] == [14.0625, -6.9375]
    assert [nbytes(play.up[i].state) for i in (0, 1)] == [0, 0]


def test_fedavg_ft_trains_as_fedavg_bit_for_bit():
    """Two rounds of mini-batches on an MLP; the adaptation comes after and changes nothing."""
    opt = Opt(lr=0.1, batch=3)
    data = [ClientData(table(8, key=i), None, None, 3) for i in range(2)]
    servers = []
    for method in (FedAvg(opt=opt), FedAvgFT(opt=opt, adapt_epochs=2)):
        program = Program(method, mlp(), 2)
        server = initial_server(program)
        own: list = [None, None]
        for plan in program.schedule(2):
            r = Round(program, plan, server, [0, 1])
            for i in (0, 1):
                up, own[i] = client(Visit(program, i, data[i], Down(plan, server), own[i]))
                r.add(i, up)
            server = merge(r)
        servers.append(server["model"])
    assert same(*servers)
    assert not same(own[0]["final/model"], servers[1])
    assert not same(own[0]["final/model"], own[1]["final/model"])


@pytest.mark.parametrize(("tune", "b", "h"), [("head.*", 2.0, 2.0), ("*", 2.5, 2.0)])
def test_fedavg_ft_tunes_what_it_says(tune, b, h):
    """Output hb with b = 2, h = 1, a = 4, lr = 1/4: residual -2, dh = -2 b = -4,
    db = -2 h = -2, so one step makes h = 2 and, where the body moves too, b = 2.5.
    `server_lr=0` holds the global model at its start."""
    method = FedAvgFT(opt=full(0.25), server=ServerOpt(lr=0.0), adapt_epochs=1, tune=tune)
    play = Play(method, product(2.0, 1.0), rows(4.0)).round().adapt()
    assert kept(play, 0, "final/model", "body.weight") == b
    assert kept(play, 0, "final/model", "head.weight") == h


# ------------------------------------------------------------------ Local


def test_local_goes_on_from_its_own_model_and_nothing_travels():
    """w = 8, a = (16, -8): 14 and -4 after one round; client 1 alone once more: -8 + 4/4 = -7.
    Client 0 keeps 14. No message has a byte in it, down or up."""
    play = Play(Local(opt=OPT), point(8.0), *CLIENTS)
    for cohort in ((0, 1), (1,)):
        play.round(*cohort)
        for cid in cohort:
            assert nbytes(play.down[cid].state) == nbytes(play.up[cid].state) == 0
    assert [kept(play, i, "model") for i in (0, 1)] == [14.0, -7.0]
    assert nbytes(play.server) == 0
