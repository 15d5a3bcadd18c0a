"""Membership inference: its numbers by hand, and on models that did and did not see the rows."""

from __future__ import annotations

import math

import pytest
import torch
from normals import normal
from torch import Tensor, nn

from fedloom.analysis import likelihood_ratio, log_odds, membership
from fedloom.core.optimizers import make_optimizer
from fedloom.core.phase import Opt
from fedloom.errors import BadInput


def test_worked_by_hand():
    """Members 4, 2, 2, others 3, 2: of six pairs 4 wins 2, each 2 loses to 3 and is level with 2:
    (2 + 0.5 + 0.5) / 6. From 4 on: a third of the members and no others, 1/3; from 3 on 1/3 - 1/2,
    from 2 on 0. No false alarm is allowed among two others: above 3 lies one member of three.
    """
    told = membership(torch.tensor([4.0, 2, 2]), torch.tensor([3.0, 2]))
    assert told.auc == pytest.approx(0.5)
    assert told.advantage == pytest.approx(1 / 3)
    assert told.found == pytest.approx(1 / 3)
    assert told.advantage_by_chance == pytest.approx(math.sqrt(math.pi / 8 * (1 / 3 + 1 / 2)))
    assert (told.members, told.others) == (3, 2)


def test_one_false_alarm_in_a_hundred():
    """Others 0..199: two alarms are allowed, so members must lie above 197."""
    others = torch.arange(200.0)
    assert membership(torch.tensor([197.0, 197.5, 500.0]), others).found == pytest.approx(2 / 3)


def test_the_interval_holds_the_truth_in_95_of_100_cases():
    """Normal scores one apart: the true AUC is Phi(1/sqrt 2) = .7602."""
    truth = 0.5 * (1 + math.erf(0.5))
    held = 0
    for seed in range(150):
        scores = normal(70, 1, seed=seed).flatten()
        scores[:40] += 1
        low, high = membership(scores[:40], scores[40:]).interval
        held += low <= truth <= high
    assert 0.9 <= held / 150 <= 0.99


def test_an_interval_of_a_perfect_attack_is_not_a_point():
    low, high = membership(torch.tensor([2.0, 3, 4]), torch.tensor([0.0, 1])).interval
    assert low < 0.8
    assert high == 1.0


def test_log_odds_are_the_loss_on_another_scale():
    logits, y = normal(20, 4), torch.arange(20) % 4
    p = logits.double().softmax(1).gather(1, y[:, None]).squeeze(1)
    assert torch.allclose(log_odds(logits, y), (p / (1 - p)).log())


def test_ratio_of_two_normals_by_hand():
    """Out: mean 0, deviation 1; in: mean 3, deviation 2 (of -> 1, 5). At 3: log N(3; 3, 2) -
    log N(3; 0, 1) = 9/2 - log 2."""
    ratio = likelihood_ratio(
        torch.tensor([3.0]), torch.tensor([[-1.0, 1.0]]), torch.tensor([[1.0, 5.0]])
    )
    assert float(ratio) == pytest.approx(4.5 - math.log(2))


def fitted(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, 20))
    weights = list(net.parameters())
    adam = make_optimizer(weights, Opt("adam", lr=0.01))
    for _ in range(steps):
        adam.step(torch.autograd.grad(nn.functional.cross_entropy(net(x), y), weights))
    return net


def test_a_model_that_learned_its_rows_by_heart_gives_them_away():
    """Labels have nothing to do with the rows: whatever is predicted better than one in twenty was
    learned by heart."""
    x, y = normal(200, 20).float(), torch.arange(200) % 20
    overfitted = fitted(x[:100], y[:100], 100)
    with torch.no_grad():
        scores = log_odds(overfitted(x), y)
    told = membership(scores[:100], scores[100:])
    assert told.auc > 0.95
    assert told.found > 0.5


def test_a_model_that_never_saw_the_rows_tells_nothing():
    x, y = normal(600, 20).float(), torch.arange(600) % 20
    stranger = fitted(x[:200], y[:200], 100)
    with torch.no_grad():
        scores = log_odds(stranger(x[200:]), y[200:])
    told = membership(scores[:200], scores[200:])
    low, high = told.interval
    assert low < 0.5 < high
    assert told.advantage < 3 * told.advantage_by_chance


def test_reference_models_see_through_easy_and_hard_rows():
    """Rows differ in how hard they are (deviation 5), and being a member adds 1: the loss alone
    hardly tells, the same row's loss under models without it does."""
    hard = 5 * normal(400, 1, seed=3).flatten()
    own = hard + 0.3 * normal(400, 1, seed=4).flatten()
    own[:200] += 1
    references = hard[:, None] + 0.3 * normal(400, 8, seed=5)
    plain = membership(own[:200], own[200:])
    ratio = likelihood_ratio(own, references)
    assert plain.auc < 0.65
    assert membership(ratio[:200], ratio[200:]).auc > 0.95


def test_bad_input():
    with pytest.raises(BadInput, match="one score"):
        membership(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(BadInput, match="references"):
        likelihood_ratio(torch.zeros(3), torch.zeros(2, 4))
