"""FedEM by hand.

Two learners on the constant input x = 1. Learner 1 has logits (log 3, 0) and says p_1 = (3/4, 1/4),
learner 2 has logits (0, log 3) and says p_2 = (1/4, 3/4). The client's labels are (0, 0, 0, 1).

From pi = (1/2, 1/2): a sample of class 0 has q ~ (3/4, 1/4)/2, of class 1 (1/4, 3/4)/2, so
q = (3/4, 1/4) and (1/4, 3/4), and pi <- ((3 * 3/4 + 1/4)/4, ...) = (5/8, 3/8).
From there: class 0: q ~ (5/8 * 3/4, 3/8 * 1/4) = (15, 3)/32 -> (5/6, 1/6); class 1:
(5/8 * 1/4, 3/8 * 3/4) = (5, 9)/32 -> (5/14, 9/14); pi <- (5/2 + 5/14)/4 = 5/7.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from game import Game, identity, rows
from torch import nn

from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.tree import nbytes
from fedloom.errors import BadInput
from fedloom.method_tools.network_copies import add_fresh_copy
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedem import NEWCOMER_STEPS, FedEM
from fedloom.ops.mixture import mixture_weights, responsibilities
from helpers import mlp, run, same, tables

LABELS = (0, 0, 0, 1)
START = {"head.weight": (log(3), 0.0), "head_2.weight": (0.0, log(3))}
SLOW = Opt(lr=0.1, batch=4)


def client(labels=LABELS):
    return rows([[1.0]] * len(labels), labels, classes=2)


def two_learners(lr=0.0, epochs=1, data=(), members=None, **how) -> Game:
    """The two learners above; with lr = 0 they stay as they are."""
    method = FedEM(learners=2, opt=Opt(lr=lr, batch=64, epochs=epochs), **how)
    game = Game(method, identity(1, 2), *(data or (client(),)), members=members)
    model = game.server["model"]
    model["body_2.weight"] = torch.ones(1, 1)
    model |= {k: torch.tensor(v)[:, None] for k, v in START.items()}
    return game


def pi(state) -> list[float]:
    return state["fedem"]["pi"].tolist()


def test_responsibilities_by_hand():
    """q ~ pi p(y): the second round's, and a learner of no weight gets nothing."""
    losses = torch.tensor([[3 / 4, 1 / 4], [1 / 4, 3 / 4]]).log().neg()
    q = responsibilities(losses, torch.tensor([5 / 8, 3 / 8]))
    assert q.flatten().tolist() == pytest.approx([5 / 6, 1 / 6, 5 / 14, 9 / 14], abs=1e-6)
    assert responsibilities(losses, torch.tensor([1.0, 0.0])).tolist() == [[1, 0], [1, 0]]


def test_weights_are_kept_between_rounds():
    """1/2 -> 5/8 -> 5/7; from the uniform mixture every round would give 5/8 again."""
    game = two_learners().round()
    assert pi(game.own[0]) == pytest.approx([5 / 8, 3 / 8], abs=1e-6)
    game.round()
    assert pi(game.own[0]) == pytest.approx([5 / 7, 2 / 7], abs=1e-6)


def test_a_client_that_is_away_keeps_its_weights():
    game = two_learners(data=(client(), client((1, 1)))).round(0).round(1)
    assert pi(game.own[0]) == pytest.approx([5 / 8, 3 / 8], abs=1e-6)
    assert pi(game.own[1]) == pytest.approx([1 / 4, 3 / 4], abs=1e-6)


def test_prediction_mixes_probabilities_by_the_kept_weights():
    """After two rounds p(0) = 5/7 * 3/4 + 2/7 * 1/4 = 17/28. Uniform weights would say 1/2, mixed
    logits 3^{5/7}/(3^{5/7} + 3^{2/7}) = 0.616."""
    game = two_learners().round().round()
    site = game.site(0)
    p = site.method.predict(site.net, site.method.personalize(site), torch.ones(1, 1))
    assert p[0].tolist() == pytest.approx([17 / 28, 11 / 28], abs=1e-6)


def test_one_step_by_hand():
    """d/dlogit_0 of mean_j q_j(m) l_m(j) is mean_j q_j(m) (p_m(0) - [y_j = 0]).
    Learner 1: (3 * 3/4 * (-1/4) + 1/4 * 3/4)/4 = -3/32; unweighted it would be 0, and over
    sum_j q_j in place of n -3/20. Learner 2: (3 * 1/4 * (-3/4) + 3/4 * 1/4)/4 = -3/32.
    lr = 1: the logit of class 0 rises by 3/32, that of class 1 falls by as much."""
    model = two_learners(lr=1.0).round().server["model"]
    for k, v in START.items():
        expected = [v[0] + 3 / 32, v[1] - 3 / 32]
        assert model[k].flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_responsibilities_hold_still_during_a_round():
    """However many epochs move the learners: pi is that of the received ones."""
    game = two_learners(lr=0.5, epochs=3).round()
    assert pi(game.own[0]) == pytest.approx([5 / 8, 3 / 8], abs=1e-6)


def test_learners_are_averaged_by_samples():
    """Four rows as above; one row of class 1: q = (1/4, 3/4), gradient of the logit of class 0
    1/4 * 3/4 = 3/16. By n: (4 * (-3/32) + 3/16)/5 = -3/80."""
    model = two_learners(lr=1.0, data=(client(), client((1,)))).round().server["model"]
    assert model["head.weight"][0, 0].item() == pytest.approx(log(3) + 3 / 80, abs=1e-6)


def test_newcomers_find_their_weights_and_members_begin_evenly():
    """Ten steps of pi <- (3 q_0 + q_1)/4, q_0 = 3 pi/(2 pi + 1), q_1 = pi/(3 - 2 pi)."""
    game = two_learners(data=(client(), client()), members=1)
    weight = 0.5
    for _ in range(NEWCOMER_STEPS):
        weight = (9 * weight / (2 * weight + 1) + weight / (3 - 2 * weight)) / 4
    expected = [weight, 1 - weight]
    for cid in (0, 1):  # neither has trained
        site = game.site(cid)
        assert pi(site.method.personalize(site)) == pytest.approx(expected, abs=1e-5)
        site.method.local(site)
        one_more = (9 * weight / (2 * weight + 1) + weight / (3 - 2 * weight)) / 4
        trained = pi(site.own)[0]
        assert trained == pytest.approx(one_more if cid else 5 / 8, abs=1e-5)
    losses = torch.tensor([[3 / 4, 1 / 4]] * 3 + [[1 / 4, 3 / 4]]).log().neg()
    for steps, first in ((0, 1 / 2), (1, 5 / 8), (2, 5 / 7)):
        assert float(mixture_weights(losses, steps)[0]) == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("adapt_epochs", [0, 1])
def test_a_member_that_was_never_sampled_is_tested_as_a_newcomer(adapt_epochs):
    """All its labels are 1: pi moves to learner 2, where equal weights would say (1/2, 1/2). With
    q_1 = pi/(3 - 2 pi) for learner 1, ten steps from 1/2, fine-tuned eleven."""
    game = (
        two_learners(data=(client(), client((1, 1))), adapt_epochs=adapt_epochs).round(0).round(0)
    )
    assert 1 not in game.own
    weight = 0.5
    for _ in range(NEWCOMER_STEPS + adapt_epochs):
        weight = weight / (3 - 2 * weight)
    if adapt_epochs:
        weights = game.adapt().own[1]["final/fedem"]["pi"].tolist()
    else:
        site = game.site(1)
        weights = pi(site.method.personalize(site))
    assert weights == pytest.approx([weight, 1 - weight], abs=1e-6)


def test_fine_tuning_is_a_further_em_step_that_only_the_final_model_sees():
    """Kept 5/8 after round 1; the final state has 5/7, and with lr > 0 other learners than the
    server's."""
    game = two_learners(adapt_epochs=2).round().adapt()
    assert pi(game.own[0]) == pytest.approx([5 / 8, 3 / 8], abs=1e-6)
    assert game.own[0]["final/fedem"]["pi"].tolist() == pytest.approx([5 / 7, 2 / 7], abs=1e-6)
    game = two_learners(lr=0.5, adapt_epochs=2).round().adapt()
    final = game.own[0]["final/model"]
    assert all(not torch.equal(final[k], v) for k, v in game.server["model"].items())
    assert not FedEM().adapt


def test_traffic_is_m_models_and_never_pi():
    game = two_learners().round()
    assert game.up[0].state.keys() == game.down[0].state.keys() == {"model"}
    assert nbytes(game.up[0].state) == 2 * nbytes({"model": identity(1, 2).tree()})
    assert game.own[0].keys() == {"fedem"}


def test_one_learner_is_fedavg_bit_for_bit():
    fedavg, one = (
        run(Program(m, mlp(norm=True), 3), tables(7, 10, 5), rounds=3, participation=0.67)
        for m in (FedAvg(opt=SLOW), FedEM(learners=1, opt=SLOW))
    )
    assert same(one.server["model"], fedavg.server["model"])


def test_learners_begin_apart_and_all_of_them_train():
    """The twins' tensors are parameters though the net they were copied from holds plain ones."""
    net = mlp(norm=True)
    net.shape_of("head")  # a net that has run
    program = Program(FedEM(opt=SLOW), net, 1)
    extended = program.nets[0]
    assert len(extended.params) == 3 * len(net.params)
    start = extended.tree()
    assert len({float(start[f"body{tag}.0.weight"][0, 0]) for tag in ("", "_2", "_3")}) == 3
    end = run(program, tables(9), rounds=1).server["model"]
    assert all(not torch.equal(end[k], start[k]) for k in extended.keys)


def test_twins_keep_ties_and_frozen_tensors():
    """A layer that occurs twice in a stage stays one; a tensor that is not trained stays so."""
    tied = nn.Linear(3, 3)
    head = nn.Linear(3, 2)
    head.bias.requires_grad_(False)
    net = Net((3,), body=nn.Sequential(tied, nn.ReLU(), tied), head=head)
    before = set(net.keys)
    assert add_fresh_copy(net, "_2") == "head_2"
    new = set(net.keys) - before
    assert new == {k.replace(".", "_2.", 1) for k in before}
    assert new & net.params == {k.replace(".", "_2.", 1) for k in before & net.params}
    assert "head_2.bias" not in net.params
    assert torch.equal(net.initial["head_2.bias"], net.initial["head.bias"])
    assert not torch.equal(net.initial["head_2.weight"], net.initial["head.weight"])


def test_twins_keep_a_frozen_body_whole():
    """A pretrained one would be lost: its weights, and the statistics it was trained with. The
    values are the initial ones, whatever the net ran last."""
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).requires_grad_(False)
    body[1].running_mean.fill_(7.0)
    net = Net((3,), body=body, head=nn.Linear(4, 2))
    net({k: v + 1 for k, v in net.tree().items()}, torch.ones(2, 3))
    add_fresh_copy(net, "_2")
    start = net.tree()
    for k in net.match("body.*"):
        assert torch.equal(start[k], start[k.replace("body.", "body_2.")]), k
    assert not torch.equal(start["head_2.weight"], start["head.weight"])


@pytest.mark.parametrize("term", ["dbe", "prbm", "mean_regularization", "fedbr", "model_contrast"])
def test_terms_that_speak_of_one_model_are_refused(term):
    with pytest.raises(BadInput, match="cannot be combined"):
        parse_method(f"fedem + {term}")


def test_terms_that_correct_gradients_act_on_every_learner():
    method = replace(parse_method("fedem + proximal(mu=0.1) + control_variates"), opt=SLOW)
    program = Program(method, mlp(), 2)
    played = run(program, tables(9, 6), rounds=2)
    c = played.server["control_variates"]
    assert all(c[k].abs().max() > 0 for k in program.nets[0].params)


def test_ranges():
    for wrong in ({"learners": 0}, {"adapt_epochs": -1}):
        with pytest.raises(BadInput, match="or more"):
            FedEM(**wrong)
