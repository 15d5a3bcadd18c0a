"""Networks by name: `cnn4`, `resnet18(norm=group)`, `my_net.py:Net`, or any module of one's own.

A network is a function or class that is called with `shape` and `classes` where it takes them, and
gives a `Net` or any module, which is split before its last linear layer. One in a file of this
folder is registered by being there; importing this package imports none of them, the first look-up
of a name does.

Every expression takes `projector=WIDTH` beside the network's own arguments, as in
`resnet18(projector=256)`: a projector between body and head (`add_projector`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any

from torch import nn

from fedloom.argument_types import fitted
from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.errors import BadInput
from fedloom.expression import Call, parse_one
from fedloom.extensions import Place, attribute, is_file, load_extension
from fedloom.models.projector import PROJECTOR, add_projector
from fedloom.models.split import find_head, split
from fedloom.registry import Registry, build

__all__ = ["ModelSpec", "build_model", "models", "register_model", "split"]

models = Registry("model", "fedloom.models", "fedloom.models")
"""Networks by name."""
register_model = models
"""Decorator for a network of one's own: a function or class that gives a module, called with
`shape`, `classes` and `vocabulary` where it takes them."""

ModelSpec = str | nn.Module | Callable[..., nn.Module]
"""An expression, a network, or what makes one: a class, or a function."""
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def build_model(
    spec: ModelSpec,
    shape: tuple[int, ...],
    classes: int,
    *,
    seed: int,
    vocabulary: int = 0,
) -> Net:
    """The net for inputs of one shape.

    A class or function is called here, so its weights are drawn: the same seed gives the same
    weights and leaves torch's own stream as it was. A network is copied, with the weights it has
    now, so that one object can start many runs. A module that is no `Net` is split before its last
    linear layer of `classes` outputs. `vocabulary` is the number of tokens where the data are text.
    An expression may add `projector=WIDTH`.

    >>> net = build_model("mlp(hidden=[16])", (1, 8, 8), 10, seed=0)
    >>> net.shape_of(net.feature), net.shape_of(net.logits)
    (torch.Size([16]), torch.Size([10]))
    """
    if classes < 2:
        raise BadInput(f"a classifier needs at least two classes, not {classes}")
    shape = tuple(shape)
    context = {"vocabulary": vocabulary} if vocabulary else {}
    with rng_scope(seed, "model"):
        module, projector = _module(spec, shape=shape, classes=classes, **context)
        net = module if isinstance(module, Net) else _split(module, shape, classes)
        if projector:
            add_projector(net, projector)
    if net.shape != shape:
        raise BadInput(f"the net was made for inputs of shape {net.shape}, the data have {shape}")
    width = net.shape_of(net.logits)[-1]
    if width != classes:
        raise BadInput(f"the net has {width} outputs, the data have {classes} classes")
    return net


def _module(spec: ModelSpec, **context: Any) -> tuple[Any, int]:
    """What a specification gives, a module or whatever else somebody's function returns, and the
    width of the projector it shall have."""
    if isinstance(spec, nn.Module):
        return deepcopy(spec) if isinstance(spec, Net) else spec, 0  # `split` copies the others
    if not isinstance(spec, str):
        return _called(spec, **context), 0
    place = Place.of(spec)
    if place is None:
        call = parse_one(spec)
        maker = models[call.name]
    else:
        call = parse_one(place.what)
        module = load_extension(place.where)[0] if is_file(place.where) else place.where
        maker = attribute(module, call.name)
    call, projector = _without_projector(maker, call)
    return build("model", maker, call, **context), projector


def _without_projector(maker: Callable[..., Any], call: Call) -> tuple[Call, int]:
    """A call's own arguments, and the projector's width; one that the network itself has under that
    name keeps its meaning."""
    if PROJECTOR in signature(maker).parameters or PROJECTOR not in call.kwargs:
        return call, 0
    own = {k: v for k, v in call.kwargs.items() if k != PROJECTOR}
    try:
        width: int = fitted(call.kwargs[PROJECTOR], int)
    except BadInput as e:
        raise BadInput(
            f"model {call.name!r}: {PROJECTOR} = {call.kwargs[PROJECTOR]!r} {e}"
        ) from None
    return replace(call, kwargs=own), width


def _called(maker: Any, **context: Any) -> Any:
    """What a class or function gives that is called with those of the context that it takes."""
    if not callable(maker):
        return maker
    name = getattr(maker, "__name__", type(maker).__name__)
    for parameter in signature(maker).parameters.values():
        required = parameter.default is parameter.empty and parameter.kind in _BY_NAME
        if required and parameter.name not in context:
            raise BadInput(
                f"{name} needs {parameter.name!r}, but a model is called with shape and classes"
                f" at most; give a function, for instance lambda: {name}({parameter.name}=...)"
            )
    return build("model", maker, Call(name), **context)


def _split(module: Any, shape: tuple[int, ...], classes: int) -> Net:
    if not isinstance(module, nn.Module):
        raise BadInput(
            f"a model must be a torch.nn.Module, or a class or function that gives one, not"
            f" {type(module).__name__}"
        )
    return split(module, head=find_head(module, classes), shape=shape)
