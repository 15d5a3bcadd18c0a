"""Networks by name: `cnn4`, `resnet18(norm=group)`, or any module of one's own through `split`.

A network is a function `name(shape, classes, **options) -> Net`, registered by being in a file of
this folder. Importing this package imports none of them; the first look-up of a name does.
"""

from __future__ import annotations

from copy import deepcopy

from torch import nn

from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.errors import BadInput
from fedloom.expression import parse_one
from fedloom.models.split import find_head, split
from fedloom.registry import Registry

__all__ = ["build_model", "models", "split"]

models = Registry("model", "fedloom.models")


def build_model(
    spec: str | Net | nn.Module,
    shape: tuple[int, ...],
    classes: int,
    *,
    seed: int,
    vocabulary: int = 0,
) -> Net:
    """The net for inputs of one shape, from an expression, a net or any module.

    The same seed gives the same initial weights and leaves torch's own stream as it was. A net is
    copied, so that one object can start many runs; a module is split before its last linear layer
    of `classes` outputs. `vocabulary` is the number of tokens where the data are text.

    >>> net = build_model("mlp(hidden=[16])", (1, 8, 8), 10, seed=0)
    >>> net.shape_of(net.feature), net.shape_of(net.logits)
    (torch.Size([16]), torch.Size([10]))
    """
    if classes < 2:
        raise BadInput(f"a classifier needs at least two classes, not {classes}")
    with rng_scope(seed, "model"):
        net = _build(spec, tuple(shape), classes, vocabulary)
    if net.shape != tuple(shape):
        raise BadInput(f"the net was made for inputs of shape {net.shape}, the data have {shape}")
    width = net.shape_of(net.logits)[-1]
    if width != classes:
        raise BadInput(f"the net has {width} outputs, the data have {classes} classes")
    return net


def _build(
    spec: str | Net | nn.Module, shape: tuple[int, ...], classes: int, vocabulary: int
) -> Net:
    if isinstance(spec, Net):
        return deepcopy(spec)
    if isinstance(spec, nn.Module):
        return split(spec, head=find_head(spec, classes), shape=shape)
    context = {"vocabulary": vocabulary} if vocabulary else {}
    net: Net = models.build(parse_one(spec), shape=shape, classes=classes, **context)
    return net
