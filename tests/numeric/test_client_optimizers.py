"""The clients' optimisers against torch's own, and the state that a client may keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from quadratic import Play, full, point, product, rows, server_value, value

from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.optimizers import OPTIMIZER, make_optimizer
from fedloom.core.phase import Opt, Phase
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.site import Site
from fedloom.core.tree import State
from fedloom.errors import BadInput, LeakError, UnknownName
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedavg_ft import FedAvgFT
from fedloom.methods.fedrep import FedRep

SHAPES = [(7, 5), (7,), (3, 2, 3, 3)]
OURS_AND_TORCHS = [
    (Opt("sgd"), torch.optim.SGD, {}),
    (Opt("sgd", momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (Opt("adam"), torch.optim.Adam, {}),
    (
        Opt("adam", beta1=0.5, beta2=0.9, eps=1e-3),
        torch.optim.Adam,
        {"betas": (0.5, 0.9), "eps": 1e-3},
    ),
    (Opt("adamw"), torch.optim.AdamW, {}),
    (Opt("adagrad"), torch.optim.Adagrad, {}),
    (Opt("adagrad", eps=0.1), torch.optim.Adagrad, {"eps": 0.1}),
    (Opt("rmsprop"), torch.optim.RMSprop, {}),
    (Opt("rmsprop", beta2=0.9, momentum=0.5), torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.5}),
]


def moved(optimizer: Any, params: list[torch.Tensor], steps: int = 6) -> list[torch.Tensor]:
    """The tensors after a few steps with the same gradients for everyone."""
    gen = generator("gradients")
    for _ in range(steps):
        grads = [torch.randn(p.shape, generator=gen, dtype=p.dtype) for p in params]
        if isinstance(optimizer, torch.optim.Optimizer):
            for p, g in zip(params, grads, strict=True):
                p.grad = g
            optimizer.step()
        else:
            optimizer.step(grads)
    return params


def drawn(dtype: torch.dtype) -> list[torch.Tensor]:
    gen = generator("parameters")
    return [torch.randn(shape, generator=gen, dtype=dtype) for shape in SHAPES]


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize(("opt", "torchs", "constants"), OURS_AND_TORCHS)
def test_steps_are_those_of_torch(opt, torchs, constants, weight_decay):
    """Weight decay is part of the gradient, but for AdamW, whose default of it here is 0 and not
    torch's 0.01. Adam divides and takes the root in another order than torch: equal but for the
    last bits; the others are equal to the bit."""
    opt = replace(opt, lr=0.1, weight_decay=weight_decay)
    for dtype in (torch.float32, torch.float64):
        ours, theirs = drawn(dtype), drawn(dtype)
        moved(make_optimizer(ours, opt), ours)
        moved(torchs(theirs, lr=0.1, weight_decay=weight_decay, foreach=False, **constants), theirs)
        for a, b in zip(ours, theirs, strict=True):
            if "adam" not in opt.name:
                assert torch.equal(a, b)
            elif dtype == torch.float64:
                assert torch.allclose(a, b, rtol=0, atol=1e-13)
            else:
                assert torch.allclose(a, b, rtol=0, atol=2e-6)


def test_adam_by_hand():
    """Gradients 1, then -2, lr 1/4. Step 1: m/c = 1, v/c = 1: down by 1/4. Step 2: m = 0.09 - 0.2
    = -0.11, over 1 - 0.81: -0.578947; v = 0.000999 + 0.004 = 0.004999, over 0.001999: 2.500750,
    root 1.581376: up by 0.25 * 0.578947/1.581376 = 0.091526."""
    w = torch.tensor([0.0], dtype=torch.float64)
    adam = make_optimizer([w], Opt("adam", lr=0.25))
    for g in (1.0, -2.0):
        adam.step([torch.tensor([g], dtype=torch.float64)])
    assert w.item() == pytest.approx(-0.25 + 0.091526, abs=1e-6)


def test_decoupled_decay_leaves_out_what_is_not_decayed():
    """Gradient 0: AdamW only shrinks, by 1 - 1/2 * 1/4, and the second tensor not at all."""
    params = [torch.tensor([8.0]), torch.tensor([8.0])]
    opt = Opt("adamw", lr=0.5, weight_decay=0.25)
    make_optimizer(params, opt, decayed=1).step([torch.zeros(1), torch.zeros(1)])
    assert [p.item() for p in params] == [7.0, 8.0]


def test_names_and_constants_are_checked():
    with pytest.raises(UnknownName, match="unknown optimizer 'adm'; did you mean 'adam'"):
        Opt("adm")
    with pytest.raises(BadInput, match="optimizer adam does not read momentum; leave it out, or"):
        Opt("adam", momentum=0.9)
    with pytest.raises(BadInput, match="beta2 is 0 or more and below 1, not 1"):
        Opt("adam", beta2=1.0)
    for wrong in ({"eps": -1.0}, {"weight_decay": -0.1}, {"momentum": -0.5}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            Opt("rmsprop", **wrong)


def test_a_phase_may_have_an_optimiser_of_its_own():
    """What its optimiser does not read, of the run's or of the phase, does not reach it."""
    run = Opt("adam", lr=0.1, beta1=0.5)
    assert Phase(optimizer="sgd", momentum=0.9).over(run).opt == Opt(lr=0.1, momentum=0.9)
    assert Phase(momentum=0.9).over(run).opt == run
    assert Phase(keep_state=True).over(run).opt.keep_state


# ------------------------------------------------------------------ kept state


def server(rounds: int, method: Method, net: Any = None) -> float:
    play = Play(method, net or point(8.0), rows(0.0))
    for _ in range(rounds):
        play.round()
    return server_value(play)


def test_kept_momentum_crosses_rounds():
    """w = 8, lr = 1/4, momentum 1/2, one step a round: m = 8, w = 6; m = 4 + 6 = 10, w = 3.5, as
    two steps of one round. (Thrown away it is 8 -> 6 -> 4.5.)"""
    opt = full(momentum=0.5)
    assert server(2, FedAvg(opt=replace(opt, keep_state=True))) == 3.5
    assert server(2, FedAvg(opt=opt)) == 4.5
    assert server(1, FedAvg(opt=replace(opt, epochs=2))) == 3.5


@pytest.mark.parametrize("name", ["adam", "adamw", "adagrad", "rmsprop"])
def test_two_rounds_with_kept_state_are_one_round_of_two_steps(name):
    opt = full(name=name)
    kept = server(2, FedAvg(opt=replace(opt, keep_state=True)))
    assert kept == server(1, FedAvg(opt=replace(opt, epochs=2)))
    assert kept != server(2, FedAvg(opt=opt))


def test_the_slice_is_the_clients_and_by_phase():
    """FedRep trains the head, then the body: each phase keeps its own velocities."""
    opt = full(momentum=0.5, keep_state=True)
    method = FedRep(opt=opt, head_epochs=1, body_epochs=1)
    play = Play(method, product(1.0, 1.0), rows(3.0)).round()
    assert set(play.own[0][OPTIMIZER]) == {
        *("model/head/steps", "model/head/velocity/head.weight"),
        *("model/body/steps", "model/body/velocity/body.weight"),
    }
    assert OPTIMIZER not in play.up[0].state
    assert OPTIMIZER not in play.down[0].state
    assert OPTIMIZER not in play.server


def test_nothing_is_kept_unless_asked_for():
    play = Play(FedAvg(opt=full(momentum=0.5)), point(8.0), rows(0.0)).round()
    assert OPTIMIZER not in play.own[0]


def test_fine_tuning_begins_anew_and_keeps_nothing():
    """w = 3.5 after two rounds, m = 10; the tuned step is plain: 3.5 - 3.5/4 = 2.625."""
    opt = full(momentum=0.5, keep_state=True)
    play = Play(FedAvgFT(opt=opt, adapt_epochs=1), point(8.0), rows(0.0)).round().round()
    before = play.own[0][OPTIMIZER]
    play.adapt()
    assert value(play.own[0]["final/model"]) == 2.625
    assert play.own[0][OPTIMIZER].keys() == before.keys()
    assert all(torch.equal(play.own[0][OPTIMIZER][k], v) for k, v in before.items())


@dataclass(frozen=True, kw_only=True)
class Second(Method):
    """Trains a model of its own beside the shared one."""

    name: ClassVar[str] = "second"
    keeps: ClassVar[str] = "personal"
    keep_state: bool | None = None

    def client_init(self, s: Site) -> State:
        return {**super().client_init(s), self.name: s.start}

    def local(self, s: Site) -> None:
        phase = Phase("own", keep_state=self.keep_state)
        s.own[self.name] = s.fit(phase, w=s.own[self.name])
        s.fit(Phase())


@pytest.mark.parametrize(("keep", "v"), [(None, 4.5), (True, 3.5)])
def test_a_second_models_state_is_kept_only_where_its_phase_says_so(keep, v):
    """The shared model's velocity is kept in any case: 8 -> 6 -> 3.5."""
    method = Second(opt=full(momentum=0.5, keep_state=True), keep_state=keep)
    play = Play(method, point(8.0), rows(0.0)).round().round()
    assert server_value(play) == 3.5
    assert value(play.own[0]["second"]) == v
    seconds = [k for k in play.own[0][OPTIMIZER] if k.startswith("second/own/")]
    assert bool(seconds) == bool(keep)


@dataclass(frozen=True, kw_only=True)
class Gossip(Method):
    """Uploads its optimiser's state, under its own name or as it is."""

    name: ClassVar[str] = "gossip"
    as_it_is: bool = False

    def finish(self, s: Site) -> State:
        kept = s.own[OPTIMIZER]
        return {**super().finish(s), OPTIMIZER if self.as_it_is else self.name: kept}


@pytest.mark.parametrize(
    ("as_it_is", "message"), [(True, "client's optimiser is in the upload"), (False, "personal")]
)
def test_kept_state_cannot_be_uploaded(as_it_is, message):
    method = Gossip(opt=full(momentum=0.5, keep_state=True), as_it_is=as_it_is)
    with pytest.raises(LeakError, match=message):
        Play(method, point(8.0), rows(0.0)).round()


@pytest.mark.parametrize("taken", [METHOD, OPTIMIZER])
def test_no_part_can_have_the_name_of_a_slice(taken):
    part = type("Part", (Method,), {"name": taken})
    with pytest.raises(BadInput, match=f"no part can be called {taken!r}"):
        Program(part(), point(8.0), 1)
