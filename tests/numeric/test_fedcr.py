"""FedCR: Gaussians, their products, what is remembered, what travels, and FedPer inside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from game import Game, cloud, features, part
from torch import nn
from torch.distributions import Normal, kl_divergence

from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.message import Up
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import generator, rng_scope
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Visit
from fedloom.core.term import Batch
from fedloom.core.tree import WeightedSum, clone, nbytes
from fedloom.errors import BadInput
from fedloom.methods.fedcr import FedCR
from fedloom.methods.fedper import FedPer
from fedloom.models import build_model
from fedloom.ops.gaussian import kl_diagonal, product_of_experts
from helpers import finite, mlp, same

CLOUDS = [cloud(0, 14, (0, 1)), cloud(1, 9, (1,)), cloud(2, 1, (0,)), cloud(3, 11, (2, 1))]
OPT = Opt(lr=0.05, epochs=2, batch=4)
STILL = Opt(lr=0.0, epochs=1, batch=4)
V, K = 4, 3


def fedcr(**settings):
    return FedCR(**{"dim": V, "samples": 5, "opt": OPT, "beta": 0.1, **settings})


# ------------------------------------------------------------------ Gaussians


def gaussians(*shape, key=0):
    gen = generator("gaussians", key)
    mean = torch.randn(*shape, generator=gen, dtype=torch.float64)
    return mean, 0.2 + torch.rand(*shape, generator=gen, dtype=torch.float64)


def test_kl_value_and_direction():
    """Against torch.distributions, in the stated direction only."""
    p, q = gaussians(7, V), gaussians(7, V, key=1)
    expected = kl_divergence(Normal(*p), Normal(*q)).sum(-1)
    assert torch.allclose(kl_diagonal(*p, *q), expected)
    assert not torch.allclose(kl_diagonal(*q, *p), expected, atol=0.1)
    assert kl_diagonal(*p, *p).abs().max() < 1e-12


def log_product(z, mean, deviation):
    """log of the product of experts [m, V] and one N(0, 1), at points [n, V]."""
    experts = Normal(mean, deviation).log_prob(z[:, None]).sum(1)
    return experts + Normal(torch.zeros(V), torch.ones(V)).log_prob(z)


def is_constant(values, tolerance=1e-9):
    """Over the first dimension: densities that are proportional."""
    return float((values - values[0]).abs().max()) < tolerance


def test_product_of_experts_is_the_product_of_densities():
    """At nine points log of the product minus log of the result is the same number; with the prior
    twice, or without it, it is not."""
    mean, deviation = gaussians(6, V, key=2)
    precision = deviation**-2
    experts = precision.sum(0), (precision * mean).sum(0)
    z = 3 * torch.randn(9, V, generator=generator("z"), dtype=torch.float64)
    target = log_product(z, mean, deviation)
    assert is_constant(target - Normal(*product_of_experts(*experts)).log_prob(z))
    for prior in (0.0, 2.0):
        wrong = Normal(*product_of_experts(*experts, prior_precision=prior)).log_prob(z)
        assert not is_constant(target - wrong, 1e-2)


# ------------------------------------------------------------------ the loss


def test_expected_likelihood_by_hand():
    """p(y|z) = 1/2 and 1/4 for two samples z: -log of the mean is log(8/3); the mean of -log is
    (log 2 + log 4)/2 = 1.5 log 2, which is larger."""
    p = torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]])  # [n, S, K]
    y = torch.tensor([0])
    expected = FedCR(likelihood="expected")._negative_log_likelihood(p.log(), y)
    mean = FedCR(likelihood="mean")._negative_log_likelihood(p.log(), y)
    assert float(expected) == pytest.approx(math.log(8 / 3))
    assert float(mean) == pytest.approx(1.5 * math.log(2))


def test_loss_is_misfit_plus_beta_times_the_mean_divergence():
    """Eq. (7) on one batch: KL of the server's Gaussian of the sample's class from the sample's,
    summed over V, mean over the batch."""
    game = Game(fedcr(beta=0.3), mlp(), *CLOUDS).rounds(2)
    s, data = game.site(0), CLOUDS[0].train
    idx = torch.arange(6)
    b = Batch(data.x(idx), data.y[idx], idx, data.y[idx])
    with rng_scope("forward"):
        b.out = s.net(s.w, b.x)
    mean, deviation = b.out["gauss"].unbind(1)
    per_class = s.down["fedcr"]
    divergence = kl_divergence(
        Normal(per_class["mu"][b.y], per_class["sigma"][b.y]), Normal(mean, deviation)
    )
    p = b.out["head"].softmax(-1)[torch.arange(6), :, b.y]  # [n, S]
    expected = -p.mean(1).log().mean() + 0.3 * divergence.sum(1).mean()
    assert float(s.method.loss(b, s)) == pytest.approx(float(expected), rel=1e-5)
    assert (per_class["mu"][:2] != 0).any()  # not only the prior


def test_prediction_averages_probabilities_or_logits():
    """Two samples with probabilities (0.9, 0.1) and (0.2, 0.8): mean (0.55, 0.45). Log-odds are
    log 9 and -log 4, mean log(9/4)/2 = log 1.5, so (0.6, 0.4)."""
    logits = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]).log()

    def net(w, x, want):
        return {want: logits}

    by = {way: FedCR(ensemble=way).predict(net, {"model": {}}, None) for way in
          ("probabilities", "logits")}  # fmt: skip
    assert torch.allclose(by["probabilities"], torch.tensor([[0.55, 0.45]]))
    assert torch.allclose(by["logits"], torch.tensor([[0.6, 0.4]]))


def test_shapes_of_samples():
    """[n, S, V] in training and in prediction, and S different draws."""
    net = Program(fedcr(samples=7), mlp(), 1).nets[0]
    for train in (True, False):
        with rng_scope("draw"):
            out = net(net.tree(), torch.randn(6, 4), train=train)
        assert out["gauss"].shape == (6, 2, V)
        assert out["sample"].shape == (6, 7, V)
        assert out["head"].shape == (6, 7, K)
        assert len(out["sample"][0, :, 0].unique()) == 7


# ------------------------------------------------------------------ products over a round


def test_the_servers_gaussians_are_products_over_samples_clients_and_one_prior():
    """Nothing is trained (rate 0), so every sample's Gaussian is the received model's. For each
    class the server's new density is, up to a constant, the product over all samples of that class
    at all clients and one standard normal."""
    game = Game(fedcr(opt=STILL), mlp(), *CLOUDS).round()
    net = game.program.nets[0]
    y = torch.cat([data.train.y for data in CLOUDS])
    out = torch.cat([features(net, game.site(i).w, d, "gauss") for i, d in enumerate(CLOUDS)])
    mean, deviation = out.double().unbind(1)
    per_class = {k: v.double() for k, v in game.server["fedcr"].items()}
    z = torch.randn(5, V, generator=generator("z"), dtype=torch.float64)
    for c in range(K):
        target = log_product(z, mean[y == c], deviation[y == c])
        result = Normal(per_class["mu"][c], per_class["sigma"][c]).log_prob(z)
        assert is_constant(target - result, 1e-4 * float(target.abs().max()))


def sums(*clients):
    """Rounds from uploaded sums: per client (precision, precision times mean) of class 0, V = 1."""

    def server(method):
        program = Program(method, mlp(), len(clients))
        r = Round(program, program.schedule(1)[0], initial_server(program), range(len(clients)))
        for cid, (precision, weighted) in enumerate(clients):
            gauss = {"precision": precision, "precision_mean": weighted}
            up = {k: torch.tensor([[v], [0.0], [0.0]]) for k, v in gauss.items()}
            model = {k: r.server["model"][k] for k in r.shared}
            r.add(cid, Up({"model": model, "fedcr": up}, 10 * cid + 1))
        return {k: v.flatten().tolist() for k, v in merge(r)["fedcr"].items()}

    return server


def test_prior_once_tau_and_sizes_by_hand():
    """Precisions 1 and 2, precision-weighted means 3 and 5, clients of 1 and 11 samples: with one
    prior, precision 1 + 3 = 4, mean 8/4 = 2, deviation 1/2, whatever the clients' sizes. A prior
    per client would give 5 and 1.6. tau = 1/2: 1 + 1.5 = 2.5, 4/2.5 = 1.6. Classes 1 and 2 are
    held by nobody: N(0, 1) as at the start."""
    server = sums((1.0, 3.0), (2.0, 5.0))
    assert server(fedcr(dim=1)) == {"mu": [2, 0, 0], "sigma": [0.5, 1, 1]}
    weak = server(fedcr(dim=1, tau=0.5))
    assert weak["mu"] == pytest.approx([1.6, 0, 0])
    assert weak["sigma"] == pytest.approx([2.5**-0.5, 1, 1])


def test_absent_classes_keep_their_gaussian():
    """Round 1: clients 0 and 1, classes 0 and 1; class 2 stays N(0, 1). Round 2: client 1 alone, so
    class 0 stays as it was to the last bit while class 1 moves."""
    game = Game(fedcr(), mlp(), *CLOUDS).round(0, 1)
    first = clone(game.server["fedcr"])
    assert (first["mu"][2] == 0).all()
    assert (first["sigma"][2] == 1).all()
    assert (first["sigma"][:2] < 1).all()
    game.round(1)
    for k in ("mu", "sigma"):
        assert torch.equal(game.server["fedcr"][k][[0, 2]], first[k][[0, 2]])
        assert not torch.equal(game.server["fedcr"][k][1], first[k][1])


def per_class(data, gauss):
    mean, deviation = gauss.unbind(1)
    member = nn.functional.one_hot(data.train.y, K).float()
    precision = deviation**-2
    return {"precision": member.T @ precision, "precision_mean": member.T @ (precision * mean)}


def close(a, b):
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=1e-5) for k in a)


def test_every_sample_counts_once():
    """Three epochs without movement upload the sums of one pass, not of three."""
    for epochs in (1, 3):
        opt = Opt(lr=0.0, epochs=epochs, batch=4)
        game = Game(fedcr(opt=opt), mlp(), *CLOUDS).round(0)
        net = game.program.nets[0]
        expected = per_class(CLOUDS[0], features(net, net.tree(), CLOUDS[0], "gauss"))
        assert close(game.up[0].state["fedcr"], expected)


def test_later_epochs_overwrite_earlier_ones():
    """Full batches: the second epoch's forward pass is of the model after one step, which is what a
    run of one epoch uploads; not of the model before, nor after both."""
    one, two = (
        Game(fedcr(opt=Opt(lr=0.5, epochs=e, batch=64)), mlp(), *CLOUDS).round(0) for e in (1, 2)
    )
    net = two.program.nets[0]

    def of(tree):
        return per_class(CLOUDS[0], features(net, {**net.tree(), **tree}, CLOUDS[0], "gauss"))

    uploaded = two.up[0].state["fedcr"]
    assert close(uploaded, of(one.up[0].state["model"]))
    assert not close(uploaded, of({}))
    assert not close(uploaded, of(two.up[0].state["model"]))


def test_a_sample_left_out_of_the_last_epoch_keeps_its_latest_gaussian():
    """13 rows, batches of 4 without the incomplete one: 12 rows an epoch. In some epoch each row is
    drawn, so over eight epochs (rate 0) the sums are those of all rows."""
    data = cloud(0, 13, (0, 1))
    opt = Opt(lr=0.0, epochs=8, batch=4, drop_last=True)
    game = Game(fedcr(opt=opt), mlp(), data).round()
    net = game.program.nets[0]
    assert close(
        game.up[0].state["fedcr"], per_class(data, features(net, net.tree(), data, "gauss"))
    )


def test_no_training_uploads_nothing_and_changes_no_gaussian():
    game = Game(fedcr(opt=Opt(epochs=0)), mlp(), *CLOUDS).round()
    assert not game.up[0].state["fedcr"]["precision"].any()
    assert (game.server["fedcr"]["sigma"] == 1).all()


# ------------------------------------------------------------------ what travels


def test_body_travels_head_stays_and_the_mean_is_plain():
    """14, 9, 1 and 11 samples weigh the same."""
    game = Game(fedcr(), mlp(), *CLOUDS).round()
    net = game.program.nets[0]
    shared = net.match("body.* gauss.*")
    mean = WeightedSum()
    for cid in range(4):
        assert game.up[cid].state["model"].keys() == shared
        assert game.own[cid]["model"].keys() == net.match("head.*")
        mean.fold(game.up[cid].state["model"], 1.0)
    assert same(game.server["model"], mean.mean())
    assert nbytes({"g": game.up[0].state["fedcr"]}) == 2 * K * V * 4
    assert not same(game.own[0]["model"], game.own[1]["model"])


def test_partial_participation_leaves_the_others_alone():
    game = Game(fedcr(), mlp(), *CLOUDS).round(0, 1, 2)
    head = clone(game.own[0]["model"])
    game.round(1, 3)
    assert same(game.own[0]["model"], head)
    assert same(part(game.site(0).w, "head"), head)
    assert same(part(game.site(0).w, "body", "gauss"), game.server["model"])
    assert finite(game.server)


def unlike():
    return [mlp(hidden=5), mlp(hidden=9, norm=True)]


def test_unlike_bodies_exchange_gaussians_only():
    """Section 4.4: bodies of 5 and 9 units, dealt in turn; up and down go 2 K V floats and nothing
    else, and the Gaussians of class 1 are products over both kinds."""
    game = Game(fedcr(shared=""), unlike(), *CLOUDS).rounds(2)
    for cid in range(4):
        for state in (game.up[cid].state, game.down[cid].state):
            assert state["model"] == {}
            assert nbytes(state) == 2 * K * V * 4
        width = (5, 9)[cid % 2]
        assert game.own[cid]["model"]["gauss.fc.weight"].shape == (2 * V, width)
    assert (game.server["fedcr"]["sigma"] < 1).all()
    assert finite(game.server)


def test_without_aggregation_clients_meet_in_the_gaussians_alone():
    """Client 0's model after two rounds depends on client 1 if beta > 0 and not if beta = 0."""

    def model(beta, *cohort):
        game = Game(fedcr(shared="", beta=beta), unlike(), *CLOUDS)
        return game.round(*cohort).round(*cohort).own[0]["model"]

    assert same(model(0.0, 0), model(0.0, 0, 1))
    assert not same(model(0.1, 0), model(0.1, 0, 1))


def test_unlike_bodies_cannot_be_averaged():
    with pytest.raises(BadInput, match="differ in the shared tensor"):
        Program(fedcr(), unlike(), 4)


# ------------------------------------------------------------------ the final epochs


def test_final_epochs_train_the_head_alone():
    """Ten epochs; the body of the final model is the received one, bit for bit, BatchNorm
    statistics included; the head a client goes on training with is not touched."""
    assert [(p.train, p.epochs) for p in FedCR().adapt] == [("head.*", 10)]
    game = Game(fedcr(adapt_epochs=3), mlp(norm=True), *CLOUDS).rounds(2)
    heads = {cid: clone(own["model"]) for cid, own in game.own.items()}
    game.adapt()
    for cid in range(4):
        final = game.own[cid]["final/model"]
        assert same(part(final, "body", "gauss"), game.server["model"])
        assert not same(part(final, "head"), heads[cid])
        assert same(game.own[cid]["model"], heads[cid])
    assert FedCR(adapt_epochs=0).adapt == ()


# ------------------------------------------------------------------ FedPer inside


class Mean(nn.Module):
    """The first V outputs of a layer: the deterministic twin of `Gaussian`."""

    def __init__(self, fc: nn.Linear) -> None:
        super().__init__()
        self.fc = fc

    def forward(self, x):
        return self.fc(x)[:, :V]


def twin(net: Net, outputs: int) -> Net:
    """A FedPer net with the values of a FedCR net; its layer has the first `outputs` rows."""
    start = net.tree()
    body, head, fc = nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Linear(V, K), nn.Linear(5, 2 * V)
    for name, module in (("body", body), ("head", head), ("gauss.fc", fc)):
        own = {k.removeprefix(f"{name}."): v for k, v in start.items() if k.startswith(name)}
        module.load_state_dict(own)
    fc.weight, fc.bias = nn.Parameter(fc.weight[:outputs]), nn.Parameter(fc.bias[:outputs])
    return Net((4,), body=body, gauss=Mean(fc), head=head)


@pytest.mark.parametrize(("samples", "outputs", "exact"), [(1, 2 * V, True), (18, V, False)])
def test_degenerate_fedcr_is_fedper(samples, outputs, exact):
    """beta = 0, sigma = 0: z = mu(x), and the network is FedPer's with one linear layer more. Four
    rounds with partial participation, uniform weights, no final epochs.

    With one sample and the same 2V-row layer (FedPer's reads the first V) every tensor is equal
    bit for bit; with 18 equal samples, whose log-mean-exp rounds, and a layer of V rows, whose
    products are summed in another order, to 1e-6.
    """
    method = fedcr(beta=0.0, sigma=0.0, samples=samples, adapt_epochs=0)
    cr = Game(method, mlp(), *CLOUDS)
    per = Game(FedPer(weighting="uniform", opt=OPT), twin(cr.program.nets[0], outputs), *CLOUDS)
    for cohort in ((), (0, 2), (1, 3), ()):
        cr.round(*cohort), per.round(*cohort)
    for cid in range(4):
        a, b = cr.site(cid).w, per.site(cid).w
        assert a.keys() == b.keys()
        for k, v in b.items():
            mine = a[k][:outputs] if k.startswith("gauss") else a[k]
            assert torch.equal(mine, v) if exact else torch.allclose(mine, v, atol=1e-6), k
        x = CLOUDS[cid].test.rows
        p, q = (
            g.program.method.predict(g.program.nets[0], {"model": g.site(cid).w}, x)
            for g in (cr, per)
        )
        assert torch.allclose(p, q, atol=1e-6)
    assert not torch.equal(cr.site(0).w["body.0.weight"], mlp().tree()["body.0.weight"])


def test_noise_or_alignment_end_the_equality():
    """The reduction above is not vacuous: with sigma or beta the model is another one."""

    def body(**settings):
        return Game(fedcr(**settings), mlp(), *CLOUDS).rounds(2).server["model"]["body.0.weight"]

    plain = body(beta=0.0, sigma=0.0)
    assert not torch.allclose(body(beta=0.0, sigma=0.3), plain, atol=1e-4)
    assert not torch.allclose(body(beta=0.1, sigma=0.3), body(beta=0.0, sigma=0.3), atol=1e-4)


# ------------------------------------------------------------------ settings


def test_fixed_sigma_is_the_deviation_everywhere():
    """sigma = 0.5: samples, divergence and products have it; precision sums are 4 a sample."""
    game = Game(fedcr(sigma=0.5, opt=STILL), mlp(), *CLOUDS).round()
    net = game.program.nets[0]
    with rng_scope("draw"):
        out = net(net.tree(), torch.zeros(1, 4).expand(4000, 4))
    assert (out["gauss"][:, 1] == 0.5).all()
    assert float(out["sample"][..., 0].std()) == pytest.approx(0.5, rel=0.03)
    counts = torch.bincount(CLOUDS[0].train.y, minlength=K).float()
    assert torch.equal(game.up[0].state["fedcr"]["precision"], (4 * counts)[:, None].expand(K, V))


def test_collapsed_deviations_stay_finite():
    """softplus(-200) is 0 in float32, and one over its square infinite; the layer stops at 1e-6."""
    game = Game(fedcr(opt=STILL), mlp(), *CLOUDS)
    net = game.program.nets[0]
    low = net.initial["gauss.fc.bias"].clone()
    low[V:] = -200
    game.server["model"]["gauss.fc.bias"] = low
    game.round(0)
    assert finite(game.up[0].state)
    assert math.isfinite(game.up[0].metrics["loss"])


def test_any_body_will_do():
    """Features that are maps, not vectors: a convolution under a head that flattens."""
    with rng_scope("maps"):
        head = nn.Sequential(nn.Flatten(), nn.Linear(2 * 3 * 3, K))
        net = Net((1, 5, 5), body=nn.Conv2d(1, 2, 3), head=head)
    extended = Program(fedcr(), net, 1).nets[0]
    assert extended(extended.tree(), torch.zeros(2, 1, 5, 5))["head"].shape == (2, 5, K)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(BadInput, match="set beta=0"):
        FedCR(sigma=0.0)
    with pytest.raises(BadInput, match="1 or more"):
        FedCR(samples=0)
    with pytest.raises(BadInput, match="build the model without gaussian"):
        Program(fedcr(), build_model("mlp_fedcr(gaussian=4)", (4,), K, seed=0), 1)


def test_prediction_is_the_same_whenever_it_is_asked():
    """Samples are drawn in prediction too; evaluation seeds them."""
    game = Game(fedcr(), mlp(), *CLOUDS).round()
    r = Round(game.program, game.program.schedule(1)[0], game.server)
    visit = Visit(game.program, 0, CLOUDS[0], send(r, 0), game.own[0])
    scores = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        scores.append(evaluate(visit, Ask(("received", "adapted"))))
    assert scores[0] == scores[1]
    assert [score.moment for score in scores[0]] == ["received", "adapted"]
    assert all(np.isfinite(score.metrics["nll"]) for score in scores[0])
