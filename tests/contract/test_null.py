"""Settings that must change nothing, bit for bit unless a tolerance is stated and explained.

They are the cheapest proofs there are: a wrong sign, an aliased tensor or a generator that another
part moves cannot pass them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.term import Term
from fedloom.core.tree import Tree
from fedloom.data import FederatedData
from fedloom.methods.ditto import Ditto
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedper import FedPer
from fedloom.methods.fedprox import FedProx, Proximal
from fedloom.methods.fedrep import FedRep
from fedloom.methods.local import Local
from fedloom.methods.moon import MOON, ModelContrast
from fedloom.methods.scaffold import SCAFFOLD, ControlVariates
from fedloom.models import build_model
from fedloom.testing.federations import common_federation as federation
from helpers import Played, digits, run, same

OPT = Opt(lr=0.1, epochs=2, batch=8, momentum=0.5, weight_decay=1e-3)
CLIENTS, ROUNDS, SEED = 4, 3, 11


def net(norm: str = "batch") -> Net:
    return build_model(f"mlp(hidden=[16], norm='{norm}')", (1, 8, 8), 10, seed=0)


def trained(
    method: Method,
    opt: Opt = OPT,
    rounds: int = ROUNDS,
    participation: float = 1.0,
    data: FederatedData | None = None,
    model: Net | None = None,
) -> Played:
    program = Program(replace(method, opt=opt), model or net(), CLIENTS, SEED)
    return run(program, data or federation(), rounds, participation=participation)


def own(played: Played, part: str) -> dict[int, Tree]:
    return {cid: state[part] for cid, state in played.clients.items()}


def far(a: Tree, b: Tree) -> float:
    """The largest difference between two trees."""
    assert a.keys() == b.keys()
    return max(float((a[k].double() - b[k].double()).abs().max()) for k in a)


# ------------------------------------------------------------------ federated averaging


def bare_model(w: Tree) -> nn.ModuleDict:
    """The net of `net()` without fedloom."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
    model = nn.ModuleDict({"body": body, "head": nn.Linear(16, 10)})
    model.load_state_dict(w)
    return model


def bare_sgd(model: nn.ModuleDict, cid: int, t: int, fit: str = "model") -> None:
    """Local training as a PyTorch user writes it; only the order of the rows is fedloom's."""
    train = federation().client(cid).train
    order = generator(SEED, t, "train", "model", cid, ("batches", fit, 1))
    sgd = torch.optim.SGD(model.parameters(), OPT.lr, OPT.momentum, weight_decay=OPT.weight_decay)
    for _ in range(OPT.epochs):
        for rows in torch.randperm(len(train), generator=order).split(OPT.batch):
            model.train(len(rows) > 1)  # BatchNorm cannot normalise a single row
            sgd.zero_grad()
            logits = model["head"](model["body"](train.x(rows)))
            nn.functional.cross_entropy(logits, train.y[rows]).backward()
            sgd.step()


def test_fedavg_is_a_bare_pytorch_loop() -> None:
    """Twelve lines without fedloom's loop, mean or net, BatchNorm's statistics included. Means
    are in float64 and rounded once, integers to the nearest."""
    w = net().tree()
    sizes = [len(federation().client(cid).train) for cid in range(CLIENTS)]
    for t in range(1, ROUNDS + 1):
        total = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in w.items()}
        for cid, n in enumerate(sizes):
            model = bare_model(w)
            bare_sgd(model, cid, t)
            total = {k: total[k] + n * v.double() for k, v in model.state_dict().items()}
        mean = {k: v / sum(sizes) for k, v in total.items()}
        w = {
            k: (v if w[k].is_floating_point() else v.round()).to(w[k].dtype)
            for k, v in mean.items()
        }
    assert same(trained(FedAvg()).server[METHOD], w)


def test_fedprox_with_mu_0_is_fedavg() -> None:
    assert trained(FedProx(mu=0.0)).digest == trained(FedAvg()).digest


def test_fedprox_holds_clients_near_what_they_received() -> None:
    """The larger mu, the shorter the way; a pull of the wrong sign would push."""
    params = net("none").params

    def way(mu: float) -> float:
        played = trained(FedProx(mu=mu), rounds=1, model=net("none"))
        ups = [a.up.state[METHOD] for a in played.answers]
        start = net("none").tree()
        return sum(float((up[k] - start[k]).norm()) for up in ups for k in params)

    ways = [way(mu) for mu in (0.0, 0.1, 1.0, 5.0)]
    assert ways == sorted(ways, reverse=True)
    assert ways[-1] < 0.6 * ways[0]


def test_moon_with_mu_0_is_fedavg() -> None:
    """The server's model; MOON's clients keep their extractor besides."""
    plain = trained(FedAvg()).server
    assert same(trained(MOON(mu=0.0)).server[METHOD], plain[METHOD])


def test_moon_has_no_gradient_in_a_clients_first_round() -> None:
    """z_previous = z_global there, so the loss is log 2 whatever z is, and its gradient is
    sigmoid(0) (cos'(z_p) - cos'(z_g)) / tau = 0 up to rounding."""
    for rounds, near in ((1, True), (2, False)):
        plain, moon = (trained(m, rounds=rounds).server[METHOD] for m in (FedAvg(), MOON()))
        assert (far(plain, moon) < 1e-6) == near
        assert near or far(plain, moon) > 1e-3


def test_fedper_that_shares_everything_is_fedavg() -> None:
    assert trained(FedPer(shared="*")).digest == trained(FedAvg()).digest


def test_fedper_that_shares_nothing_is_local() -> None:
    assert trained(FedPer(shared="")).digest == trained(Local()).digest


def test_local_with_one_client_is_fedavg_with_one_client() -> None:
    """The mean of one model is that model: (n w) / n in float64 rounds to w itself."""
    data = digits(((0, 1, 2, 3), 20))

    def alone(method: Method) -> Played:
        return run(Program(replace(method, opt=OPT), net(), 1, SEED), data, ROUNDS)

    assert same(alone(FedAvg()).server[METHOD], alone(Local()).clients[0][METHOD])


def test_a_server_that_takes_no_step_stays_where_it_began() -> None:
    assert same(trained(FedAvg(server=ServerOpt(lr=0.0))).server[METHOD], net().tree())


# ------------------------------------------------------------------ Ditto


def test_dittos_global_model_is_fedavgs() -> None:
    """Whatever the personal side does: a second model moves no batch order and no tensor."""
    plain = trained(FedAvg()).server[METHOD]
    for ditto in (Ditto(), Ditto(lam=0.0, personal_epochs=3)):
        assert same(trained(ditto).server[METHOD], plain)


def test_ditto_with_lam_0_is_training_alone() -> None:
    """v_i begins as the model everybody begins with and feels no spring: plain SGD on the
    client's rows, in the order of its second model, written as a bare loop."""
    kept = own(trained(Ditto(lam=0.0)), "ditto")
    for cid in range(CLIENTS):
        alone = bare_model(net().tree())
        for t in range(1, ROUNDS + 1):
            bare_sgd(alone, cid, t, fit="second")
        assert same(kept[cid], alone.state_dict())


def test_ditto_with_lam_0_and_whole_batches_is_local() -> None:
    """With the whole training set as one batch only the order of the rows in a sum differs
    between the second model of Ditto and the first of Local: 1e-5 after six steps."""
    whole = replace(OPT, batch=64)
    ditto = own(trained(Ditto(lam=0.0), whole), "ditto")
    local = own(trained(Local(), whole), METHOD)
    assert all(far(ditto[cid], local[cid]) < 1e-5 for cid in range(CLIENTS))


def test_dittos_personal_model_ignores_the_global_sides_settings() -> None:
    """With lam = 0 for good; with lam = 1 in round 1, where every w is as received."""
    sides = [
        Ditto,
        lambda **k: Ditto(**k) + Proximal(mu=1.0),
        lambda **k: Ditto(server=ServerOpt(lr=0.5), **k),
    ]
    for lam, rounds in ((0.0, ROUNDS), (1.0, 1)):
        plain, prox, slow = (trained(side(lam=lam), rounds=rounds) for side in sides)
        for other in (prox, slow):
            assert not same(other.server[METHOD], plain.server[METHOD])
            for cid, v in own(plain, "ditto").items():
                assert same(own(other, "ditto")[cid], v)


# ------------------------------------------------------------------ SCAFFOLD


def test_scaffolds_server_variate_is_the_mean_of_the_clients() -> None:
    """c = 1/N sum_i c_i is the invariant of Algorithm 1 at any participation: line 17 adds
    |S|/N times the mean change over S, which is 1/N times the sum of changes."""
    sgd = Opt(lr=0.1, epochs=2, batch=8)
    played = trained(SCAFFOLD(), sgd, rounds=5, participation=0.5)
    c, mine = played.server["control_variates"], own(played, "control_variates")
    sizes = {len(federation().client(cid).train) for cid in mine}
    assert len(sizes) > 1, "equal clients would hide a weighted mean"
    mean = {k: sum(tree[k] for tree in mine.values()) / CLIENTS for k in c}
    assert far(c, mean) < 1e-6
    assert max(float(v.abs().max()) for v in c.values()) > 1e-2


def test_fedrep_with_control_variates_corrects_the_body_only() -> None:
    played = trained(FedRep() + ControlVariates(), rounds=2)
    body = {k for k in net().params if k.startswith("body.")}
    assert set(played.server["control_variates"]) == body
    assert all(set(tree) == body for tree in own(played, "control_variates").values())
    for answer in played.answers:
        assert set(answer.up.state.get("control_variates", body)) == body


# ------------------------------------------------------------------ sums


@pytest.mark.parametrize("base", [FedAvg(), FedPer()])
def test_the_order_of_plus_changes_no_bit(base: Method) -> None:
    """One term corrects the gradient, one adds to the loss, so no sum of floats is reordered."""
    a, b = (
        trained(base + first + second).digest
        for first, second in permutations((Proximal(mu=0.1), ModelContrast()))
    )
    assert a == b


def test_the_order_of_plus_changes_only_rounding() -> None:
    """Proximal and the variates both correct the gradient: (g + p) + c against (g + c) + p."""
    terms = (Proximal(mu=0.1), ControlVariates(), ModelContrast())
    runs = [trained(FedAvg() + a + b + c, rounds=2) for a, b, c in permutations(terms)]
    assert len(runs) == 6
    for other in runs[1:]:
        assert far(other.server[METHOD], runs[0].server[METHOD]) < 1e-5
        assert other.clients[0].keys() == runs[0].clients[0].keys()


class _Asks(Term):
    """A term with a special round of its own that uploads one number."""

    before: ClassVar[tuple[str, ...]] = ("ask",)
    after: ClassVar[tuple[str, ...]] = ("again",)

    def special(self, s):
        return {self.name: {"n": s.counts.sum().reshape(1)}}

    def aggregate(self, r):
        return {self.name: r.mean(self.name)} if r.plan.kind == "special" else {}


class First(_Asks):
    name: ClassVar[str] = "first"


class Second(_Asks):
    name: ClassVar[str] = "second"


def test_the_order_of_plus_is_the_order_of_special_rounds() -> None:
    one, two = FedAvg() + First() + Second(), FedAvg() + Second() + First()
    owners = [[p.owner for p in m.schedule(1)] for m in (one, two)]
    assert owners[0] == ["first.ask", "second.ask", "model", "first.again", "second.again"]
    assert owners[1] == ["second.ask", "first.ask", "model", "second.again", "first.again"]
    played = [trained(m, rounds=1) for m in (one, two)]
    assert played[0].digest == played[1].digest
    # Sample-weighted mean of the sizes 20, 16, 25, 12: sum n^2 / sum n = 1425 / 73.
    assert float(played[0].server["first"]["n"]) == pytest.approx(1425 / 73, rel=1e-6)
