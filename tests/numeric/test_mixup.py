"""Mixup, read off batches whose rows are unit vectors.

Row i of the data is e_i, so a mixed row lambda e_i + (1 - lambda) e_j shows its own lambda and
partner, and its label must be the same combination: x~ @ (one-hot labels of the data).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from sums import Watch, model, runs_with_fedbr_and_dbe
from torch import nn

from fedloom.core.data import ClientData
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.mixup import Mixup
from helpers import Table, Tables, run, same

Y = torch.tensor([0, 1, 2, 0, 1, 2])


def batches(term: Mixup, epochs: int = 1, lr: float = 0.0):
    """What the loss sees of one client with the rows e_0..e_5, and its answer."""
    with rng_scope("mixup"):  # the same weights whichever tests ran before
        net = Net((6,), body=nn.Identity(), head=nn.Linear(6, 3))
    method = replace(FedAvg() + term + Watch(), opt=Opt(lr=lr, batch=6, epochs=epochs))
    Watch.seen.clear()
    data = Tables([ClientData(Table(torch.eye(6), Y), None, None, 3)])
    played = run(Program(method, net, 1, seed=2), data, 1)
    return list(Watch.seen), played.answers[0]


def mixing(batch):
    """Per row that has a partner other than itself, the weight of the row itself."""
    own = batch.x[range(6), batch.idx]
    return own[own < 1 - 1e-6]


def test_inputs_and_labels_are_mixed_alike_and_hard_labels_stay():
    seen, _ = batches(Mixup(alpha=1.0), epochs=4)
    for b in seen:
        assert torch.allclose(b.x.sum(1), torch.ones(6))
        assert (b.x > 0).sum(1).max() == 2
        assert torch.allclose(b.x.sum(0), torch.ones(6))  # partners are a permutation
        assert torch.allclose(b.target, b.x @ F.one_hot(Y, 3).float())
        assert torch.equal(b.y, Y[b.idx])


def test_one_lambda_per_batch_or_per_pair():
    per_batch, per_pair = (
        [mixing(b) for b in batches(Mixup(alpha=1.0, per=per), epochs=4)[0]]
        for per in ("batch", "pair")
    )
    assert all(len(own) > 2 and own.max() - own.min() < 1e-6 for own in per_batch)
    assert all(own.max() - own.min() > 1e-2 for own in per_pair)
    assert len({round(float(own[0]), 4) for own in per_batch}) == 4  # drawn anew at every step


def test_the_loss_is_the_mixture_of_both_labels():
    """-sum_c y~_c log p_c(x~): with hard labels alone it would be another number."""
    (b,), answer = batches(Mixup(alpha=1.0))
    logits = b.out["head"].detach()
    mixed = -(b.target * logits.log_softmax(1)).sum(1).mean()
    assert answer.up.metrics["loss"] == pytest.approx(float(mixed), rel=1e-6)
    assert answer.up.metrics["loss"] != pytest.approx(float(F.cross_entropy(logits, b.y)), rel=1e-3)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_lambda_is_beta_distributed(alpha):
    """Beta(a, a) has mean 1/2 and variance 1/(4 (2a + 1)): 0.179 at 0.2, 0.083 at 1."""
    seen, _ = batches(Mixup(alpha=alpha), epochs=600)
    lam = torch.stack([own.mean() for b in seen if len(own := mixing(b))])
    assert float(lam.mean()) == pytest.approx(0.5, abs=0.06)
    assert float(lam.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), abs=0.02)


def test_alpha_0_is_fedavg():
    assert same(model(FedAvg() + Mixup(alpha=0.0)), model(FedAvg()))
    assert not same(model(FedAvg() + Mixup()), model(FedAvg()))


def test_a_second_model_does_not_move_the_draws():
    """Ditto's global model stays that of the sum without Ditto."""
    assert same(model("ditto + mixup"), model("fedavg + mixup"))


def test_composes_and_refuses():
    runs_with_fedbr_and_dbe("fedavg", "mixup")
    with pytest.raises(BadInput, match="cannot be combined"):
        model("fedcr + mixup")
    with pytest.raises(BadInput, match="cannot be combined"):
        model("fedavg + fedmix + mixup")
    with pytest.raises(BadInput, match="alpha"):
        parse_method("fedavg + mixup(alpha=-1)")
    tokens = Net((6,), body=nn.Identity(), head=nn.Linear(6, 3))
    tokens.input_dtype = torch.int64
    with pytest.raises(BadInput, match="token"):
        Program(FedAvg() + Mixup(), tokens, 1)
