"""A run begins with a file's weights or another run's model: by name, all of them, recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import fedloom as fl
from fedloom.core.net import Net
from fedloom.errors import BadInput
from fedloom.models import build_model
from fedloom.models.weights import fill
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from helpers import StopAt, outcome, same

CIFAR = (3, 32, 32)
SETTINGS: dict[str, Any] = {"partition": "iid", "clients": 3, "model": "mlp(hidden=[12])"}


def saved(path: Path, seed: int = 9) -> Path:
    """A file with the weights of another seed."""
    save_file(build_model("mlp(hidden=[12])", (1, 8, 8), 10, seed=seed).tree(), path)
    return path


def network(**settings: Any) -> Net:
    return Experiment.build(RunConfig(**{**SETTINGS, **settings})).program.nets[0]


# ------------------------------------------------------------------ which tensors


def torchvision_like(classes: int = 1000) -> dict[str, Tensor]:
    """A state dict with torchvision's names: no stage, and the head is called `fc`."""
    net = build_model("resnet18", CIFAR, classes, seed=99)
    return {k.replace("head.", "fc.").removeprefix("body."): v for k, v in net.tree().items()}


@pytest.mark.parametrize("options", ["", "stages=fine", "projector=256"])
def test_imagenet_weights_by_their_own_names(options: str) -> None:
    """DualFed's start: the encoder is the file's, head and projector stay as drawn."""
    state = torchvision_like()
    net = build_model(f"resnet18({options})", CIFAR, 10, seed=0)
    drawn = net.tree("head.* projector.*")
    fill(net, state, "fc.* head.* projector.*" if "projector" in options else "fc.* head.*", "it")
    encoder = net.tree("* !head.* !projector.*")
    assert {k.split(".", 1)[1] if k.split(".", 1)[1] in state else k for k in encoder} == {
        k for k in state if not k.startswith("fc.")
    }
    for key, value in encoder.items():
        assert torch.equal(value, state.get(key, state.get(key.split(".", 1)[1], value)))
    assert same(net.tree("head.* projector.*"), drawn)


def test_a_counter_of_batches_may_be_missing() -> None:
    """Older files have none."""
    net = build_model("mlp(norm=batch)", (4,), 3, seed=0)
    state = {k: v for k, v in net.tree().items() if "tracked" not in k}
    other = build_model("mlp(norm=batch)", (4,), 3, seed=1)
    assert not same(other.tree(), net.tree())
    fill(other, state, "", "it")
    assert same(other.tree(), net.tree())


@pytest.mark.parametrize(
    ("change", "without", "says"),
    [
        (lambda s: s.pop("bn1.weight"), "", "lacks 'body.bn1.weight' .1 of .*'body.\\*'"),
        (lambda s: s.update(extra=torch.zeros(1)), "", "holds 'extra', which has no place"),
        (lambda s: s.update(conv1=s["conv1.weight"]), "", "holds 'conv1'"),
        (
            lambda s: s.update({"conv1.weight": torch.zeros(64, 1, 7, 7)}),
            "",
            r"body.conv1.weight has shape \(64, 1, 7, 7\), this network needs \(64, 3, 7, 7\)",
        ),
        (lambda s: None, "haed.*", "'haed.*' matches no tensor"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: Callable[[dict[str, Tensor]], Any], without: str, says: str
) -> None:
    state = {k.replace("fc.", "head."): v for k, v in torchvision_like(10).items()}
    change(state)
    with pytest.raises(BadInput, match=says):
        fill(build_model("resnet18", CIFAR, 10, seed=0), state, without, "the file")


# ------------------------------------------------------------------ a run


def test_a_run_begins_with_the_file_and_records_it(tmp_path: Path) -> None:
    file = saved(tmp_path / "w.safetensors")
    theirs = build_model("mlp(hidden=[12])", (1, 8, 8), 10, seed=9)
    assert same(network(start=str(file)).tree(), theirs.tree())
    partly = network(start=str(file), start_without="head.*")
    assert same(partly.tree("body.*"), theirs.tree("body.*"))
    assert same(partly.tree("head.*"), network().tree("head.*"))
    fl.run("fedper", rounds=1, **SETTINGS, start=str(file), out=str(tmp_path / "run"))
    recorded = json.loads((tmp_path / "run/config.json").read_text())["start"]
    assert recorded == f"{file.resolve()}#sha256={sha256(file.read_bytes()).hexdigest()}"


def test_a_run_begins_with_another_runs_model(tmp_path: Path) -> None:
    """FedPer's run shares its body alone, so a start with it says that heads are drawn."""
    first = fl.run("fedavg", rounds=2, **SETTINGS, out=str(tmp_path / "a"))
    assert same(network(start=str(tmp_path / "a")).tree(), first.server["model"])
    fl.run("fedper", rounds=1, **SETTINGS, out=str(tmp_path / "b"))
    with pytest.raises(BadInput, match=r"lacks 'head\.weight'"):
        network(start=str(tmp_path / "b"))
    assert network(start=str(tmp_path / "b"), start_without="head.*")
    fl.run("local", rounds=1, **SETTINGS, out=str(tmp_path / "c"))
    with pytest.raises(BadInput, match="shares no tensor"):
        network(start=str(tmp_path / "c"))


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_it_is_resumed_with_the_same_start(engine: str, tmp_path: Path) -> None:
    """Half of the clients train in a round, so that some build their first state after the stop."""
    file = saved(tmp_path / "w.safetensors")
    settings = {**SETTINGS, "participation": 0.34, "start": str(file), "checkpoint_every": 1}
    straight = fl.run("fedper", rounds=4, **settings)
    assert outcome(straight) != outcome(fl.run("fedper", rounds=4, **SETTINGS, participation=0.34))
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedper", rounds=4, **settings, engine=engine, out=str(out), watchers=[StopAt(2)])
    assert outcome(fl.resume(out)) == outcome(straight)


def test_a_start_that_changed_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path / "w.safetensors")
    fl.run("fedavg", rounds=1, **SETTINGS, start=str(file), out=str(tmp_path / "run"))
    saved(file, seed=10)
    with pytest.raises(BadInput, match="is not what the run began with"):
        fl.resume(tmp_path / "run", rounds=2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"start": "gone.safetensors"}, "no file or run folder .*gone.safetensors"),
        ({"start": __file__}, "is not a safetensors file"),
        ({"start_without": "head.*"}, "set start too"),
    ],
)
def test_starts_that_are_none(settings: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Experiment.build(RunConfig.checked({**SETTINGS, **settings}))
