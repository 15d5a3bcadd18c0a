"""Further networks of the same build inside one net, as stages beside the first one's."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedloom.core.net import INPUT, Net


def add_twin(net: Net, tag: str) -> str:
    """Another network from the input to logits of its own, drawn anew from torch's stream; returns
    the name of its last stage. Its stages are called as the first one's, with the tag behind.
    Frozen tensors keep their values, and so do the statistics of a frozen BatchNorm.

    >>> net = Net((4,), body=nn.Linear(4, 3), head=nn.Linear(3, 2))
    >>> add_twin(net, "_2"), net.reads["head_2"], "head_2.weight" in net.params
    ('head_2', 'body_2', True)
    """
    path, alike = net.path_to(net.logits), copy.deepcopy(net)  # which holds the initial values
    twin = nn.ModuleDict({stage: alike.get_submodule(stage) for stage in path})
    made: dict[int, nn.Parameter] = {}  # a tied tensor stays one tensor
    for prefix, module in twin.named_modules():
        for leaf, value in module._parameters.items():
            if value is not None:  # a net that has run holds plain tensors in their places
                trained = f"{prefix}.{leaf}" in net.params
                fresh = nn.Parameter(value.detach().clone(), requires_grad=trained)
                module._parameters[leaf] = made.setdefault(id(value), fresh)
    kept = [(p, p.detach().clone()) for p in made.values() if not p.requires_grad]
    with torch.no_grad():
        for module in twin.modules():
            if callable(reset := getattr(module, "reset_parameters", None)) and _trained(module):
                reset()
        for tensor, value in kept:
            tensor.copy_(value)
    for stage in path:
        source = net.reads[stage]
        net.add(stage + tag, twin[stage], reads=source if source == INPUT else f"{source}{tag}")
    return path[-1] + tag


def _trained(module: nn.Module) -> bool:
    """Has it a tensor that is trained, or none that is frozen?"""
    flags = [p.requires_grad for p in module.parameters()]
    return any(flags) or not flags
