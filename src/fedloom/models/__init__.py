"""Networks by name: `cnn4`, `resnet18(norm=group)`, `my_net.py:Net`, or any module of one's own.

A network is a function or class that is called with `shape` and `classes` where it takes them, and
gives a `Net` or any module, which is split before its last linear layer. One in a file of this
folder is registered by being there; importing this package imports none of them, the first look-up
of a name does.

Every expression takes these beside the network's own arguments, in this order of building:

- `lora=RANK`: all before the head stays as it is, with trained adapters beside it (`add_lora`);
- `projector=WIDTH`: a projector between body and head (`add_projector`);
- `frozen='PATTERN'`: tensors that no method trains, as in `resnet18(frozen='body.*')`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any

from torch import nn

from fedloom.argument_types import fitted
from fedloom.core.fields import Fields, not_numbers
from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.errors import BadInput, FedloomError
from fedloom.expression import Call, parse_one
from fedloom.extensions import Place, attribute, is_file, load_extension
from fedloom.models.lora import LORA, add_lora
from fedloom.models.projector import PROJECTOR, add_projector
from fedloom.models.split import find_head, split
from fedloom.registry import Registry, build, squash

__all__ = ["ModelSpec", "build_model", "models", "register_model", "split"]

models = Registry("model", "fedloom.models", "fedloom.models")
"""Networks by name."""
register_model = models
"""Decorator for a network of one's own: a function or class that gives a module, called with
`shape`, `classes`, `vocabulary` and `fields` where it takes them."""

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
    fewest: int = 2,
    fields: Fields = (),
) -> Net:
    """The net for inputs of one shape.

    A class or function is called here, so its weights are drawn: the same seed gives the same
    weights and leaves torch's own stream as it was. A network is copied, with the weights it has
    now, so that one object can start many runs. A module that is no `Net` is split before its last
    linear layer of `classes` outputs. `vocabulary` is the number of tokens where the data are text.
    An expression may add `lora`, `projector` and `frozen`. `fewest` outputs are what the task can
    do with: a classifier has two classes or more, a regression one number. `fields` say how a row
    divides into several inputs, with which a module is called.

    >>> net = build_model("mlp(hidden=[16])", (1, 8, 8), 10, seed=0)
    >>> net.shape_of(net.feature), net.shape_of(net.logits)
    (torch.Size([16]), torch.Size([10]))
    """
    if classes < fewest:
        raise BadInput(f"a classifier needs at least two classes, not {classes}")
    shape = tuple(shape)
    context: dict[str, Any] = {"vocabulary": vocabulary} if vocabulary else {}
    if fields:
        context["fields"] = fields
    with rng_scope(seed, "model"):
        module, changes = _module(spec, shape=shape, classes=classes, **context)
        net = module if isinstance(module, Net) else _split(module, shape, classes, fields)
        for name, change in _CHANGES.items():
            if changes.get(name):
                change(net, changes[name])
    if net.shape != shape:
        raise BadInput(f"the net was made for inputs of shape {net.shape}, the data have {shape}")
    if net.fields != fields and (net.fields or not_numbers(fields)):
        raise BadInput(_other_inputs(net, fields))
    width = net.shape_of(net.logits)[-1]
    if width != classes:
        raise BadInput(f"the net has {width} outputs, the data have {classes} classes")
    return net


def _module(spec: ModelSpec, **context: Any) -> tuple[Any, dict[str, Any]]:
    """What a specification gives, a module or whatever else somebody's function returns, and the
    changes that it shall have, by name."""
    if isinstance(spec, nn.Module):
        return deepcopy(spec) if isinstance(spec, Net) else spec, {}  # `split` copies the others
    if not isinstance(spec, str):
        return _called(spec, **context), {}
    place = Place.of(spec)
    if place is None:
        call = parse_one(spec)
        maker = models[call.name]
    else:
        call = parse_one(place.what)
        module = load_extension(place.where)[0] if is_file(place.where) else place.where
        maker = attribute(module, call.name)
    call, changes = _without_changes(maker, call)
    return build("model", maker, call, **context), changes


def outside_places(expression: str) -> list[str]:
    """Folders, files and addresses that a network reads when it is built, by its arguments.

    >>> outside_places("transformers_encoder(name='./my_encoder')"), outside_places("mlp")
    (['./my_encoder'], [])
    """
    place = Place.of(expression)
    try:
        call = parse_one(expression if place is None else place.what)
    except FedloomError:
        return []
    values = [*call.args, *call.kwargs.values()]
    places = [v for v in values if isinstance(v, str) and set(v) & set("/\\:")]
    if squash(call.name) == "timmencoder" and any(v is True for v in values):
        places.append("https://huggingface.co")  # for the weights of an encoder that timm has
    return places


def _freeze(net: Net, pattern: str) -> Net:
    for word in pattern.split():
        if not word.startswith(("!", "@")) and not net.match(word):
            raise BadInput(
                f"{FROZEN}: {word!r} matches no tensor; the stages are {', '.join(net.reads)}"
            )
    net.freeze(pattern)
    if not net.params:
        raise BadInput(f"{FROZEN}={pattern!r} leaves nothing of the network to train; leave some")
    return net


FROZEN = "frozen"
_CHANGES: dict[str, Callable[[Net, Any], Net]] = {
    LORA: add_lora,
    PROJECTOR: add_projector,
    FROZEN: _freeze,
}
"""Arguments of every expression -> what they do to the network, in this order."""
_TYPES: dict[str, type] = {LORA: int, PROJECTOR: int, FROZEN: str}


def _without_changes(maker: Callable[..., Any], call: Call) -> tuple[Call, dict[str, Any]]:
    """A call's own arguments, and those of `_CHANGES`; one that the network itself has under that
    name keeps its meaning."""
    own_names = signature(maker).parameters
    names = [name for name in _CHANGES if name in call.kwargs and name not in own_names]
    values: dict[str, Any] = {}
    for name in names:
        try:
            values[name] = fitted(call.kwargs[name], _TYPES[name])
        except BadInput as e:
            raise BadInput(f"model {call.name!r}: {name} = {call.kwargs[name]!r} {e}") from None
    own = {k: v for k, v in call.kwargs.items() if k not in names}
    return (replace(call, kwargs=own) if names else call), values


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


def _other_inputs(net: Net, fields: Fields) -> str:
    if not net.fields:
        return (
            f"the network reads a row as plain numbers, and the data has {not_numbers(fields)}; use"
            " 'fusion', or a module whose forward takes the inputs"
        )
    made_for, has = ("; ".join(map(str, each)) or "one input" for each in (net.fields, fields))
    return f"the network was made for the inputs ({made_for}), the data has ({has})"


def _split(module: Any, shape: tuple[int, ...], classes: int, fields: Fields) -> Net:
    if not isinstance(module, nn.Module):
        raise BadInput(
            f"a model must be a torch.nn.Module, or a class or function that gives one, not"
            f" {type(module).__name__}"
        )
    return split(module, head=find_head(module, classes), shape=shape, fields=fields)
