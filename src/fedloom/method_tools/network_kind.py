"""What kind of network this is, for defaults that a paper states by kind of network."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedloom.core.net import Net

NetworkKind = Literal["text", "batch_norm", "cnn", "other"]


def network_kind(net: Net) -> NetworkKind:
    """The kind by the layers that make the representation; layers behind it do not count.

    >>> network_kind(Net((4,), body=nn.Linear(4, 3), head=nn.Linear(3, 2)))
    'other'
    """
    all_text = bool(net.fields) and all(field.kind == "text" for field in net.fields)
    if net.input_dtype == torch.int64 or all_text:
        return "text"
    stages = [net.get_submodule(name) for name in net.path_to(net.representation)]
    layers = [layer for stage in stages for layer in stage.modules()]
    if any(isinstance(layer, _BatchNorm) for layer in layers):
        return "batch_norm"
    if any(isinstance(layer, nn.Conv1d | nn.Conv2d) for layer in layers):
        return "cnn"
    return "other"
