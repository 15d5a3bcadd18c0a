"""FedSR: the two regularisers by hand, the class prior as a trained part, and FedAvg inside."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from game import Game, cloud, part
from torch import nn

from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.core.term import Batch
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedsr import FedSR
from fedloom.models import build_model
from fedloom.models.gaussian import Gaussian, Sample
from helpers import finite, mlp, same

CLOUDS = [cloud(0, 14, (0, 1)), cloud(1, 9, (1,)), cloud(2, 1, (0,)), cloud(3, 11, (2, 1))]
OPT = Opt(lr=0.05, epochs=2, batch=4)
V, K = 2, 3
RHO_2 = log(torch.e**2 - 1)  # softplus of it is 2


def fedsr(**settings):
    return FedSR(**{"dim": V, "opt": OPT, **settings})


def by_hand(**settings):
    """Loss on a batch of two with known Gaussians and draws: z = (3, 4) and (0, 0), logits zero,
    p(z|x) = N((1, 0), 1), prior of class 0 N(0, 2^2), of class 1 N((1, 0), 1)."""
    s = Game(fedsr(**settings), mlp(), *CLOUDS).site(0)
    rho_1 = log(torch.e - 1)
    s.w["prior.mean"] = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    s.w["prior.rho"] = torch.tensor([[RHO_2] * 2, [rho_1] * 2, [5.0, 5.0]])
    y = torch.tensor([0, 1])
    b = Batch(torch.zeros(2, 4), y, torch.arange(2), y)
    p = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    b.out = {
        "gauss": torch.stack([p, p]),
        "sample": torch.tensor([[3.0, 4.0], [0.0, 0.0]]),
        "head": torch.zeros(2, K),
    }
    return float(s.method.loss(b, s)) - log(3), s, b


def test_l2_is_the_mean_length():
    """(5 + 0)/2, for which the published l2 was chosen. Squared: (25 + 0)/2. One norm of the batch
    would be 5, squared 25."""
    assert by_hand(l2=1.0, cmi=0.0)[0] == pytest.approx(2.5, rel=1e-6)
    assert by_hand(l2=1.0, cmi=0.0, norm="squared")[0] == pytest.approx(12.5, rel=1e-6)


def test_cmi_is_the_divergence_from_the_samples_class():
    """Sample 1 against N(0, 2^2), per dimension ln 2 + (1 + mu^2)/8 - 1/2: for mu = 1 and 0
    ln 2 - 1/4 and ln 2 - 3/8. Sample 2 has its class's very Gaussian: 0. Mean over the two:
    ln 2 - 5/16. The other direction would be (-2 ln 2 + 4 + 1/2 - 1)/2."""
    expected = log(2) - 5 / 16
    assert by_hand(l2=0.0, cmi=1.0)[0] == pytest.approx(expected, rel=1e-5)
    assert by_hand(l2=2.0, cmi=3.0)[0] == pytest.approx(5 + 3 * expected, rel=1e-6)


def test_scaled_multiplies_the_samples_gaussian_only():
    """C = 2: p becomes N((2, 0), 2^2). Against N(0, 2^2): mu^2/8 = 1/2 and 0. Against
    N((1, 0), 1): -ln 2 + (4 + 1)/2 - 1/2 and -ln 2 + 4/2 - 1/2. Mean: (1/2 + 7/2 - 2 ln 2)/2."""
    _, s, b = by_hand(l2=0.0, cmi=1.0, scaled=True)
    s.w["prior.scale"] = torch.tensor(2.0)
    assert float(s.method.loss(b, s)) - log(3) == pytest.approx(2 - log(2), rel=1e-5)


def test_the_prior_may_stay_with_the_clients():
    """As in the published code."""
    game = Game(fedsr(shared="* !prior.*"), mlp(), *CLOUDS).round()
    assert not any(
        k.startswith("prior") for k in (*game.server["model"], *game.up[0].state["model"])
    )
    own = [game.own[i]["model"]["prior.mean"] for i in (0, 1)]
    assert not torch.equal(*own)


def test_the_prior_is_trained_for_the_classes_a_client_holds_and_averaged():
    """Client 1 holds class 1 only: the other rows of r stay at N(0, softplus(1)^2) there; on the
    server every class of the cohort has moved, by the sample-weighted mean."""
    game = Game(fedsr(cmi=1.0), mlp(), *CLOUDS).round()
    mean = game.up[1].state["model"]["prior.mean"]
    assert mean[1].abs().min() > 0
    assert mean[[0, 2]].abs().max() == 0
    sent = [game.up[i].state["model"]["prior.mean"].double() for i in range(4)]
    n = [len(d.train) for d in CLOUDS]
    expected = sum(k * v for k, v in zip(n, sent, strict=True)) / sum(n)
    assert torch.allclose(game.server["model"]["prior.mean"], expected.float())


def twin(net: Net) -> Net:
    """The same network and values without a prior, for FedAvg."""
    body, head = nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Linear(V, K)
    stochastic = Net((4,), body=body, gauss=Gaussian(5, V), sample=_draw(), head=head)
    stochastic.load_state_dict({k: v for k, v in net.tree().items() if not k.startswith("prior")})
    return stochastic


def _draw() -> nn.Module:
    return nn.Sequential(Sample(1), nn.Flatten())


def test_without_regularisers_it_is_fedavg_on_the_stochastic_network():
    """l2 = cmi = 0, bit for bit; and either of them ends the equality."""
    sr = Game(fedsr(l2=0.0, cmi=0.0), mlp(), *CLOUDS)
    avg = Game(FedAvg(opt=OPT), twin(sr.program.nets[0]), *CLOUDS)
    for cohort in ((), (0, 2), (1, 3)):
        sr.round(*cohort), avg.round(*cohort)
    model = {k: v for k, v in sr.server["model"].items() if not k.startswith("prior")}
    assert same(model, avg.server["model"])
    for settings in ({"l2": 0.01, "cmi": 0.0}, {"l2": 0.0, "cmi": 0.01}):
        other = Game(fedsr(**settings), mlp(), *CLOUDS).rounds(3)
        assert not torch.equal(other.server["model"]["head.weight"], model["head.weight"])


def test_defaults_switch_nothing_off():
    assert FedSR().l2 > 0
    assert FedSR().cmi > 0
    assert FedSR().samples == 20  # draws in a prediction, as its authors have it


def test_prediction_is_the_mean_of_probabilities_over_draws():
    """Two classes with logits (z, -z), z ~ N(1, 3^2): E sigma(2z) = 0.628 by quadrature, while the
    mean of logits would give sigma(2) = 0.881. Four thousand draws: a deviation of 0.007."""
    net = Program(fedsr(samples=4000), mlp(), 1).nets[0]
    w = net.tree()
    w["gauss.fc.weight"] = torch.zeros_like(w["gauss.fc.weight"])
    w["gauss.fc.bias"] = torch.tensor([1.0, 0.0, 2.9488, -50.0])  # means, then softplus: 3 and 0
    w["head.weight"] = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    w["head.bias"] = torch.tensor([0.0, 0.0, -50.0])
    grid = torch.linspace(-30, 30, 60001, dtype=torch.float64)
    density = torch.exp(-((grid - 1) ** 2) / 18)
    expected = float((density * torch.sigmoid(2 * grid)).sum() / density.sum())
    assert expected == pytest.approx(0.628, abs=5e-3)
    with rng_scope("predict"):
        p = fedsr(samples=4000).predict(net, {"model": w}, torch.zeros(1, 4))
    assert p.shape == (1, K)
    assert float(p[0, 0]) == pytest.approx(expected, abs=0.02)


def test_ft_tunes_the_head_only():
    game = Game(fedsr(adapt_epochs=3), mlp(), *CLOUDS).round().adapt()
    final = game.own[0]["final/model"]
    rest = ("body", "gauss", "prior")
    assert same(part(final, *rest), part(game.server["model"], *rest))
    assert not same(part(final, "head"), part(game.server["model"], "head"))
    assert FedSR().adapt == ()


@pytest.mark.parametrize("terms", ["fedbr", "dbe"])
def test_terms_go_on_it(terms):
    game = Game(replace(parse_method(f"fedsr(dim=2) + {terms}"), opt=OPT), mlp(), *CLOUDS)
    for plan in game.program.schedule(1):
        game._play(plan, ())
    assert finite(game.server)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(BadInput, match="1 or more"):
        FedSR(dim=0)
    with pytest.raises(BadInput, match="0 or more"):
        FedSR(l2=-1.0)
    with pytest.raises(BadInput, match="build the model without gaussian"):
        Program(fedsr(), build_model("mlp_fedcr(gaussian=4)", (4,), K, seed=0), 1)
