"""HypCluster on quadratics: client i prefers the model nearest to its a_i and moves it by a quarter
of the way, w_i = w + (a_i - w)/4.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from game import Game, cloud, part
from quadratic import Play, full, point, product, rows, value

from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.tree import nbytes
from fedloom.errors import BadInput
from fedloom.method_tools.stacked_models import pick_model
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.hypcluster import IFCA, HypCluster
from helpers import mlp, run, same, tables

DATA = (rows(4.0, n=1), rows(10.0, n=3), rows(24.0, n=1))
FAR = 1000.0
SLOW = Opt(lr=0.1, batch=4)


def models(play: Play, key: str = "head.weight") -> list[float]:
    return play.server["model"][key].flatten().tolist()


def begun(method=None, w=(0.0, 16.0, FAR), data=DATA) -> Play:
    """A run whose models are these."""
    method = method or HypCluster()
    play = Play(replace(method, k=len(w), opt=full()), point(0.0), *data)
    play.server["model"]["head.weight"] = torch.tensor(w, dtype=torch.float64)[:, None, None]
    return play


def test_one_round_by_hand():
    """w = (0, 16, 1000), a = (4, 10, 24), n = (1, 3, 1): distances (4, 12), (10, 6), (24, 8), so
    the choices are 0, 1, 1 and nobody takes the third. w_i = (1, 14.5, 18);
    w = (1, (3 * 14.5 + 18)/4, 1000) = (1, 15.375, 1000). One mean over all would be 12.5."""
    play = begun().round()
    assert [int(play.up[i].state["hypcluster"]["choice"]) for i in range(3)] == [0, 1, 1]
    assert [value(play.up[i].state["model"]) for i in range(3)] == [1.0, 14.5, 18.0]
    assert models(play) == [1.0, 15.375, FAR]


def test_ifca_weighs_clients_alike():
    """(14.5 + 18)/2 = 16.25."""
    assert models(begun(IFCA()).round()) == [1.0, 16.25, FAR]


def test_server_step():
    """Half the way: 0 -> 0.5, 16 -> 15.6875; the third still stays."""
    assert models(begun(HypCluster(server_lr=0.5)).round()) == [0.5, 15.6875, FAR]


def test_the_choice_is_made_anew_every_round():
    """After round 1 the models are (1, 15.375); put the first at 9 and client 1 (a = 10) changes
    to it: w_0 = 9 + 1/4; the others of its old cluster stay away, so 15.375 stays."""
    play = begun().round()
    play.server["model"]["head.weight"][0] = 9.0
    play.round(1)
    assert models(play) == [9.25, 15.375, FAR]
    assert not any(play.own[1].values())


def test_equal_losses_take_the_first():
    assert models(begun(w=(0.0, 8.0), data=(rows(4.0),)).round()) == [1.0, 8.0]


def test_the_chosen_model_predicts_and_newcomers_choose():
    """Client 2 (a = 24) is at 16; a newcomer with a = 700 at 1000; neither trains for it."""
    play = begun()
    play.data += (rows(700.0),)
    for cid, w in ((0, 0.0), (2, 16.0), (3, FAR)):
        site = play.site(cid)
        assert site.newcomer == (cid == 3)
        assert value(site.method.personalize(site)["model"]) == w


def test_traffic():
    """Three float64 models down; one up, with the choice."""
    play = begun().round()
    assert nbytes(play.down[0].state) == 3 * 8
    assert nbytes(play.up[0].state) == 8 + 8


def test_common_keys_are_everybodys():
    """Output h b, b = 1 in common, h = (0, 4), a = (1, 3): choices 0, 1. Gradients for h are
    b (hb - a) = (-1, 1), for b h (hb - a) = (0, 4): h_i = (1/4, 15/4), b_i = (1, 0), b = 1/2."""
    method = HypCluster(k=2, common="body.*", opt=full())
    play = Play(method, product(1.0, 0.0), rows(1.0), rows(3.0))
    assert play.server["model"]["body.weight"].shape == (1, 1)
    play.server["model"]["head.weight"][1] = 4.0
    play.round()
    assert models(play) == [0.25, 3.75]
    assert models(play, "body.weight") == [0.5]
    assert nbytes(play.down[0].state) == 8 + 2 * 8


def test_models_begin_apart():
    """Or all clients would choose the first for ever; the first is the network itself."""
    server = Game(HypCluster(), mlp(), cloud(0, 6, (0, 1))).server["model"]
    first, second, third = (pick_model(server, j) for j in range(3))
    assert same(first, mlp().tree())
    for k in first:
        assert not torch.equal(first[k], second[k])
        assert not torch.equal(second[k], third[k])


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_one_model_is_fedavg_bit_for_bit(server_lr):
    fedavg, one = (
        run(Program(m, mlp(norm=True), 3), tables(7, 10, 5), rounds=3, participation=0.67)
        for m in (
            FedAvg(opt=SLOW, server=ServerOpt(lr=server_lr)),
            HypCluster(k=1, opt=SLOW, server_lr=server_lr),
        )
    )
    assert same(pick_model(one.server["model"], 0), fedavg.server["model"])


def test_two_kinds_of_clients_part():
    """Clients 0 and 2 hold one labelling of the rows, 1 and 3 the opposite one: no single model
    can serve both, two can, and they find each other."""
    kinds = [cloud(i, 24, (0, 1), classes=2) for i in range(4)]
    for i in (1, 3):
        kinds[i].train.y.mul_(-1).add_(1)
    game = Game(HypCluster(k=2, opt=Opt(lr=0.2, batch=8, epochs=2)), mlp(classes=2), *kinds)
    game.rounds(8)
    a, b, c, d = game.notes["hypcluster"]["clusters"]
    assert a == c != b == d


@pytest.mark.parametrize("term", ["dbe", "fedbr"])
def test_composes(term):
    """DBE's translation is one per client and not per cluster; FedBR's projection is clustered."""
    program = Program(replace(parse_method(f"hypcluster + {term}"), opt=SLOW), mlp(), 2)
    played = run(program, tables(9, 6), rounds=2)
    personal = part(played.clients[0].get("model", {}), "prbm")
    assert bool(personal) == (term == "dbe")
    assert all(len(v) == 3 for v in played.server["model"].values())


@pytest.mark.parametrize("term", ["control_variates", "client_momentum"])
def test_one_correction_for_all_is_refused(term):
    with pytest.raises(BadInput, match="cannot be combined"):
        Program(parse_method(f"hypcluster + {term}"), mlp(), 2)


def test_personal_heads_choose_too():
    """With a personal head each body is judged under it."""
    method = HypCluster(k=2, shared="* !head.*", opt=SLOW)
    played = run(Program(method, mlp(), 2), tables(9, 6), rounds=2)
    assert {k.split(".")[0] for k in played.server["model"]} == {"body"}
    assert {k.split(".")[0] for k in played.clients[0]["model"]} == {"head"}


def test_ranges():
    with pytest.raises(BadInput, match="1 or more"):
        HypCluster(k=0)
    with pytest.raises(BadInput, match="matches no tensor"):
        Program(HypCluster(common="trunk.*"), mlp(), 2)
