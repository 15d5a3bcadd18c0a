"""FedNTD: the divergence by hand, and local training against a bare loop."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
import torch.nn.functional as F
from sums import model, runs_with_fedbr_and_dbe

from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedntd import FedNTD, not_true_divergence
from helpers import mlp, run, same, tables


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float64)


STUDENT, TEACHER = logits([7.0, log(2), 0.0]), logits([-3.0, 0.0, log(3)])


def test_divergence_by_hand():
    """y = 0, so only classes 1 and 2 count: q = (2/3, 1/3), q_g = (1/4, 3/4), and
    KL(q_g || q) = 1/4 ln(3/8) + 3/4 ln(9/4). KL(q || q_g) would be 2/3 ln(8/3) + 1/3 ln(4/9)."""
    divergence = not_true_divergence(STUDENT, TEACHER, torch.tensor([0]))
    assert divergence.item() == pytest.approx(0.25 * log(3 / 8) + 0.75 * log(9 / 4), abs=1e-12)


def test_mean_over_the_batch_each_row_without_its_own_class():
    """Row 2 is row 1 with its classes in another order, the label going along: the same value."""
    turned = [2, 0, 1]
    student, teacher = (torch.cat([a, a[:, turned]]) for a in (STUDENT, TEACHER))
    divergence = not_true_divergence(student, teacher, torch.tensor([0, 1]))
    assert divergence.item() == pytest.approx(0.25 * log(3 / 8) + 0.75 * log(9 / 4), abs=1e-12)


def test_the_true_class_feels_nothing():
    student = STUDENT.clone().requires_grad_()
    (g,) = torch.autograd.grad(not_true_divergence(student, TEACHER, torch.tensor([0])), student)
    # The gradient of KL(q_g || softmax(a)) is q - q_g: (2/3 - 1/4, 1/3 - 3/4).
    assert g[0].tolist() == pytest.approx([0.0, 5 / 12, -5 / 12], abs=1e-12)


def bare(x, y, w, term, steps, lr):
    """Full-batch steps in plain PyTorch; the teacher is the model before the first of them."""

    def out(w):
        z = torch.relu(x @ w["body.0.weight"].T + w["body.0.bias"])
        return z @ w["head.weight"].T + w["head.bias"]

    teacher, w = out(w), {k: v.clone().requires_grad_() for k, v in w.items()}
    others = F.one_hot(y, teacher.shape[1]) == 0
    for _ in range(steps):
        a = out(w)
        q_g, q = (torch.softmax((v / term.tau).masked_fill(~others, -1e9), 1) for v in (teacher, a))
        terms = torch.where(others, q_g * (q_g.clamp_min(1e-30) / q.clamp_min(1e-30)).log(), 0.0)
        loss = F.cross_entropy(a, y) + term.beta * term.tau**2 * terms.sum(1).mean()
        g = torch.autograd.grad(loss, list(w.values()))
        moved = [v - lr * d for v, d in zip(w.values(), g, strict=True)]
        w = {k: v.detach().requires_grad_() for k, v in zip(w, moved, strict=True)}
    return w


@pytest.mark.parametrize("term", [FedNTD(), FedNTD(beta=3.0, tau=2.0), FedNTD(beta=0.1, tau=0.5)])
def test_local_training_is_a_bare_loop(term):
    data = tables(9)
    method = replace(FedAvg() + term, opt=Opt(lr=0.5, batch=9, epochs=4))
    up = run(Program(method, mlp(), 1), data, 1).answers[0].up.state["model"]
    train = data.client(0).train
    expected = bare(train.rows, train.y, mlp().tree(), term, 4, 0.5)
    plain = bare(train.rows, train.y, mlp().tree(), FedNTD(beta=0.0), 4, 0.5)
    for k, v in expected.items():
        assert torch.allclose(up[k], v, atol=1e-5), k
    assert not torch.allclose(up["head.weight"], plain["head.weight"], atol=1e-4)


def test_no_gradient_on_the_first_step():
    """Student and teacher are the same model there: one step is FedAvg's."""
    one = Opt(lr=0.5, batch=64)
    ntd, plain = (model(m, opt=one, rounds=1, norm=False) for m in (FedAvg() + FedNTD(), FedAvg()))
    assert all(torch.allclose(ntd[k], v, atol=1e-7) for k, v in plain.items())


def test_beta_0_is_fedavg():
    assert same(model(FedAvg() + FedNTD(beta=0.0)), model(FedAvg()))
    assert not same(model(FedAvg() + FedNTD()), model(FedAvg()))


def test_composes_and_refuses():
    runs_with_fedbr_and_dbe("fedavg", "fedntd")
    with pytest.raises(BadInput, match="cannot be combined"):
        model("fedcr + fedntd")
    with pytest.raises(BadInput, match="tau"):
        parse_method("fedavg + fedntd(tau=0)")
