"""kNN-Per by hand.

The net is f(x) = x under a head without bias. Stored rows lie at -1, -1 + log 2, -1 - log 4 and 9;
seen from x = -1 their distances are 0, log 2, log 4 and 10, so they vote with weight 1, 1/2, 1/4
and e^-10. The head is (-log 2, 0, 0): at x = -1 the logits are (log 2, 0, 0), and the model says
(1/2, 1/4, 1/4).
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
import torch
from game import Game, cloud, features, identity

from fedloom.core.data import ClientData
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, send
from fedloom.core.site import Site, Visit
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.knnper import KNNPer
from fedloom.ops.neighbours import neighbour_votes
from helpers import Table, mlp, run, tables

AT = (-1.0, -1.0 + log(2), -1.0 - log(4), 9.0)
QUERY = torch.tensor([[-1.0]])
SLOW = Opt(lr=0.1, batch=4)


def net() -> Net:
    network = identity(1, 3)
    network.initial["head.weight"][0, 0] = -log(2)
    return network


def holding(y, val=None) -> ClientData:
    table = Table(torch.tensor(AT)[:, None], torch.tensor(y))
    rows = None if val is None else Table(QUERY.expand(len(val), 1), torch.tensor(val))
    return ClientData(table, rows, table, 3)


def personal(method: KNNPer, data: ClientData):
    """The net and what a client predicts from, before any training."""
    game = Game(method, net(), data)
    site = game.site(0)
    return site.net, site.method.personalize(site)


def predicted(method: KNNPer, y=(0, 1, 1, 2), val=None) -> list[float]:
    network, state = personal(method, holding(y, val))
    return method.predict(network, state, QUERY)[0].tolist()


@pytest.mark.parametrize("lam", [0.0, 0.25, 0.5, 1.0])
def test_interpolation_by_hand(lam):
    """k = 3: p_knn = (1, 1/2 + 1/4, 0)/(7/4) = (4/7, 3/7, 0), so
    p = lam (4/7, 3/7, 0) + (1 - lam) (1/2, 1/4, 1/4). A ReLU on the features would put all three
    at 0 and make the votes (1/3, 2/3, 0); mixing with logits would not sum to 1."""
    knn, model = (4 / 7, 3 / 7, 0.0), (1 / 2, 1 / 4, 1 / 4)
    expected = [lam * a + (1 - lam) * b for a, b in zip(knn, model, strict=True)]
    assert predicted(KNNPer(k=3, lam=lam)) == pytest.approx(expected, abs=1e-6)


def test_the_nearest_alone():
    """k = 1: the row at distance 0, whatever its neighbours say."""
    assert predicted(KNNPer(k=1, lam=1.0), (2, 1, 1, 1)) == pytest.approx([0, 0, 1], abs=1e-6)


def test_fewer_rows_than_k_all_vote():
    """k = 10 of four rows: (1, 3/4, e^-10)/(7/4 + e^-10)."""
    total = 7 / 4 + exp(-10)
    expected = [1 / total, 0.75 / total, exp(-10) / total]
    assert predicted(KNNPer(lam=1.0)) == pytest.approx(expected, abs=1e-7)


def test_far_rows_still_vote():
    """Distances 1000 and 1000 + log 2: both weights underflow, their shares are 2/3 and 1/3."""
    stored = torch.tensor([[1000.0], [1000.0 + log(2)]], dtype=torch.float64)
    p = neighbour_votes(stored[:1] - 1000, stored, torch.tensor([0, 1]), 2, 2)
    assert p[0].tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-9)


def test_the_gaussian_kernel_divides_by_the_width():
    """|z|^2 = 4 + 4 in two dimensions: e^{-8/2}, against e^0; by distance it is e^{-sqrt 8}."""
    z, stored, y = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.tensor([0, 1])
    for kernel, far in (("gaussian", exp(-4)), ("distance", exp(-(8**0.5)))):
        p = neighbour_votes(z, stored, y, 2, 2, kernel)[0].tolist()
        assert p == pytest.approx([1 / (1 + far), far / (1 + far)], abs=1e-6)


def test_near_rows_keep_their_digits():
    """Two rows 1e-3 apart at 100 (float32): a distance from squares would be off by percents."""
    stored = torch.full((40, 1), 100.0)
    stored[0] += 2**-10
    p = neighbour_votes(stored[1:2], stored, torch.tensor([1] + [0] * 39), 40, 2)
    assert float(p[0, 1]) == pytest.approx(exp(-(2**-10)) / (39 + exp(-(2**-10))), rel=1e-5)


def test_lam_by_validation():
    """Labels (1, 0, 0, 2), k = 3: votes (3/7, 4/7, 0). Class 1 beats class 0 once
    4/7 lam + 1/4 (1 - lam) > 3/7 lam + 1/2 (1 - lam), lam > 7/11: 0.7 is the first of the grid.
    With two of three rows of class 0 the model alone is better: the first of equals, 0."""
    method = KNNPer(k=3, lam=None)
    for val, lam in (((1, 1), 0.7), ((0, 1, 0), 0.0)):
        state = personal(method, holding((1, 0, 0, 2), val))[1]
        assert float(state["knnper"]["lam"]) == lam


@pytest.mark.parametrize("val", [None, ()])
def test_lam_without_validation_rows(val):
    """Half and half; such a client must not end a run."""
    state = personal(KNNPer(lam=None), holding((0, 1, 1, 2), val))[1]
    assert float(state["knnper"]["lam"]) == 0.5


def test_a_client_with_one_row_and_none_to_validate_on():
    program, data = Program(KNNPer(lam=None, opt=SLOW), mlp(), 2), tables(1, 9)
    played = run(program, data, rounds=2)
    r = Round(program, program.schedule(2)[-1], played.server)
    for cid in (0, 1):
        visit = Visit(program, cid, data.client(cid), send(r, cid), played.clients.get(cid))
        scores = evaluate(visit, Ask(("received", "trained")))
        assert all(score.metrics["nll"] > 0 for score in scores)
        assert [(s.moment, s.split) for s in scores] == [("received", "test"), ("trained", "test")]


def test_training_is_fedavgs_bit_for_bit():
    ends = [
        run(Program(m, mlp(norm=True), 2), tables(7, 10), rounds=3)
        for m in (FedAvg(opt=SLOW), KNNPer(opt=SLOW))
    ]
    assert ends[0].digest == ends[1].digest


def test_features_are_those_of_the_model_the_client_holds():
    """As received: of the server's model, not of the one it trained in the last round."""
    data = cloud(0, 9, (0, 1)), cloud(1, 6, (1, 2))
    game = Game(KNNPer(opt=SLOW), mlp(), *data).rounds(2)
    stored = game.program.method.personalize(game.site(1))["knnper"]
    assert torch.equal(stored["z"], features(game.program.nets[0], game.server["model"], data[1]))
    assert torch.equal(stored["y"], data[1].train.y)
    assert game.up[1].state.keys() == {"model"}
    assert not any(game.own[1].values())


@pytest.mark.parametrize("term", ["dbe", "fedbr"])
def test_composes(term):
    """With DBE the stored features are raw, before the translation that the client has learned."""
    program = Program(replace(parse_method(f"knnper + {term}"), opt=SLOW), mlp(), 2)
    data = tables(9, 6)
    played = run(program, data, rounds=1)
    r = Round(program, program.schedule(1)[-1], played.server)
    visit = Visit(program, 0, data.client(0), send(r, 0), played.clients[0])
    (score,) = evaluate(visit, Ask(("received",)))
    assert score.metrics["nll"] > 0
    site = Site(visit)
    raw, head_input = (site.scan(stage) for stage in ("body", site.net.feature))
    assert torch.equal(program.method.personalize(site)["knnper"]["z"], raw)
    assert torch.equal(raw, head_input) == (term != "dbe")


@pytest.mark.parametrize("wrong", [{"k": 0}, {"lam": -0.1}, {"lam": 1.5}])
def test_ranges(wrong):
    with pytest.raises(BadInput):
        KNNPer(**wrong)
