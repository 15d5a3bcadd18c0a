"""Networks of one's own: an instance, a class, a function, each with the weights one expects."""

from __future__ import annotations

import logging
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.errors import BadInput
from fedloom.models import build_model
from fedloom.runs import experiment
from fedloom.runs.experiment import Experiment
from helpers import same

SMALL = {"rounds": 1, "clients": 3, "partition": "iid"}


class Mine(nn.Module):
    """Says itself how large it is."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x.flatten(1)))


class Fitted(nn.Module):
    """Wants to know what the data look like."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 3))
        self.last = nn.Linear(3, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.out(x))


def net(classes: int) -> fl.Net:
    """A function that knows one of the two, and returns a net that is cut already."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    return fl.Net((1, 8, 8), body=body, head=nn.Linear(4, classes))


def initial(model: object, seed: int) -> dict[str, Tensor]:
    config = fl.RunConfig(**SMALL, seed=seed)
    return Experiment.build(config, model=model).program.nets[0].tree()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "model", [Mine, Fitted, net, lambda: Mine(width=3), lambda shape: Fitted(shape, 10)]
)
def test_a_class_or_function_is_called_anew_for_every_seed(model: object) -> None:
    """So that a deviation over seeds has the first weights in it, as of fedloom's own networks;
    torch's own stream is neither read nor moved."""
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = initial(model, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    assert same(initial(model, seed=0), first)
    assert not same(initial(model, seed=1), first)


def test_an_instance_keeps_its_weights_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    experiment._log_once.cache_clear()
    mine = Mine()
    with caplog.at_level(logging.WARNING, "fedloom"):
        fl.compare(["fedavg", "local"], "digits", seeds=[0, 1], model=mine, **SMALL)
    (record,) = caplog.records
    assert "the model is one Mine with weights of its own, so every seed begins" in record.message
    assert same(initial(mine, seed=0), initial(mine, seed=1))
    caplog.clear()
    fl.run("fedavg", "digits", model=Mine, **SMALL)
    assert not caplog.records


def test_weights_loaded_into_a_net_are_where_a_run_begins() -> None:
    """They were ignored: the net began with those it was made with."""
    trained = net(10)
    other = net(10)
    other.load_state_dict(trained.state_dict())
    assert same(initial(other, seed=0), trained.tree())
    cut = fl.split(
        nn.Sequential(OrderedDict(body=Mine().body, head=nn.Linear(6, 10))), "head", shape=(64,)
    )
    cut.load_state_dict({k: v + 1 for k, v in cut.state_dict().items()})
    built = build_model(cut, (64,), 10, seed=3)
    assert same(built.tree(), cut.tree())


def test_several_networks_of_ones_own_are_dealt_in_turn() -> None:
    config = fl.RunConfig(**SMALL, method="local")
    nets = Experiment.build(config, model=[Mine, "mlp(hidden=[8])", Mine(width=3)]).program.nets
    widths = [int(n.shape_of(n.feature)[0]) for n in nets]
    assert widths == [6, 8, 3]


def wants_more(classes: int, depth: int) -> nn.Module:
    raise AssertionError


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (wants_more, r"wants_more needs 'depth', .* give a function, for instance lambda: wants_m"),
        (lambda: 3, r"a model must be a torch.nn.Module, or a class or function .*, not int"),
        (3, r"a model must be a torch.nn.Module, .*, not int"),
        ("own_things:Net", r"there is no module 'own_things' to import; a file is named with its"),
        ("no_such.py:Net", r"there is no file no_such.py to import"),
        ("torch.nn:Linnear", r"torch.nn has no 'Linnear'; did you mean 'Linear'\?"),
        ("torch.nn:Linear(4, b=2)", r"model 'Linear' has no argument 'b'"),
    ],
)
def test_what_is_no_model_is_named(model: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build_model(model, (1, 8, 8), 10, seed=0)  # type: ignore[arg-type]
