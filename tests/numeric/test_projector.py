"""DualFed's network for every method: encoder, projector, head, statistics that stay."""

from __future__ import annotations

import pytest
import torch
from game import Game, cloud
from torch import nn

from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import initial_server
from fedloom.errors import BadInput
from fedloom.methods import parse_method, with_run_settings
from fedloom.methods.dualfed import DualFed
from fedloom.models import build_model
from fedloom.runs.config import RunConfig
from helpers import finite, same

CLOUDS = [cloud(0, 20, (0, 1, 2)), cloud(1, 17, (1, 2))]
SHAPE, CLASSES = tuple(CLOUDS[0].train.x(torch.tensor([0])).shape[1:]), 3
NETWORK = "mlp(hidden=[8], norm=batch, projector=6)"
OPT = {"lr": 0.05, "batch_size": 8, "momentum": 0.5}

STATISTICS = {
    f"{layer}.{leaf}"
    for layer in ("body.2", "projector.3", "projector.5")
    for leaf in ("running_mean", "running_var", "num_batches_tracked")
}
AFFINE = {
    f"{layer}.{leaf}"
    for layer in ("body.2", "projector.3", "projector.5")
    for leaf in ("weight", "bias")
}
ENCODER_AND_PROJECTOR = AFFINE | {
    f"{layer}.{leaf}"
    for layer in ("body.1", "projector.1", "projector.4")
    for leaf in ("weight", "bias")
}
HEAD = {"head.weight", "head.bias"}


def network(text=NETWORK):
    return build_model(text, SHAPE, CLASSES, seed=0)


def test_the_projector_of_section_5_3():
    """512 features: Linear 512-256, ReLU, BatchNorm, Linear 256-512, BatchNorm, then the head."""
    net = build_model("cnn4(projector=256)", (1, 28, 28), 10, seed=0)
    layers = list(net.get_submodule("projector"))[1:]  # flattening changes no vector
    kinds = [nn.Linear, nn.ReLU, nn.BatchNorm1d, nn.Linear, nn.BatchNorm1d]
    assert [type(layer) for layer in layers] == kinds
    assert (layers[0].in_features, layers[0].out_features) == (512, 256)
    assert (layers[3].in_features, layers[3].out_features) == (256, 512)
    assert net.path_to(net.logits) == ["body", "projector", "head"]
    assert net.feature == net.representation == "projector"


def test_body_and_head_begin_as_without_it():
    plain, projected = network("mlp"), network("mlp(projector=4)")
    assert same(plain.tree(), projected.tree("body.* head.*"))
    assert same(network("mlp(projector=0)").tree(), plain.tree())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mlp(projector=-1)", "no width"),
        ("mlp(projector=wide)", "projector = 'wide'"),
        ("mlp_fedcr(gaussian=4, projector=4)", "vectors"),
    ],
)
def test_a_projector_that_cannot_be(text, problem):
    with pytest.raises(BadInput, match=problem):
        network(text)


BASELINES = [
    ("local", set()),
    ("fedavg(shared='* !@stats')", ENCODER_AND_PROJECTOR | HEAD),
    ("fedavg(shared='* !@stats') + proximal(mu=0.01)", ENCODER_AND_PROJECTOR | HEAD),
    ("fedper(shared='* !head.* !@stats')", ENCODER_AND_PROJECTOR),
    ("fedrep(shared='* !head.* !@stats', adapt_epochs=0)", ENCODER_AND_PROJECTOR),
    ("lg_fedavg", HEAD),
    ("fedbn", ENCODER_AND_PROJECTOR - AFFINE | HEAD),
    ("fedproto", set()),
    ("spherefed(shared='* !@stats')", ENCODER_AND_PROJECTOR | {"head.weight"}),
    ("fedrod(shared='* !personal_head.* !@stats')", ENCODER_AND_PROJECTOR | HEAD),
    (
        "fedetf(shared='* !@stats', alternations=1)",
        ENCODER_AND_PROJECTOR
        | {"projection.1.weight", "projection.1.bias", "head.vertices", "head.beta"},
    ),
    ("apfl(shared='* !@stats')", ENCODER_AND_PROJECTOR | HEAD),
    (
        "dualfed",
        {k for k in ENCODER_AND_PROJECTOR if k.startswith("body")} | HEAD,
    ),
]


@pytest.mark.parametrize(("text", "shared"), BASELINES)
def test_what_each_method_of_the_tables_shares(text, shared):
    """The projector is part of the representation; no running statistic leaves a client."""
    method = with_run_settings(parse_method(text), RunConfig(**OPT).model_dump())
    assert Program(method, network(), clients=2).shared(0) == shared
    game = Game(method, network(), *CLOUDS).rounds(2)
    up = game.program.frozen.put_back(game.up[0].state)  # SphereFed's head travels down once
    assert set(up.get("model", {})) == shared
    assert finite(game.own[0])
    kept = {k: game.own[0]["model"][k] for k in STATISTICS}
    start = game.program.nets[0].tree()
    assert all(not torch.equal(kept[k], start[k]) for k in kept)
    assert any(not torch.equal(kept[k], game.own[1]["model"][k]) for k in kept)


@pytest.mark.parametrize("position", ["pre", "post"])
def test_dualfed_uses_the_networks_projector(position):
    """Begun at the same weights, two rounds on a network with a projector are the rounds on one to
    which DualFed adds its own."""
    method = DualFed(position=position, opt=Opt(lr=0.05, batch=8))
    added = Game(method, network("mlp(hidden=[8], norm=batch)"), *CLOUDS)
    own = Game(method, network("mlp(hidden=[8], norm=batch, projector=256)"), *CLOUDS)
    for net in own.program.nets:
        assert (net.feature, net.representation) == ("body", "body")
        assert net.reads["head"] == ("body" if position == "pre" else "projector")
        net.load_state_dict(added.program.nets[0].tree())
    own.server = initial_server(own.program)
    added.rounds(2)
    own.rounds(2)
    assert same(added.server["model"], own.server["model"])
    assert same(added.own[1]["model"], own.own[1]["model"])


def test_dualfeds_own_projector_and_the_networks():
    with pytest.raises(BadInput, match="this network has one"):
        Program(DualFed(depth=3), network(), clients=2)
