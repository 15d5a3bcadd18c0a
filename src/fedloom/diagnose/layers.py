"""The output of every layer of a net, from one forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedloom.core.net import INPUT, Net
from fedloom.core.rng import generator
from fedloom.core.tree import Tree
from fedloom.models.gaussian import Gaussian

WIDEST = 8192
"""Columns kept of a layer; of a wider one a fixed sample of its entries."""

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)


def inner_layers(stage: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Names of the layers inside a stage and the module whose output each one is.

    A layer begins with a module that has weights and takes in the activation, pooling and
    normalisation behind it. The last is left out: it is the stage.

    >>> trunk = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU())
    >>> inner_layers("body", trunk)
    [('body.0', ReLU())]
    """
    uses = Counter(id(m) for _, m in module.named_modules(remove_duplicate=False))
    return [(name, last) for name, last in _layers(stage, module)[:-1] if uses[id(last)] == 1]


def _layers(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    if not isinstance(module, nn.Sequential):
        return [(name, module)]
    layers: list[tuple[str, nn.Module]] = []
    for child, inside in module._modules.items():  # `named_children` leaves out repeated ones
        assert inside is not None
        if not isinstance(inside, NORMS) and next(inside.parameters(), None) is not None:
            layers += _layers(f"{name}.{child}", inside)
        elif layers:
            layers[-1] = (layers[-1][0], inside)
    return layers if len(layers) > 1 else [(name, module)]


@contextmanager
def _recorded(net: Net) -> Iterator[dict[str, Tensor]]:
    """Outputs of the layers inside stages, of the last forward pass."""
    recorded: dict[str, Tensor] = {}

    def record(name: str, _module: nn.Module, _inputs: Any, out: Any) -> None:
        if isinstance(out, Tensor):
            recorded[name] = out.clone()  # the next module may work in place

    hooks = [
        module.register_forward_hook(partial(record, name))
        for stage in net.reads
        for name, module in inner_layers(stage, net.get_submodule(stage))
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def outputs(net: Net, w: Tree, x: Tensor) -> dict[str, Tensor]:
    """Every layer's output [n, ...] in evaluation mode, in running order, without chance.

    A stochastic stage gives its mean and is no layer of its own, nor is a stage that samples.

    >>> net = Net((4,), body=nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), head=nn.Linear(2, 2))
    >>> {name: tuple(z.shape) for name, z in outputs(net, net.tree(), torch.zeros(5, 4)).items()}
    {'body.0': (5, 3), 'body': (5, 2), 'head': (5, 2)}
    """
    with _recorded(net) as inner:
        means = without_chance(net, w, x)
        out = net(w, x, given=means)
    layers: dict[str, Tensor] = {}
    for stage, z in out.items():
        if stage == INPUT or net.draws(stage):
            continue
        layers |= {k: v for k, v in inner.items() if k.startswith(f"{stage}.")}
        layers[stage] = _one_sample(net, stage, z, out)
    return layers


def without_chance(net: Net, w: Tree, x: Tensor) -> dict[str, Tensor]:
    """Outputs to hand to `net`, with which stages that sample a Gaussian give its mean."""
    fixed: dict[str, Tensor] = {}
    for stage, source in net.reads.items():
        if source is None or source == INPUT or not net.draws(stage):
            continue
        if isinstance(net.get_submodule(source), Gaussian):
            fixed = net(w, x, want=source, given=fixed)
            mean = fixed[source][:, 0]
            no_deviation = torch.stack([mean, torch.zeros_like(mean)], 1)
            fixed[stage] = net.stage(w, stage, no_deviation)
    return {k: v for k, v in fixed.items() if k != INPUT}


def _one_sample(net: Net, stage: str, z: Tensor, out: Mapping[str, Tensor]) -> Tensor:
    """[n, d] of a Gaussian [n, 2, d], or of samples [n, S, d] that are all the same."""
    if isinstance(net.get_submodule(stage), Gaussian):
        return z[:, 0]
    sampled = [s for s in net.path_to(stage)[:-1] if net.draws(s)]
    return z[:, 0] if sampled and out[sampled[-1]].ndim == 3 and z.ndim == 3 else z


def columns(z: Tensor, layer: str) -> Tensor:
    """Rows as float32 on the CPU, flattened, of at most `WIDEST` entries, the same for everybody.

    >>> columns(torch.zeros(2, 3, 4), "conv1").shape
    torch.Size([2, 12])
    """
    flat = z.detach().to("cpu", torch.float32).flatten(1)
    if flat.shape[1] <= WIDEST:
        return flat.contiguous()
    entries = torch.randperm(flat.shape[1], generator=generator("entries", layer))[:WIDEST]
    return flat[:, entries.sort().values]


def representations(net: Net) -> list[str]:
    """The stages that heads read, and the one they read before anything was inserted.

    >>> representations(Net((4,), body=nn.Linear(4, 3), head=nn.Linear(3, 2)))
    ['body']
    """
    read = {source for source in net.reads.values() if source is not None}
    stages = [net.representation]
    for head, source in net.reads.items():
        if source is None or source == INPUT or head in read:
            continue
        path = [stage for stage in net.path_to(source) if not net.draws(stage)]
        stages += path[-1:]
    return list(dict.fromkeys(stages))
