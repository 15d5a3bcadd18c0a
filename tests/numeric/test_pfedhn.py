"""pFedHN by hand, with a linear hyper-network (depth 0): theta_i = W v_i + b.

The clients' net has one weight theta with loss (theta - a)^2 / 2 and trains one step of rate 1/4:
theta' = theta + (a - theta)/4. The products J' d with d = theta - theta' are d v for W, d for b and
d W for v. Here W = (1, 2), b = 1, v_0 = (1, 1), v_1 = (2, 0), so theta = (4, 3); with a = (8, -1)
theta' = (5, 2) and d = (-1, 1). The server's rate is 1/2.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quadratic import Play, full, point, rows, value

from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, send
from fedloom.core.tree import nbytes
from fedloom.errors import BadInput
from fedloom.methods import parse_method, with_run_settings
from fedloom.methods.pfedhn import PFedHN
from fedloom.runs.config import RunConfig
from helpers import mlp, run, same, tables

SLOW = Opt(lr=0.1, batch=4)


def vectors(*values):
    return torch.tensor(values, dtype=torch.float64)


PLAIN = {"server_momentum": 0.0, "server_decay": 0.0}


def begun(*a: float, **how) -> Play:
    how = PLAIN | {"depth": 0, "embedding": 2, "server_lr": 0.5} | how
    method = PFedHN(opt=full(0.25), **how)
    play = Play(method, point(0.0), *(rows(v) for v in a or (8.0, -1.0)))
    phi = {"embedding": ([1.0, 1.0], [2.0, 0.0]), "0.weight": ([1.0, 2.0],), "0.bias": (1.0,)}
    assert play.server["pfedhn"].keys() >= phi.keys()
    play.server["pfedhn"] |= {k: vectors(*v) for k, v in phi.items()}
    return play


def held(play: Play) -> dict[str, list]:
    state = play.server["pfedhn"]
    return {k: state[k].tolist() for k in ("0.weight", "0.bias", "embedding")}


def test_a_client_gets_what_its_embedding_makes():
    play = begun().round()
    assert [value(play.down[i].state["model"]) for i in (0, 1)] == [4.0, 3.0]
    assert [value(play.up[i].state["model"]) for i in (0, 1)] == [5.0, 2.0]


def test_one_client_by_hand():
    """Client 0, d = -1: W - 1/2 (-1, -1) = (1.5, 2.5), b = 1.5, v_0 = (1, 1) - 1/2 (-1, -2) =
    (1.5, 2); v_1 stays. The other sign would give W = (0.5, 1.5)."""
    assert held(begun().round(0)) == {
        "0.weight": [[1.5, 2.5]],
        "0.bias": [1.5],
        "embedding": [[1.5, 2.0], [2.0, 0.0]],
    }


def test_two_clients_in_the_order_of_their_ids():
    """Then client 1 at the new W: h makes 1.5 * 2 + 1.5 = 4.5 for it now and it came to 2, so
    d = 2.5: W - 1/2 * 2.5 (2, 0) = (-1, 2.5), b = 1.5 - 1.25, v_1 = (2, 0) - 1.25 (1.5, 2.5).
    From the 3 that it was sent d would be 1, and steps of many clients would pile up."""
    assert held(begun().round()) == {
        "0.weight": [[-1.0, 2.5]],
        "0.bias": [0.25],
        "embedding": [[1.5, 2.0], [0.125, -3.125]],
    }


def test_together_is_one_step_by_the_mean():
    """W - 1/4 ((-1, -1) + (2, 0)) = (0.75, 2.25); b - 1/4 (-1 + 1) = 1; v_0 + 1/4 (1, 2),
    v_1 - 1/4 (1, 2)."""
    assert held(begun(together=True).round()) == {
        "0.weight": [[0.75, 2.25]],
        "0.bias": [1.0],
        "embedding": [[1.25, 1.5], [1.75, -0.5]],
    }


@pytest.mark.parametrize(("bound", "share"), [(0.0, 1.0), (50.0, 1.0), (2**0.5, 0.5)])
def test_the_common_norm_is_bounded(bound, share):
    """|g|^2 = 1 + 1 (W) + 1 (b) + 1 + 4 (v_0) = 8."""
    state = held(begun(server_clip=bound).round(0))
    assert state["0.weight"][0] == pytest.approx([1 + share / 2, 2 + share / 2], abs=1e-5)
    assert state["embedding"][0] == pytest.approx([1 + share / 2, 1 + share], abs=1e-5)


@pytest.mark.parametrize(
    ("text", "run", "bound"),
    [
        ("pfedhn", {}, 50.0),
        ("pfedhn", {"clip": 3.0}, 3.0),
        ("pfedhn(clip=7)", {"clip": 3.0}, 7.0),
        ("pfedhn(clip=0)", {}, 0.0),
    ],
)
def test_clients_gradients_are_bounded_as_published(text, run, bound):
    """By 50 unless the run or the expression says otherwise. Sent 4, a = 1004, lr 1/4: the gradient
    of -1000 moves the client by bound / 4, without a bound by 250."""
    method = with_run_settings(parse_method(text), RunConfig(**run).model_dump())
    assert method.opt.clip == bound
    play = begun(1004.0, 0.0)
    clipped = replace(play.program.method, opt=replace(full(0.25), clip=method.opt.clip))
    play.program = Program(clipped, point(0.0), 2, task=play.program.task)
    moved = value(play.round(0).up[0].state["model"]) - 4.0
    assert moved == pytest.approx((bound or 1000) / 4, rel=1e-6)


def test_momentum_and_decay():
    """Momentum 1/2: round 1 as above, and v_W = (-1, -1). Round 2, client 1, whose a = 4.5 is what
    it is sent (1.5 * 2 + 1.5), d = 0: W = (1.5, 2.5) - 1/2 * 1/2 (-1, -1).
    Decay 1/2: W - 1/2 ((-1, -1) + 1/2 (1, 2)) = (1.25, 2), and every row of v decays."""
    play = begun(8.0, 4.5, server_momentum=0.5).round(0).round(1)
    assert held(play)["0.weight"] == [[1.75, 2.75]]
    state = held(begun(server_decay=0.5).round(0))
    assert state["0.weight"] == [[1.25, 2.0]]
    assert state["embedding"] == [[1.25, 1.75], [1.5, 0.0]]


def test_the_published_servers_momentum_and_decay_are_the_defaults():
    """Without the momentum it hardly learns in few rounds."""
    assert (PFedHN().server_momentum, PFedHN().server_decay) == (0.9, 1e-3)
    assert (PFedHN().server_lr, PFedHN().shared) == (0.01, "* !@bn")


def test_clients_that_do_not_move_change_nothing():
    play = begun(4.0, 3.0)
    before = held(play)
    assert held(play.round()) == before


def test_newcomers_and_strangers_get_the_mean_embedding():
    """v = (1.5, 0.5): theta = 1.5 + 1 + 1."""
    play = begun()
    r = Round(play.program, play.program.schedule(1)[0], play.server)
    for cid in (2, 7, -1):
        assert value(send(r, cid).state["model"]) == 3.5


def test_only_the_clients_own_model_travels():
    play = begun(server_momentum=0.5).round()
    for state in (play.down[0].state, play.up[0].state):
        assert state.keys() == {"model"}
        assert nbytes(state) == 8
    assert "model" not in play.server
    assert not any(play.own[0].values())


def test_a_deep_one_is_regression_on_the_trained_weights():
    """J' (theta - theta') is the gradient of |h(v) - theta'|^2 / 2 with theta' held fixed, here by
    torch's own backward pass through the paper's three hidden layers."""
    program = Program(PFedHN(opt=SLOW, server_lr=64.0, **PLAIN), mlp(), 2)  # a step to be seen
    before = initial_server(program)["pfedhn"]
    played = run(program, tables(9, 6), rounds=1, participation=0.5)
    (answer,) = played.answers
    h = program.nets[0].tools["pfedhn"]
    h.load_state_dict({k: v for k, v in before.items() if k != "embedding"})
    v = before["embedding"].clone().requires_grad_()
    assert v.shape == (2, 1)
    assert [m.out_features for m in h if hasattr(m, "out_features")][:3] == [100, 100, 100]
    trained = answer.up.state["model"]
    target = torch.cat([trained[k].flatten() for k in program.nets[0].keys])
    (0.5 * (h(v[answer.cid]) - target).pow(2).sum()).backward()
    leaves = {"embedding": v, **dict(h.named_parameters())}
    assert played.server["pfedhn"].keys() == leaves.keys()
    for k, x in played.server["pfedhn"].items():
        step, g = (before[k] - x) / 64, leaves[k].grad
        assert g.norm() > 0
        assert (step - g).norm() < 1e-3 * g.norm(), k


def test_batch_norm_layers_stay_with_the_client():
    """Neither made nor sent, nor shared by accident through the template: every client goes on
    from its own. Scales made by h would begin near 0; these begin at 1 and stay near it."""
    program = Program(PFedHN(opt=SLOW), mlp(norm=True), 2)
    played = run(program, tables(9, 6), rounds=2)
    layer = program.nets[0].match("@bn")
    assert len(layer) == 5
    for answer in played.answers:
        assert not layer & answer.down.state["model"].keys()
        assert not layer & answer.up.state["model"].keys()
    for cid in (0, 1):  # two rounds of two batches each; the ninth row alone does not count
        assert played.clients[cid]["model"].keys() == layer
        assert played.clients[cid]["model"]["body.1.num_batches_tracked"] == 4
        assert (played.clients[cid]["model"]["body.1.weight"] - 1).abs().max() < 0.25
    assert not same(played.clients[0]["model"], played.clients[1]["model"])


def test_a_personal_head_is_not_made():
    """pFedHN-PC."""
    program = Program(PFedHN(shared="* !head.* !@bn", opt=SLOW), mlp(), 2)
    played = run(program, tables(9, 6), rounds=1)
    assert {k.split(".")[0] for k in played.answers[0].down.state["model"]} == {"body"}
    assert {k.split(".")[0] for k in played.clients[0]["model"]} == {"head"}


@pytest.mark.parametrize("term", ["dbe", "proximal", "model_contrast"])
def test_composes(term):
    """DBE's translation is personal and not made."""
    program = Program(replace(parse_method(f"pfedhn + {term}"), opt=SLOW), mlp(), 2)
    played = run(program, tables(9, 6), rounds=1)
    assert played.answers[-1].down.state["model"].keys() == mlp().tree().keys()
    assert ("prbm.vector" in played.clients[0].get("model", {})) == (term == "dbe")


@pytest.mark.parametrize("term", ["fedbr", "control_variates", "client_momentum"])
def test_refuses(term):
    """FedBR's projection is shared, and the hyper-network does not make it."""
    with pytest.raises(BadInput, match="cannot be combined"):
        Program(parse_method(f"pfedhn + {term}"), mlp(), 2)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"depth": -1}, {"width": 0}, {"embedding": 0}, {"server_clip": -1}),
        *({"server_momentum": 1.0}, {"server_momentum": -0.1}, {"server_decay": -1e-3}),
    ],
)
def test_ranges(wrong):
    with pytest.raises(BadInput):
        PFedHN(**wrong)


def test_something_must_be_made():
    with pytest.raises(BadInput, match="nothing to make"):
        Program(PFedHN(shared=""), mlp(), 2)
