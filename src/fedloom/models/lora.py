"""LoRA: small trained layers beside the large ones of a network that stays as it is.

Own code and not `peft`: a hook and two small layers are less than what it would take to give peft's
wrapped modules back the names of their tensors, by which files of weights are read and `shared`
says what leaves a client.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fedloom.core.net import Net
from fedloom.errors import BadInput

LORA = "lora"
"""The adapter's name inside its layer: `body.conv1.lora.down.weight`."""


class Up(nn.Linear):
    """Back to the layer's width. It begins at zero, so that the network begins as it was."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class UpConv2d(nn.Conv2d):
    """The same behind a convolution."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class Adapter(nn.Module):
    """up(down(x)), of low rank."""

    def __init__(self, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.up = down, up

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))  # type: ignore[no-any-return]


def add_lora(net: Net, rank: int) -> Net:
    """Freeze all that comes before the head, and put an adapter beside each of its linear layers
    and two-dimensional convolutions (Hu et al. 2022), whose output is added to the layer's.

    A convolution's adapter is one of the same kernel to `rank` channels, then one of 1x1.
    Convolutions in groups, which have few weights already, get none. Statistics of BatchNorm go on
    moving, as they do whenever a stage is trained.

    >>> net = add_lora(Net((4,), body=nn.Linear(4, 3), head=nn.Linear(3, 2)), rank=1)
    >>> sorted(net.params)
    ['body.lora.down.weight', 'body.lora.up.weight', 'head.bias', 'head.weight']
    """
    if rank < 1:
        raise BadInput(f"{LORA}={rank} is no rank; use 1 or more, or leave it out")
    stages = net.path_to(net.feature)
    net.freeze(" ".join(f"{stage}.*" for stage in stages))
    adapted = 0
    for stage in stages:
        layers = [m for m in net.get_submodule(stage).modules() if _takes_adapter(m)]
        for layer in layers:
            setattr(layer, LORA, _adapter(layer, rank))
            layer.register_forward_hook(_add_adapter)
        net.take_in(stage)
        adapted += len(layers)
    if not adapted:
        raise BadInput(
            f"{LORA}={rank}: this network has no linear layer and no convolution before its head"
            " that could be adapted; leave it out"
        )
    return net


def _takes_adapter(module: nn.Module) -> bool:
    """Attention reads the weights of its last layer without running it, so that a hook there would
    never be called."""
    if isinstance(module, nn.Conv2d):
        return module.groups == 1
    return isinstance(module, nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)


def _adapter(layer: nn.Module, rank: int) -> Adapter:
    if isinstance(layer, nn.Conv2d):
        return Adapter(_narrow(layer, rank), UpConv2d(rank, layer.out_channels, 1, bias=False))
    assert isinstance(layer, nn.Linear)
    down = nn.Linear(layer.in_features, rank, bias=False)
    return Adapter(down, Up(rank, layer.out_features, bias=False))


def _narrow(layer: nn.Conv2d, channels: int) -> nn.Conv2d:
    """A convolution of the same kind, stride and padding to so many channels; a copy, because a
    class of its own may pad in its own way."""
    narrow = copy.deepcopy(layer)
    narrow.out_channels, narrow.bias = channels, None
    narrow.weight = nn.Parameter(torch.empty(channels, *layer.weight.shape[1:]))
    narrow.reset_parameters()
    return narrow


def _add_adapter(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    adapter: nn.Module = getattr(layer, LORA)
    return output + adapter(inputs[0])  # type: ignore[no-any-return]
