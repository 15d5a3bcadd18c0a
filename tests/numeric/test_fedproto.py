"""FedProto: prototypes weighted by counts, the pull by hand, prediction by the nearest one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from game import Game, cloud, features, identity, rows
from torch import nn

from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.round import Round, send
from fedloom.core.site import Visit
from fedloom.core.tree import nbytes
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedproto import FedProto
from fedloom.methods.local import Local
from helpers import finite, mlp, same

CLOUDS = [cloud(0, 14, (0, 1)), cloud(1, 9, (1,)), cloud(2, 1, (0,)), cloud(3, 11, (2, 1))]
OPT = Opt(lr=0.1, epochs=2, batch=4)
STILL = Opt(lr=0.0, epochs=1, batch=64)
K = 3
A = rows([[1.0, 0.0], [3.0, 2.0], [0.0, 4.0]], [0, 0, 1], K)
B = rows([[8.0, 4.0]], [0], K)


def proto(game: Game):
    return game.server["fedproto"]


def test_prototypes_are_weighted_by_counts():
    """f(x) = x, nothing trained. Class 0: client A has mean (2, 1) of two, B (8, 4) of one: the
    pooled mean is (4, 2), the unweighted (5, 2.5), by client sizes 3 : 1 (3.5, 1.75), and with
    the paper's extra factor 1/2 (2, 1). Class 1 is A's, class 2 nobody's."""
    game = Game(FedProto(opt=STILL), identity(2, K), A, B).round()
    assert proto(game)["prototypes"].tolist() == [[4.0, 2.0], [0.0, 4.0], [0.0, 0.0]]
    assert proto(game)["known"].tolist() == [True, True, False]


def test_or_all_clients_with_the_class_count_alike():
    """As published: the unweighted mean, (5, 2.5)."""
    game = Game(FedProto(opt=STILL, weighting="uniform"), identity(2, K), A, B).round()
    assert proto(game)["prototypes"].tolist() == [[5.0, 2.5], [0.0, 4.0], [0.0, 0.0]]
    assert proto(game)["known"].tolist() == [True, True, False]


def test_a_class_nobody_held_this_round_keeps_its_prototype():
    game = Game(FedProto(opt=STILL), identity(2, K), A, B).round().round(1)
    assert proto(game)["prototypes"].tolist() == [[8.0, 4.0], [0.0, 4.0], [0.0, 0.0]]
    assert proto(game)["known"].tolist() == [True, True, False]


def test_the_pull_by_hand():
    """B in round 2: z = (8, 4), c_0 = (4, 2); zero head of equal weights, so cross-entropy has no
    gradient for the body: the gap is (4, 2), MSE = (16 + 4)/2 = 10 = the logged loss beyond log 3.
    Gradient for z: lam * 2/d * gap = (4, 2); for the body's weight its product with x = (8, 4).
    One step at lr 1/64: body = I - [[32, 16], [16, 8]]/64."""
    game = Game(FedProto(opt=STILL), identity(2, K), A, B).round()
    moving = Game(FedProto(opt=replace(STILL, lr=1 / 64)), identity(2, K), A, B)
    moving.server, moving.own, moving.t = game.server, {1: game.own[1]}, 1
    moving.round(1)
    assert moving.up[1].metrics["loss"] == pytest.approx(torch.tensor(3.0).log().item() + 10)
    body = moving.own[1]["model"]["body.weight"]
    assert body.tolist() == [[0.5, -0.25], [-0.25, 0.875]]


def test_no_pull_in_the_first_round_or_toward_unknown_classes():
    """Round 1 equals Local's bit for bit; toward zero vectors it would not. Nor is a client with
    only new classes pulled in round 2."""
    protos, local = (Game(m, mlp(), *CLOUDS).round(1) for m in (FedProto(opt=OPT), Local(opt=OPT)))
    assert same(protos.own[1]["model"], local.own[1]["model"])
    protos.round(2), local.round(2)  # class 0, where only class 1 is known
    assert same(protos.own[2]["model"], local.own[2]["model"])
    protos.round(1), local.round(1)
    assert not same(protos.own[1]["model"], local.own[1]["model"])


def test_lam_0_trains_as_local():
    protos, local = (
        Game(m, mlp(norm=True), *CLOUDS).round().round(0, 2).round(1, 3)
        for m in (FedProto(lam=0.0, opt=OPT), Local(opt=OPT))
    )
    for cid in range(4):
        assert same(protos.own[cid]["model"], local.own[cid]["model"])
    assert FedProto().lam == 1.0


def test_prototypes_are_of_the_trained_features():
    game = Game(FedProto(opt=OPT), mlp(norm=True), CLOUDS[1]).round()
    z = features(game.program.nets[0], game.own[0]["model"], CLOUDS[1])
    assert torch.allclose(proto(game)["prototypes"][1], z.mean(0), atol=1e-6)


def test_only_prototypes_travel():
    """Down: [K, d] and K flags; up: [K, d] and K counts; never a weight."""
    game = Game(FedProto(opt=OPT), mlp(), *CLOUDS).round()
    up, down = game.up[0].state, game.down[0].state
    assert not up["model"]
    assert not down["model"]
    assert nbytes(up) == 4 * (K * 5 + K)
    assert nbytes(down) == 4 * K * 5 + K


# ------------------------------------------------------------------ prediction


def predictions(method: FedProto):
    """f(x) = x under a head that always says class 2; prototypes (4, 2), (0, 4), none."""
    game = Game(replace(method, opt=STILL), identity(2, K), A, B).round()
    for own in game.own.values():
        own["model"]["head.weight"] = torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, 9.0]])
    s = game.site(0)
    state, x = s.method.personalize(s), torch.tensor([[3.0, 2.0], [1.0, 3.0], [0.1, 0.1]])
    return s.method.predict(s.net, state, x), s.method.views(s.net, state, x)


def test_the_nearest_global_prototype_predicts():
    """(0.1, 0.1) is nearest to the zero vector of the unknown class 2, which must not count."""
    p, views = predictions(FedProto())
    assert p.argmax(1).tolist() == [0, 1, 1]
    assert p[:, 2].tolist() == [0.0] * 3
    odds = p[0, 0] / p[0, 1]  # squared distances 1 and 13
    assert float(odds.log()) == pytest.approx(6.0, abs=1e-4)
    assert views["classifier"].argmax(1).tolist() == [2, 2, 2]


def test_or_the_local_classifier():
    p, views = predictions(FedProto(predictor="classifier"))
    assert p.argmax(1).tolist() == [2, 2, 2]
    assert views["prototype"].argmax(1).tolist() == [0, 1, 1]


def test_before_there_are_prototypes_the_classifier_predicts():
    game = Game(FedProto(opt=OPT), mlp(), *CLOUDS)
    s = game.site(0)
    state = s.method.personalize(s)
    assert state.keys() == {"model"}
    assert s.method.predict(s.net, state, CLOUDS[0].train.rows).isfinite().all()


# ------------------------------------------------------------------ FedPAC's two variants


def test_local_prototypes_are_the_clients_own_and_nothing_is_sent():
    """Round 2 at B: its own prototype is (8, 4) itself, so there is no gap and the loss is log 3;
    the global one gave 10 more."""
    game = Game(FedProto(align="local", opt=STILL), identity(2, K), A, B).rounds(2)
    assert game.up[1].metrics["loss"] == pytest.approx(torch.tensor(3.0).log().item())
    assert game.own[0]["fedproto"]["prototypes"].tolist() == [[2.0, 1.0], [0.0, 4.0], [0.0, 0.0]]
    assert nbytes(game.up[1].state) == nbytes(game.down[1].state) == 0
    assert game.server == {"model": {}}


def test_local_prototypes_fit_the_model_that_predicts():
    """f(x) = x; after training the body has changed, here to twice the identity: the prototypes
    that score it are (4, 2) and (0, 8), not those of the last round. What is kept stays until the
    round ends."""
    game = Game(FedProto(align="local", opt=STILL), identity(2, K), A).round()
    s = game.site(0)
    s.w["body.weight"] = 2 * torch.eye(2)
    state = s.method.personalize(s)
    assert state["fedproto"]["prototypes"].tolist() == [[4.0, 2.0], [0.0, 8.0], [0.0, 0.0]]
    assert state["fedproto"]["known"].tolist() == [True, True, False]
    assert s.own["fedproto"]["prototypes"].tolist() == [[2.0, 1.0], [0.0, 4.0], [0.0, 0.0]]


def test_the_variants_train_differently():
    kinds = [{}, {"align": "local"}, {"lam": 0.0}]
    ends = [
        Game(FedProto(opt=OPT, **kind), mlp(), *CLOUDS).rounds(3).own[0]["model"]["head.weight"]
        for kind in kinds
    ]
    assert not torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[1], ends[2])


# ------------------------------------------------------------------ unlike bodies, newcomers, terms


def test_unlike_bodies():
    """Two kinds of bodies, one with a hidden layer more, the same five features."""
    layers = nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU()
    deep = Net((4,), body=nn.Sequential(*layers), head=nn.Linear(5, K))
    game = Game(FedProto(opt=OPT), [mlp(), deep], *CLOUDS).rounds(3)
    assert finite(game.server)
    assert proto(game)["known"].all()
    assert game.own[1]["model"]["body.2.weight"].shape == (5, 7)
    with pytest.raises(BadInput, match="end in the same width"):
        Game(FedProto(opt=OPT), [mlp(), mlp(hidden=6)], *CLOUDS).round()


def test_a_newcomer_gets_prototypes():
    game = Game(FedProto(opt=OPT), mlp(), *CLOUDS, members=3).rounds(2)
    r = Round(game.program, game.program.schedule(1)[0], game.server)
    visit = Visit(game.program, 3, CLOUDS[3], send(r, 3), None)
    scores = evaluate(visit, Ask(("received", "trained")))
    # The prediction by prototypes and, as a view, the classifier's.
    assert [(s.moment, s.model, s.rows) for s in scores] == [
        (moment, model, 11)
        for moment in ("received", "trained")
        for model in ("personal", "classifier")
    ]


@pytest.mark.parametrize("terms", ["fedbr", "dbe"])
def test_terms_go_on_it(terms):
    game = Game(replace(parse_method(f"fedproto + {terms}"), opt=OPT), mlp(), *CLOUDS)
    for plan in game.program.schedule(2):
        game._play(plan, ())
    assert finite(game.server)


def test_settings_that_make_no_sense_are_refused():
    for setting in ({"lam": -1.0}, {"align": "both"}, {"predictor": "head"}):
        with pytest.raises(BadInput):
            FedProto(**setting)
