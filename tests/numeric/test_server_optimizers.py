"""FedOpt's server (Reddi et al. 2021, Algorithm 2) against numbers by hand.

Clients do not train (lr = 0) in what is worked out from given means; x is one weight.
"""

from __future__ import annotations

import pytest
import torch
from quadratic import Play, full, point, rows, server_value

from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.optimizers import OPTIMIZER
from fedloom.core.program import Program
from fedloom.core.server_optimizers import ServerOpt, server_step
from fedloom.core.tree import Tree
from fedloom.errors import BadInput, UnknownName
from fedloom.methods import parse_method, register
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.local import Local
from helpers import mlp, run, same, tables


def path(opt: ServerOpt, x: float, *means: float) -> list[float]:
    """x after a step towards each mean in turn."""
    state: Tree = {}
    model = {"w": torch.tensor([x], dtype=torch.float64)}
    seen = []
    for mean in means:
        target = {"w": torch.tensor([mean], dtype=torch.float64)}
        model, state = server_step(opt, model, target, state, {"w"})
        seen.append(model["w"].item())
    return seen


def test_sgd_is_a_step_towards_the_mean():
    assert path(ServerOpt(), 8.0, 4.0, 1.0) == [4.0, 1.0]
    assert path(ServerOpt(lr=0.5), 8.0, 4.0, 0.0) == [6.0, 3.0]


def test_momentum():
    """beta1 = 1/2, lr = 1/2. Delta = -4: m = -4, x = 8 - 2 = 6; Delta = -6: m = -2 - 6 = -8,
    x = 6 - 4 = 2; the mean is x: m = -4, and x still goes on to 0."""
    assert path(ServerOpt("momentum", lr=0.5, beta1=0.5), 8.0, 4.0, 0.0, 2.0) == [6.0, 2.0, 0.0]


def test_adagrad():
    """tau = 4, lr = 2, no momentum. v = 16 + 9 = 25 for Delta = -3: x = 8 - 2 * 3/(5 + 4) = 7 1/3.
    Delta = -12: v = 25 + 144 = 169, x = 7 1/3 - 2 * 12/(13 + 4)."""
    x1 = 8 - 6 / 9
    steps = path(ServerOpt("adagrad", lr=2.0, tau=4.0), 8.0, 5.0, x1 - 12)
    assert steps == pytest.approx([x1, x1 - 24 / 17], abs=1e-12)


def test_adam_without_bias_correction():
    """beta1 = 1/2, beta2 = 3/4, tau = 2, lr = 1, v = 4 at first. Delta = 4: m = 2,
    v = 3 + 16/4 = 7, x = 2/(sqrt(7) + 2). Delta = -2: m = 1 - 1 = 0, x stays;
    v = 21/4 + 4/4 = 25/4. Delta = 3: m = 3/2, v = 75/16 + 9/4 = 111/16."""
    x1 = 2 / (7**0.5 + 2)
    opt = ServerOpt("adam", beta1=0.5, beta2=0.75, tau=2.0)
    steps = path(opt, 0.0, 4.0, x1 - 2, x1 + 3)
    assert steps == pytest.approx([x1, x1, x1 + 1.5 / ((111 / 16) ** 0.5 + 2)], abs=1e-12)


def test_yogi_moves_its_second_moment_by_the_sign():
    """beta1 = 0, beta2 = 3/4, tau = 2, lr = 1, v = 4 at first. Delta = 4 with 16 above v:
    v = 4 + 16/4 = 8, x = 4/(sqrt(8) + 2). Delta = 2 with 4 below v: v = 8 - 4/4 = 7,
    x goes on by 2/(sqrt(7) + 2). (Adam's v would be 7 and 6.25.)"""
    x1 = 4 / (8**0.5 + 2)
    steps = path(ServerOpt("yogi", beta1=0.0, beta2=0.75, tau=2.0), 0.0, 4.0, x1 + 2)
    assert steps == pytest.approx([x1, x1 + 2 / (7**0.5 + 2)], abs=1e-12)


def test_defaults_are_the_papers():
    assert [ServerOpt(name).fading for name in ("momentum", "adagrad", "adam", "yogi")] == [
        *(0.9, 0.0, 0.9, 0.9)
    ]
    assert (ServerOpt().lr, ServerOpt().beta2, ServerOpt().tau) == (1.0, 0.99, 1e-3)


def test_a_run_keeps_the_state_on_the_server():
    """One client, a = 0, lr = 1/4, one step: mean = 3/4 x. beta1 = 1/2: x = 8: m = -2, x = 6;
    Delta = -1.5: m = -2.5, x = 3.5, and Delta = -0.875: m = -2.125, x = 1.375: momentum on the
    server and, in this problem, at a client that keeps its state are the same."""
    method = FedAvg(opt=full(), server=ServerOpt("momentum", beta1=0.5))
    play = Play(method, point(8.0), rows(0.0))
    assert [server_value(play.round()) for _ in range(3)] == [6.0, 3.5, 1.375]
    assert set(play.server) == {METHOD, OPTIMIZER}
    assert play.server[OPTIMIZER]["m/head.weight"].item() == -2.125
    assert OPTIMIZER not in play.down[0].state


def test_statistics_become_their_mean():
    """BatchNorm's running variance must stay positive, its counter whole."""
    data = tables(7, 10, 5)
    plain, adaptive = (
        run(Program(FedAvg(server=server), mlp(norm=True), 3), data, rounds=1)
        for server in (ServerOpt(), ServerOpt("yogi", lr=0.1))
    )
    statistics = [k for k in plain.server[METHOD] if "running" in k or "num_batches" in k]
    assert len(statistics) == 3
    for k in statistics:
        assert torch.equal(plain.server[METHOD][k], adaptive.server[METHOD][k])
    assert not torch.equal(
        plain.server[METHOD]["head.weight"], adaptive.server[METHOD]["head.weight"]
    )
    assert not any(k.endswith(tuple(statistics)) for k in adaptive.server[OPTIMIZER])


def test_where_nothing_is_shared_there_is_nothing_to_do():
    program = Program(Local(server=ServerOpt("adam")), mlp(), 3)
    assert OPTIMIZER not in run(program, tables(7, 10, 5), rounds=1).server


REFUSING = {"apple", "fedfomo", "hypcluster", "ifca", "pfedhn"}


@pytest.mark.parametrize("name", list(register))
def test_every_method_takes_a_server_optimiser_or_refuses_it_by_name(name):
    """Those with an `aggregate` of their own that pass on the mean keep its state, too."""
    built = register[name]()
    if not isinstance(built, Method):
        return
    method = parse_method(f"{name}(server_optimizer=adam)")
    if name in REFUSING:
        with pytest.raises(BadInput, match=f"^{method.name} makes .* server_optimizer = adam$"):
            Program(method, mlp(norm=True), 3)
        return
    program = Program(method, mlp(norm=True), 3)
    played = run(program, tables(7, 10, 5), rounds=2)
    shared = program.shared(0) & program.nets[0].params
    state = played.server.get(OPTIMIZER, {})
    assert state.keys() == {f"{m}/{k}" for m in ("m", "v") for k in shared}
    plain = run(Program(built, mlp(norm=True), 3), tables(7, 10, 5), rounds=1)
    if shared & plain.server[METHOD].keys():
        first = run(program, tables(7, 10, 5), rounds=1)
        assert not same(first.server[METHOD], plain.server[METHOD])


def test_what_is_refused():
    with pytest.raises(UnknownName, match="unknown server optimizer 'yoga'; did you mean 'yogi'"):
        ServerOpt("yoga")
    for wrong in ({"lr": -1.0}, {"tau": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}):
        with pytest.raises(BadInput, match=f"server_{next(iter(wrong))}"):
            ServerOpt("adam", **wrong)
    with pytest.raises(BadInput, match="server_optimizer sgd does not read server_tau; leave it"):
        ServerOpt(tau=0.1)
