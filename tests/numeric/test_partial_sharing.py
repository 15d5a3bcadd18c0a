"""FedPer, LG-FedAvg, FedRep, FedBABU, FedBN: exactly which tensors move, travel and stay.

The net's output is h b (body b, head h); with residual r = hb - a the gradients are db = h r and
dh = b r.
"""

from __future__ import annotations

import pytest
import torch
from quadratic import Play, Spy, full, kept, linear, product, rows, server_value, value
from torch import nn

from fedloom.core.data import ClientData
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import generator, rng_scope
from fedloom.errors import BadInput
from fedloom.methods.fedbabu import FedBABU
from fedloom.methods.fedbn import FedBN
from fedloom.methods.fedper import FedPer
from fedloom.methods.fedrep import FedRep
from fedloom.methods.lg_fedavg import LGFedAvg
from fedloom.models.resnet import BasicBlock
from helpers import Table, same

BODY, HEAD = "body.weight", "head.weight"


@pytest.fixture(autouse=True)
def _nothing_seen():
    Spy.seen.clear()


# ------------------------------------------------------------------ one part shared


@pytest.mark.parametrize(
    ("method", "shared", "own"), [(FedPer, BODY, HEAD), (LGFedAvg, HEAD, BODY)]
)
def test_one_part_is_averaged_and_the_other_stays(method, shared, own):
    """b = h = 1, a = (3, -1), n = (1, 3), lr = 1/4, one step: r = (-2, 2), so client 0 has
    b = h = 1.5 and client 1 has b = h = 0.5. The shared one becomes (1.5 + 3 * 0.5)/4 = 0.75, the
    personal ones stay 1.5 and 0.5.

    Round 2 at client 0, with s = 0.75 (shared) and p = 1.5 (its own): r = 1.125 - 3 = -1.875,
    s = 0.75 + 1.5 * 1.875/4 = 1.453125, p = 1.5 + 0.75 * 1.875/4 = 1.8515625. The net is symmetric
    in b and h, so the numbers serve FedPer and, with the names exchanged, LG-FedAvg.
    """
    play = Play(method(opt=full()), product(1.0, 1.0), rows(3.0, n=1), rows(-1.0, n=3)).round()
    assert play.server["model"].keys() == {shared}
    assert server_value(play, shared) == 0.75
    for cid, left in ((0, 1.5), (1, 0.5)):
        assert play.down[cid].state["model"].keys() == {shared}
        assert play.up[cid].state["model"].keys() == {shared}
        assert play.own[cid]["model"].keys() == {own}
        assert kept(play, cid, "model", own) == left
    play.round(0)
    assert server_value(play, shared) == 1.453125
    assert kept(play, 0, "model", own) == 1.8515625
    assert kept(play, 1, "model", own) == 0.5


def test_fedrep_by_hand():
    """b = h = 1, a = 3, lr = 1/4, two head epochs, one body epoch.

    Head, b = 1: h = 1 + 2/4 = 1.5, h = 1.5 + 1.5/4 = 1.875. Body, h = 1.875:
    db = 1.875 (1.875 - 3) = -2.109375, b = 1.52734375. Body first would give b = 1.5.
    """
    method = FedRep(opt=full(), head_epochs=2, body_epochs=1)
    play = Play(method, product(1.0, 1.0), rows(3.0)).round()
    assert kept(play, 0, "model", HEAD) == 1.875
    assert server_value(play, BODY) == 1.52734375
    assert play.up[0].state["model"].keys() == {BODY}


def test_fedrep_adapts_the_head_alone_on_the_received_body():
    """Go on from above: b = 1.52734375, h = 1.875; one step of the head:
    h' = h - b (hb - 3)/4; the body stays, and so does the head the client trains with."""
    method = FedRep(opt=full(), head_epochs=2, body_epochs=1, adapt_epochs=1)
    play = Play(method, product(1.0, 1.0), rows(3.0)).round().adapt()
    b, h = 1.52734375, 1.875
    assert kept(play, 0, "final/model", BODY) == b
    assert kept(play, 0, "final/model", HEAD) == h - b * (h * b - 3) / 4
    assert kept(play, 0, "model", HEAD) == h


def norm_net() -> Net:
    """A body with BatchNorm under a head."""
    with rng_scope("norm_net"):
        body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
        return Net((3,), body=body, head=nn.Linear(4, 2))


def table(key: int, n: int = 12) -> ClientData:
    x = torch.randn(n, 3, generator=generator("x", key)) + key
    y = torch.randint(2, (n,), generator=generator("y", key))
    return ClientData(Table(x, y), None, None, 2)


def classify(method, net: Net, clients: int = 1) -> Play:
    """The same play with cross-entropy on a small table."""
    play = Play(method, net, *map(table, range(clients)))
    play.program = Program(method, net, clients)
    return play


def test_fedrep_phases_freeze_each_other_bit_for_bit():
    """Two batches an epoch. While the head trains, the body's weights and BatchNorm statistics hold
    still to the last bit; while the body trains, the head does; epochs are 3 and 2."""
    method = FedRep(opt=Opt(lr=0.1, batch=6), head_epochs=3, body_epochs=2) + Spy()
    play = classify(method, norm_net()).round()
    head = [s for s in Spy.seen if s[0] == "head"]
    body = [s for s in Spy.seen if s[0] == "body"]
    assert [s[:2] for s in Spy.seen] == [("head", e) for e in (0, 0, 1, 1, 2, 2)] + [
        ("body", e) for e in (0, 0, 1, 1)
    ]
    assert {k for s in head for k in s[2]} == {"head.weight", "head.bias"}
    assert not any(k.startswith("head") for s in body for k in s[2])

    def part(tree, stage):
        return {k: v for k, v in tree.items() if k.startswith(stage)}

    start = play.program.nets[0].tree()
    assert all(same(part(s[3], "body"), part(start, "body")) for s in head)
    trained_head = part(body[0][3], "head")
    assert not same(trained_head, part(start, "head"))
    assert all(same(part(s[3], "head"), trained_head) for s in body)
    assert same(play.own[0]["model"], trained_head)
    # grads sees the body after the forward pass of the same batch, which moved its statistics.
    assert body[-1][3]["body.1.num_batches_tracked"].item() == 4
    assert not same(play.up[0].state["model"], part(start, "body"))


# ------------------------------------------------------------------ FedBABU


def test_fedbabu_by_hand():
    """b = 1, h = 2, a = (6, -2), lr = 1/8, one step, h frozen: db = 2 (2 - 6) = -8, b_0 = 2;
    db = 2 (2 + 2) = 8, b_1 = 0; mean 1 with n = (1, 1). Round 2 starts at b = 1 again, the same.
    The head is 2 everywhere, throughout.

    Adapted by one step of the whole model: r = 2 - 6 = -4, b = 1 + 2 * 4/8 = 2, h = 2 + 4/8 = 2.5.
    """
    method = FedBABU(opt=full(0.125), adapt_epochs=1)
    play = Play(method, product(1.0, 2.0), rows(6.0), rows(-2.0))
    for _ in range(2):
        play.round()
        assert [value(play.up[i].state["model"], BODY) for i in (0, 1)] == [2.0, 0.0]
        assert server_value(play, BODY) == 1.0
        assert play.up[0].state["model"].keys() == {BODY}
        assert [kept(play, i, "model", HEAD) for i in (0, 1)] == [2.0, 2.0]
    play.adapt()
    assert kept(play, 0, "final/model", BODY) == 2.0
    assert kept(play, 0, "final/model", HEAD) == 2.5


@pytest.mark.parametrize(("tune", "moving"), [("head.*", {HEAD}), ("* !head.*", {BODY})])
def test_fedbabu_tunes_what_it_says(tune, moving):
    """From b = 1, h = 2 both parts have a gradient; only the named one moves."""
    method = FedBABU(opt=full(0.125), adapt_epochs=1, tune=tune)
    play = Play(method, product(1.0, 2.0), rows(6.0), rows(-2.0)).round().adapt()
    start = {BODY: 1.0, HEAD: 2.0}
    assert {k for k in start if kept(play, 0, "final/model", k) != start[k]} == moving


def test_fedbabu_head_is_one_random_head_for_everybody():
    """On a random net with mini-batches: bit-identical to the initial head, for each client, also
    one that joins only in round 2."""
    play = classify(FedBABU(opt=Opt(lr=0.1, batch=6)), norm_net(), clients=2).round(0).round(0, 1)
    start = play.program.nets[0].tree("head.*")
    assert all(same(play.own[i]["model"], start) for i in (0, 1))
    assert same({k: play.site(1).w[k] for k in start}, start)


# ------------------------------------------------------------------ FedBN

NORMS = {
    f"body.0.{layer}.{leaf}"
    for layer in ("bn1", "bn2", "downsample.1")
    for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}
REST = {"body.0.conv1.weight", "body.0.conv2.weight", "body.0.downsample.0.weight"} | {
    "head.weight",
    "head.bias",
}


def residual() -> Net:
    """One of ResNet-18's blocks with a shortcut, `downsample.0` and `downsample.1`."""
    with rng_scope("residual"):
        block = BasicBlock(2, 4, 2, nn.BatchNorm2d)
        body = nn.Sequential(block, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return Net((2, 4, 4), body=body, head=nn.Linear(4, 2))


def pictures(key: int, n: int) -> ClientData:
    x = torch.randn(n, 2, 4, 4, generator=generator("p", key)) * (1 + key)
    return ClientData(Table(x, torch.arange(n) % 2), None, None, 2)


def test_fedbn_keeps_every_batchnorm_tensor_and_averages_the_rest():
    """Two clients with n = (4, 8): the mean of what travels is (w_0 + 2 w_1)/3. What stays is the
    fifteen tensors of bn1, bn2 and downsample.1, with weights and statistics of the client's own;
    in the next round a client's model is the mean with its own BatchNorm in it."""
    net = residual()
    assert set(net.keys) == NORMS | REST
    play = Play(FedBN(opt=Opt(lr=0.1, batch=4, epochs=2)), net, pictures(0, 4), pictures(1, 8))
    play.program = Program(play.program.method, net, 2)
    play.round()
    ups = [play.up[i].state["model"] for i in (0, 1)]
    assert ups[0].keys() == ups[1].keys() == play.server["model"].keys() == REST
    for k in REST:
        mean = (ups[0][k].double() + 2 * ups[1][k].double()) / 3
        assert torch.allclose(play.server["model"][k].double(), mean, rtol=0, atol=1e-7)
        assert not torch.equal(ups[0][k], ups[1][k])
    for i, batches in ((0, 2), (1, 4)):
        own = play.own[i]["model"]
        assert own.keys() == NORMS
        assert own["body.0.downsample.1.num_batches_tracked"].item() == batches
        assert same(play.site(i).w, {k: {**own, **play.server["model"]}[k] for k in play.site(i).w})
    moved = {k for k in NORMS if not torch.equal(play.own[0]["model"][k], net.initial[k])}
    assert moved == NORMS
    assert not torch.equal(*(play.own[i]["model"]["body.0.downsample.1.weight"] for i in (0, 1)))


def test_fedbn_without_batchnorm_is_refused():
    with pytest.raises(BadInput, match="fedbn on a model without BatchNorm is fedavg"):
        Program(FedBN(), Net((1,), body=linear([1.0]), head=linear([1.0])), 2)
