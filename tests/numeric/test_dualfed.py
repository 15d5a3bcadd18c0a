"""DualFed: contrast, two stages, two heads, and every pattern of what is personal."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from game import Game, Watch, cloud, part
from quadratic import Spy
from torch import nn

from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import generator, rng_scope
from fedloom.core.tree import WeightedSum, clone
from fedloom.engines.inline import Inline
from fedloom.errors import BadInput
from fedloom.methods.dualfed import DualFed
from fedloom.methods.fedavg import FedAvg
from fedloom.models.projector import projector
from fedloom.ops.contrastive import supervised_contrast
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.runner import Runner
from helpers import finite, mlp, same

CLOUDS = [cloud(0, 20, (0, 1, 2)), cloud(1, 17, (1, 2)), cloud(2, 9, (0,)), cloud(3, 1, (2,))]
OPT = Opt(lr=0.05, epochs=2, batch=8, momentum=0.5)
MAIN = ("body", "projector", "personal_head")


def dualfed(**settings):
    return DualFed(**{"hidden": 6, "tau": 0.5, "opt": OPT, **settings})


@pytest.fixture(autouse=True)
def _nothing_seen():
    Spy.seen.clear()
    Watch.seen.clear()


# ------------------------------------------------------------------ the contrast


def slow_contrast(u, y, tau):
    """Eq. (7) by its loops; an anchor without positives contributes nothing to the sum, and the
    sum is divided by all samples."""

    def cosine(i, j):
        return float(u[i] @ u[j] / (u[i].norm() * u[j].norm()))

    n, total = len(y), 0.0
    for i in range(n):
        positives = [j for j in range(n) if j != i and y[j] == y[i]]
        below = sum(math.exp(cosine(i, a) / tau) for a in range(n) if a != i)
        for j in positives:
            total -= math.log(math.exp(cosine(i, j) / tau) / below) / len(positives)
    return total / n


@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0])
def test_contrast_is_the_double_loop(tau):
    """Three classes, one of them with a single sample."""
    u = torch.randn(9, 4, generator=generator("u"), dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 2, 1, 1, 0, 0, 1])
    assert float(supervised_contrast(u, y, tau)) == pytest.approx(slow_contrast(u, y, tau))
    assert float(supervised_contrast(7 * u, y, tau)) == pytest.approx(slow_contrast(u, y, tau))


def test_contrast_by_hand():
    """u = e1, e1, e2 of classes 0, 0, 1, tau = 1: anchors 0 and 1 have -log(e/(e + 1)) each, the
    last has no positive: 2 log(1 + 1/e)/3."""
    u = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    contrast = supervised_contrast(u, torch.tensor([0, 0, 1]), tau=1.0)
    assert float(contrast) == pytest.approx(2 * math.log(1 + math.exp(-1)) / 3)


@pytest.mark.parametrize("y", [[0], [0, 1, 2]])
def test_no_positives_no_contrast(y):
    """Value and gradient zero, also for a batch of one, where the denominator is empty."""
    u = torch.randn(len(y), 3, generator=generator("u")).requires_grad_()
    loss = supervised_contrast(u, torch.tensor(y), 0.1)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(u.grad, torch.zeros_like(u))


# ------------------------------------------------------------------ the projector


@pytest.mark.parametrize(
    ("depth", "hidden", "norm", "linear", "affine"),
    [
        (1, 256, True, 512 * 512 + 512, 2 * 512),
        (2, 256, True, 512 * 256 + 256 + 256 * 512 + 512, 2 * (256 + 512)),
        (3, 256, True, 512 * 256 + 256 + 256 * 256 + 256 + 256 * 512 + 512, 2 * (256 * 2 + 512)),
        (2, 64, True, 512 * 64 + 64 + 64 * 512 + 512, 2 * (64 + 512)),
        (2, 128, True, 512 * 128 + 128 + 128 * 512 + 512, 2 * (128 + 512)),
        (2, 512, True, 2 * (512 * 512 + 512), 2 * (512 + 512)),
        (2, 256, False, 512 * 256 + 256 + 256 * 512 + 512, 0),
    ],
)
def test_projectors_of_table_5(depth, hidden, norm, linear, affine):
    """Parameters of every row, for 512 features."""
    layers = projector(512, hidden, depth, norm)
    assert sum(p.numel() for p in layers.parameters()) == linear + affine
    assert layers(torch.zeros(2, 512)).shape == (2, 512)


def test_the_papers_projector():
    """Linear(512, 256) - ReLU - BN - Linear(256, 512) - BN (section 5.3)."""
    kinds = [type(layer) for layer in projector(512, 256, 2, True)]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.BatchNorm1d, nn.Linear, nn.BatchNorm1d]
    assert (DualFed().depth, DualFed().hidden, DualFed().batch_norm) == (2, 256, True)
    with pytest.raises(BadInput, match="1 or more"):
        DualFed(depth=0)


def test_any_body_will_do():
    """Features that are maps, not vectors."""
    with rng_scope("maps"):
        head = nn.Sequential(nn.Flatten(), nn.Linear(2 * 3 * 3, 3))
        net = Net((1, 5, 5), body=nn.Conv2d(1, 2, 3), head=head)
    extended = Program(dualfed(), net, 1).nets[0]
    out = extended(extended.tree(), torch.zeros(2, 1, 5, 5))
    assert out["head"].shape == out["personal_head"].shape == (2, 3)


# ------------------------------------------------------------------ two stages


def test_each_stage_leaves_the_other_bit_for_bit():
    """Body and projector have BatchNorm. In stage 1 the global head stands still; in stage 2
    everything else does, running statistics included. 20 rows by 8: 3 steps an epoch, 2 epochs."""
    game = Game(dualfed() + Spy(), mlp(norm=True), CLOUDS[0]).round()
    start = game.program.nets[0].tree()
    first = [s for s in Spy.seen if s[0] == "personal"]
    second = [s for s in Spy.seen if s[0] == "global"]
    assert [s[:2] for s in first] == [("personal", e) for e in (0, 0, 0, 1, 1, 1)]
    assert [s[:2] for s in second] == [("global", e) for e in (0, 0, 0, 1, 1, 1)]
    assert Spy.seen == first + second
    assert {k.split(".")[0] for s in first for k in s[2]} == set(MAIN)
    assert {k for s in second for k in s[2]} == {"head.weight", "head.bias"}
    assert all(same(part(s[3], "head"), part(start, "head")) for s in first)
    main = part(second[0][3], *MAIN)
    assert all(same(part(s[3], *MAIN), main) for s in second)
    final = {**game.own[0]["model"], **game.up[0].state["model"]}
    assert same(part(final, *MAIN), main)
    assert not same(part(final, "head"), part(start, "head"))
    for norm in ("body.1", "projector.3", "projector.5"):
        assert int(final[f"{norm}.num_batches_tracked"]) == 6


def test_the_codes_frozen_encoder_goes_on_updating_statistics():
    """frozen_eval=False: 12 batches counted instead of 6, weights as before, and another global
    head, trained on batch statistics."""

    def final(**settings):
        game = Game(dualfed(**settings), mlp(norm=True), CLOUDS[0]).round()
        return {**game.own[0]["model"], **game.up[0].state["model"]}, game.program.nets[0]

    (paper, net), (code, _) = final(), final(frozen_eval=False)
    stats = net.match("@stats")
    for k in net.match("body.* projector.* personal_head.*"):
        assert torch.equal(paper[k], code[k]) == (k not in stats), k
    assert int(code["projector.5.num_batches_tracked"]) == 12
    assert not torch.equal(paper["head.weight"], code["head.weight"])


def loss_of(net, w, data, lam, tau, *, personal, shared):
    """The paper's losses, by hand, over all rows in training mode."""
    z = net(w, data.train.rows, train=True)
    loss = torch.zeros(())
    if personal:
        loss = loss + F.cross_entropy(z["personal_head"], data.train.y)
        loss = loss + lam * supervised_contrast(z["projector"], data.train.y, tau)
    if shared:
        loss = loss + F.cross_entropy(z["head"], data.train.y)
    return loss


def stepped(net, w, lr, loss):
    """One gradient step on every tensor the loss reaches."""
    leaves = {k: v.clone().requires_grad_() for k, v in w.items() if k in net.params}
    gradients = torch.autograd.grad(loss({**w, **leaves}), list(leaves.values()), allow_unused=True)
    moved = zip(leaves.items(), gradients, strict=True)
    return {k: v.detach() - (0 if g is None else lr * g) for (k, v), g in moved}


def test_stagewise_and_simultaneous_steps_by_hand():
    """Full batches, one epoch, no BatchNorm. Stagewise: f, g, h_p step on CE + lam SupCon, then h_s
    on the features of the *stepped* f. Simultaneous: one step on all three losses, so f also
    follows h_s."""
    lr, data = 0.1, CLOUDS[0]
    settings = {"lam": 3.0, "batch_norm": False, "opt": Opt(lr=lr, batch=64)}
    for training in ("stagewise", "simultaneous"):
        game = Game(dualfed(training=training, **settings), mlp(), data).round()
        net = game.program.nets[0]
        w = net.tree()

        def loss(tree, personal, shared, net=net):
            return loss_of(net, tree, data, 3.0, 0.5, personal=personal, shared=shared)

        if training == "stagewise":
            w = stepped(net, w, lr, lambda tree: loss(tree, True, False))
            once = stepped(net, w, lr, lambda tree: loss(tree, False, True))
            w = {**w, **part(once, "head")}
        else:
            w = stepped(net, w, lr, lambda tree: loss(tree, True, True))
        trained = {**game.own[0]["model"], **game.up[0].state["model"]}
        assert trained.keys() == w.keys()
        for k, v in w.items():
            assert torch.allclose(trained[k], v, atol=1e-6), (training, k)
        assert not torch.allclose(trained["body.0.weight"], net.tree()["body.0.weight"], atol=1e-3)


def test_alternating_goes_epoch_by_epoch():
    """E = 2: stage 1, stage 2, stage 1, stage 2, an epoch each; stagewise has 2 epochs of each."""
    Game(dualfed(training="alternating") + Watch(), mlp(), CLOUDS[2]).round()
    assert [s[:2] for s in Watch.seen] == [("personal", 0)] * 2 + [("global", 0)] * 2 + [
        ("personal", 0)
    ] * 2 + [("global", 0)] * 2
    one = {
        training: Game(dualfed(training=training, opt=Opt(batch=8)), mlp(), CLOUDS[0])
        .round()
        .server
        for training in ("alternating", "stagewise")
    }
    assert same(one["alternating"]["model"], one["stagewise"]["model"])  # the same for E = 1


# ------------------------------------------------------------------ what travels

PATTERNS = {
    "default": ({}, {"body", "head"}),
    "encoder only": ({"shared": "* !projector.* !personal_head.* !head.* !@stats"}, {"body"}),
    "all global": ({"shared": "* !@stats"}, {"body", "head", "projector", "personal_head"}),
    "all but h_p": ({"shared": "* !personal_head.* !@stats"}, {"body", "head", "projector"}),
    "all personal": ({"shared": ""}, set()),
    "DualFed-P": ({"position": "post"}, {"body", "head"}),
    "DualFed-G": (
        {"position": "post", "shared": "* !personal_head.* !@stats"},
        {"body", "head", "projector"},
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_what_travels_and_what_stays(name):
    """Every row of Tables 6 and 7; running statistics never leave, BatchNorm's weights go with
    their stage (this is not FedBN)."""
    settings, stages = PATTERNS[name]
    game = Game(dualfed(**settings), mlp(norm=True), *CLOUDS[:2]).rounds(2)
    net = game.program.nets[0]
    shared = {k for k in net.keys if k.split(".")[0] in stages} - net.match("@stats")
    assert ("body.1.weight" in shared) == ("body" in stages)
    for cid in (0, 1):
        assert game.up[cid].state["model"].keys() == shared
        assert game.down[cid].state["model"].keys() == shared
        assert game.own[cid]["model"].keys() == set(net.keys) - shared
    mean = WeightedSum()
    for up in game.up.values():  # eq. (11): 1/M each, for 20 and 17 samples
        mean.fold(up.state["model"], 1.0)
    assert same(game.server["model"], mean.mean())
    assert not same(game.own[0]["model"], game.own[1]["model"])


def test_position_of_the_global_classifier():
    """Before the projector it reads f(x) (eq. 3), behind it g(f(x))."""
    assert Program(dualfed(), mlp(), 1).nets[0].reads["head"] == "body"
    net = Program(dualfed(position="post"), mlp(), 1).nets[0]
    assert net.reads["head"] == net.reads["personal_head"] == "projector"
    out = net(net.tree(), torch.randn(3, 4, generator=generator("x")))
    assert torch.equal(out["head"], net.stage(net.tree(), "head", out["projector"]))


def test_absent_clients_keep_everything_personal():
    game = Game(dualfed(), mlp(norm=True), *CLOUDS).round()
    before = clone(game.own[1]["model"])
    game.round(0, 2)
    assert same(game.own[1]["model"], before)
    tree = game.site(1).w
    assert same({k: tree[k] for k in game.server["model"]}, game.server["model"])


# ------------------------------------------------------------------ prediction


def test_ensemble_of_probabilities_or_logits():
    """Global (0.9, 0.095, 0.005), personal (0.001, 0.1, 0.899): their mean is
    (0.4505, 0.0975, 0.452), class 2. Added logits are logs of the products
    (0.0009, 0.0095, 0.004495), to be divided by their sum: class 1."""
    out = {
        "head": torch.tensor([[0.9, 0.095, 0.005]]).log(),
        "personal_head": torch.tensor([[0.001, 0.1, 0.899]]).log(),
    }

    def net(w, x):
        return out

    paper = DualFed().predict(net, {"model": {}}, None)
    code = DualFed(ensemble="logits").predict(net, {"model": {}}, None)
    assert paper.flatten().tolist() == pytest.approx([0.4505, 0.0975, 0.452])
    products = [0.0009, 0.0095, 0.004495]
    assert code.flatten().tolist() == pytest.approx([p / sum(products) for p in products], rel=1e-4)
    assert (int(paper.argmax()), int(code.argmax())) == (2, 1)


def test_scores_tell_each_head_apart():
    """A round's record has the ensemble's accuracy and each head's alone, client by client, under
    the paper's protocol."""
    config = RunConfig(
        method="dualfed(hidden=8, lam=0.1, tau=0.5)",
        model="mlp(hidden=[8], norm=batch)",
        clients=3,
        rounds=2,
        protocol="dualfed",
    )
    runner = Runner(Experiment.build(config), Inline())
    runner.run()
    scores = {s.at.model: s for s in runner.records[-1].scores if s.at.moment == "received"}
    program, data = runner.program, runner.experiment.data
    heads = {"global_head": "head", "personal_head": "personal_head"}
    for name, stage in heads.items():
        accuracies = {}
        for cid in range(3):
            w = {**runner.clients[cid]["model"], **runner.server["model"]}
            test = data.client(cid).test
            with torch.no_grad():
                logits = program.nets[0](w, test.x(torch.arange(len(test))))[stage]
            accuracies[cid] = float((logits.argmax(1) == test.y).double().mean())
        assert scores[name].by_client() == pytest.approx(accuracies)
    assert scores["global_head"].by_client() != scores["personal_head"].by_client()
    assert scores.keys() == {"personal", *heads}
    assert all({"accuracy", "nll"} <= score.metrics.keys() for score in scores.values())


# ------------------------------------------------------------------ reductions


def chain(net: Net) -> Net:
    """The main branch as an ordinary net: body, projector, personal head, with the same values."""
    with rng_scope("chain"):
        body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU())
        stages = {
            "body": body,
            "projector": projector(5, 6, 2, True),
            "personal_head": nn.Linear(5, 3),
        }
    for name, module in stages.items():
        own = part(net.tree(), name)
        module.load_state_dict({k.removeprefix(f"{name}."): v for k, v in own.items()})
    return Net((4,), **stages)


def test_without_contrast_and_personal_parts_the_main_branch_is_fedavg():
    """lam = 0, everything shared, stagewise: f, g, h_p are FedAvg's (uniform weights) on the chain
    f, g, h_p, bit for bit over three rounds with partial participation, BatchNorm and all, since
    stage 2 touches none of them; h_s is a linear probe beside it. Prediction is the mean of both
    heads' probabilities."""
    dual = Game(dualfed(lam=0.0, shared="*"), mlp(norm=True), *CLOUDS)
    plain = Game(FedAvg(weighting="uniform", opt=OPT), chain(dual.program.nets[0]), *CLOUDS)
    for cohort in ((), (0, 2), (1, 3)):
        dual.round(*cohort), plain.round(*cohort)
    server = dual.server["model"]
    assert same(part(server, *MAIN), plain.server["model"])
    assert dual.own[0].get("model", {}) == {}
    contrasted = Game(dualfed(shared="*"), mlp(norm=True), *CLOUDS).rounds(1)
    averaged = Game(
        FedAvg(weighting="uniform", opt=OPT), chain(contrasted.program.nets[0]), *CLOUDS
    )
    assert not same(part(contrasted.server["model"], *MAIN), averaged.rounds(1).server["model"])

    x, net = CLOUDS[0].test.rows, dual.program.nets[0]
    out = net(server, x)
    mean = (out["head"].softmax(1) + out["personal_head"].softmax(1)) / 2
    assert torch.equal(dual.program.method.predict(net, {"model": server}, x), mean)


class Two(nn.Module):
    """Two heads on one body, as a PyTorch user writes them."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.projector = projector(5, 6, 2, True)
        self.head, self.personal_head = nn.Linear(5, 3), nn.Linear(5, 3)
        self.load_state_dict(net.tree())

    def forward(self, x):
        z = self.body(x)
        return self.head(z), self.personal_head(self.projector(z))


def test_simultaneous_without_contrast_and_personal_parts_is_a_plain_ensemble():
    """lam = 0, everything shared, one stage: federated averaging of one two-headed model trained on
    the sum of both cross-entropies, written here without fedloom's loop; only the order of rows is
    its own. Equal to 1e-6 after two rounds."""
    clients = CLOUDS[:2]
    method = dualfed(lam=0.0, shared="*", training="simultaneous")
    game = Game(method, mlp(norm=True), *clients)
    w = game.program.nets[0].tree()
    for t in (1, 2):
        game.round()
        mean = WeightedSum()
        for cid, data in enumerate(clients):
            model = Two(game.program.nets[0])
            model.load_state_dict(w)
            sgd = torch.optim.SGD(model.parameters(), OPT.lr, OPT.momentum)
            order = generator(0, t, "train", "model", cid, ("batches", "model", 1))
            for _ in range(OPT.epochs):
                for idx in torch.randperm(len(data.train), generator=order).split(OPT.batch):
                    model.train(len(idx) > 1)
                    y = data.train.y[idx]
                    loss = sum(F.cross_entropy(out, y) for out in model(data.train.x(idx)))
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
            mean.fold(model.state_dict(), 1.0)
        w = mean.mean()
    assert game.server["model"].keys() == w.keys()
    for k, v in w.items():
        assert torch.allclose(game.server["model"][k].double(), v.double(), atol=1e-6), k


# ------------------------------------------------------------------ awkward clients


def test_a_batch_of_one_with_batchnorm():
    """17 rows in batches of 8 leave one alone: that batch runs in evaluation mode and counts in no
    running statistics (2 a epoch, 2 epochs). A client with one sample trains all the same."""
    game = Game(dualfed(), mlp(norm=True), *CLOUDS).rounds(2)
    assert int(game.own[1]["model"]["projector.5.num_batches_tracked"]) == 2 * 2 * 2
    assert int(game.own[3]["model"]["projector.5.num_batches_tracked"]) == 0
    assert finite(game.server)
    assert all(finite(own) for own in game.own.values())
    start = game.program.nets[0].tree()
    assert not torch.equal(
        game.own[3]["model"]["personal_head.weight"], start["personal_head.weight"]
    )
