"""Further networks of the same build inside one net, as stages beside those of the first."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedloom.core.net import INPUT, Net


def add_fresh_copy(net: Net, tag: str) -> str:
    """Add another network of the same build, from the input to logits of its own, and return the
    name of its last stage.

    Its stages are named like the first one's, with the tag behind. Its weights are drawn anew from
    torch's default stream; frozen tensors keep their values, and so do the statistics of a frozen
    BatchNorm.

    >>> net = Net((4,), body=nn.Linear(4, 3), head=nn.Linear(3, 2))
    >>> add_fresh_copy(net, "_2"), net.reads["head_2"], "head_2.weight" in net.params
    ('head_2', 'body_2', True)
    """
    path = net.path_to(net.logits)
    copied = copy.deepcopy(net)  # a copy of a net is bound to the initial values
    stages = nn.ModuleDict({stage: copied.get_submodule(stage) for stage in path})
    _renew_parameters(stages, net)
    _draw_anew(stages)
    for stage in path:
        source = net.reads[stage]
        net.add(stage + tag, stages[stage], reads=source if source == INPUT else f"{source}{tag}")
    return path[-1] + tag


def _renew_parameters(stages: nn.ModuleDict, net: Net) -> None:
    """Give the stages parameters of their own. A net that has run holds plain tensors in the places
    of its parameters; a tensor tied to several places stays one parameter."""
    renewed: dict[int, nn.Parameter] = {}
    for prefix, module in stages.named_modules():
        for leaf, value in module._parameters.items():
            if value is not None:
                trained = f"{prefix}.{leaf}" in net.params
                fresh = nn.Parameter(value.detach().clone(), requires_grad=trained)
                module._parameters[leaf] = renewed.setdefault(id(value), fresh)


def _draw_anew(stages: nn.ModuleDict) -> None:
    """Reset every layer that is trained; frozen tensors keep their values."""
    frozen = {p: p.detach().clone() for p in stages.parameters() if not p.requires_grad}
    with torch.no_grad():
        for module in stages.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset) and _is_trained(module):
                reset()
        for parameter, value in frozen.items():
            parameter.copy_(value)


def _is_trained(module: nn.Module) -> bool:
    """Does it have a trained tensor, or no frozen one?"""
    flags = [p.requires_grad for p in module.parameters()]
    return any(flags) or not flags
