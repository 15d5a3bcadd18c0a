"""Rules about networks: which are permitted, and what the update of one carries of single rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from fedloom.errors import FedloomError
from fedloom.expression import Call, parse_one
from fedloom.extensions import Place
from fedloom.policy.facts import SiteFacts
from fedloom.policy.gated_units import sends_what_single_rows_make
from fedloom.policy.policy import Policy
from fedloom.policy.refusal import Refusal
from fedloom.runs.config import RunConfig

if TYPE_CHECKING:
    from fedloom.core.fields import Field
    from fedloom.core.method import Method

SHARE_NO_FIRST_LAYER = ("", "head.*")
"""What methods share that keep the layers which see the inputs."""
DENSE = ("mlp", "mlp_fedcr", "fusion")
"""Networks whose first layer has units that see a whole input."""
DENSE_BEHIND_CONVOLUTIONS = ("small_cnn", "cnn4", "cnn_fedpac", "cnn_fedcr", "har_cnn")
"""Networks whose units see all features that convolutions make of an input."""
SMALLEST_SERIES = 6
"""Positions of a signal below which a convolution of length 5 sees the whole of it."""
SMALLEST_IMAGE = 4
"""Pixels of a side below which a convolution of 3x3 sees the whole image."""


def networks(run: RunConfig) -> list[str]:
    """The expressions of a run's networks."""
    return [word.strip() for word in run.model.split("|")]


def permitted(policy: Policy, run: RunConfig) -> Iterator[Refusal]:
    """Networks that the policy does not list, and files of this machine that they would read."""
    from fedloom.models import outside_places

    for model in networks(run):
        if policy.models and _name(model) not in policy.models:
            yield Refusal(
                "models",
                f"the model {model!r} is not one of those this site permits:"
                f" {', '.join(policy.models)}",
            )
        for place in outside_places(model):
            yield Refusal(
                "local_files", f"the model {model!r} reads {place!r}, a place outside of the app"
            )


@dataclass(frozen=True)
class OwnNetwork:
    """A network that is one of fedloom's."""

    expression: str
    """With `auto` settled."""
    call: Call
    """Of its name as fedloom writes it."""


def own_network(model: str, facts: SiteFacts) -> OwnNetwork | None:
    """What an expression of a run stands for; None: code of the run's own."""
    from fedloom.models import models
    from fedloom.runs.experiment import default_model

    chosen = default_model(facts.kind, facts.shape or (1, 1)) if model == "auto" else model
    call = _call(chosen)
    if call is None or call.name not in models or not _is_ours(models[call.name]):
        return None
    name = models.canonical(call.name)  # look-ups ignore case and "_"
    return OwnNetwork(chosen, replace(call, name=name))


def may_be_built(policy: Policy, model: str) -> bool:
    """May a network be built to judge it? Not where that would read what it names outside of the
    app, unless the site permits it; then it is refused for that."""
    from fedloom.models import outside_places

    return policy.allows("local_files") or not outside_places(model)


def gives_rows_away(run: RunConfig, facts: SiteFacts) -> bool:
    """Would sites with such rows refuse the run's networks, as `dense_layers`?"""
    from fedloom.policy import ranges

    method = ranges.method_of(run) or ranges.plain_method(run)
    try:
        refused = {refusal.rule for refusal in carried(Policy.checked(), run, method, facts)}
    except FedloomError:  # such rows are none for the network
        return True
    return "dense_layers" in refused


def carried(policy: Policy, run: RunConfig, method: Method, facts: SiteFacts) -> Iterator[Refusal]:
    """What the update of a network carries."""
    shares_first_layer = method.shared not in SHARE_NO_FIRST_LAYER
    for model in networks(run):
        network = own_network(model, facts)
        if network is None:
            yield Refusal(
                "unknown",
                f"the model {model!r} is code of the run's own, so what its update carries is not"
                " known",
            )
            continue
        chosen, call = network.expression, network.call
        if shares_first_layer and _gates_whole_inputs(call, facts):
            yield Refusal(
                "dense_layers",
                f"the model {chosen!r} has units that see a whole row each; use"
                " 'mlp(norm=batch)', a linear 'mlp(hidden=[])', or a method that keeps them",
            )
        elif shares_first_layer and _gates_whole_features(call, chosen, facts):
            yield Refusal(
                "dense_layers",
                f"the model {chosen!r} has units that see as many features of a row as it has"
                " numbers, or more, and those features give the row; use 'small_cnn(norm=batch)' or"
                " 'resnet18'",
            )
        elif (
            facts.shape
            and may_be_built(policy, chosen)
            and sends_what_single_rows_make(chosen, method, facts, run.clients or 2)
        ):
            yield Refusal(
                "dense_layers",
                f"the model {chosen!r} with {method.name} trains units that see as many features of"
                " a row as it has numbers, or more; leave out projector or frozen, or use"
                " 'mlp(norm=batch)'",
            )
        elif _is_linear(call) and facts.smallest_class < policy.least_class_rows:
            yield Refusal(
                "rare_classes",
                f"what is trained of the model {chosen!r} may be linear, and a class present here"
                f" has fewer than {policy.least_class_rows} rows; use 'mlp(norm=batch)'",
                f"{facts.smallest_class} rows",
            )
    has_text = facts.kind == "text" or any(field.kind == "text" for field in facts.fields)
    if has_text and shares_first_layer:
        yield Refusal("words", "the embedding of the words would be sent; choose lg_fedavg")


def _is_ours(maker: Callable[..., Any]) -> bool:
    """Is a network one of fedloom's, and not one that an import registered?"""
    return maker.__module__.startswith("fedloom.models.")


def _gates_whole_inputs(call: Call, facts: SiteFacts) -> bool:
    """Has it units that may be silent for all rows but one? BatchNorm before the ReLU mixes the
    rows of a batch, and without hidden layers no unit is ever silent."""
    shape = facts.shape
    if call.name in ("mlp", "fusion"):
        norm = call.args[1] if len(call.args) > 1 else call.kwargs.get("norm")
        tiny = call.name == "fusion" and any(map(_seen_at_once, facts.fields))
        return tiny or (norm != "batch" and not _has_no_hidden_layer(call))
    tiny_image = len(shape) == 3 and max(shape[1:]) < SMALLEST_IMAGE
    return call.name in DENSE or tiny_image


def _seen_at_once(field: Field) -> bool:
    """Is an input so small that a convolution of `fusion`, 3x3 or of length 5, sees all of it?"""
    if field.kind == "image":
        return max(field.shape[1:]) < SMALLEST_IMAGE
    return field.kind == "signal" and (field.longest or field.shape[-1]) < SMALLEST_SERIES


def _gates_whole_features(call: Call, model: str, facts: SiteFacts) -> bool:
    """Has it such units behind convolutions, with no fewer inputs than a row has numbers? Then one
    row alone makes the features that such a unit sends, and is found by least squares."""
    import torch

    from fedloom.models import build_model

    norm = call.args[2] if len(call.args) > 2 else call.kwargs.get("norm")
    has_batch_norm = call.name == "small_cnn" and norm == "batch"
    if call.name not in DENSE_BEHIND_CONVOLUTIONS or has_batch_norm:
        return False
    with torch.device("meta"):  # shapes are enough
        tree = build_model(model, facts.shape, facts.classes, seed=0, fewest=1).tree()
    first_dense = next(weight for weight in tree.values() if weight.dim() == 2)
    return first_dense.shape[1] >= prod(facts.shape)


def _is_linear(call: Call) -> bool:
    """Is it a linear model, or one of which only a linear part may be trained? The features that
    frozen tensors make of a row are known to everybody."""
    return "frozen" in call.kwargs or _has_no_hidden_layer(call)


def _has_no_hidden_layer(call: Call) -> bool:
    hidden = call.args[0] if call.args else call.kwargs.get("hidden", True)
    return call.name == "mlp" and not hidden


def _call(model: str) -> Call | None:
    """The call of a network by name; None of one by its place, or given as an object."""
    try:
        return None if Place.of(model) is not None else parse_one(model)
    except FedloomError:
        return None


def _name(model: str) -> str:
    """The name of a network; of one by its place, all but its arguments."""
    place = Place.of(model)
    if place is not None:
        return f"{place.where}:{place.what.partition('(')[0]}"
    return model.partition("(")[0].strip()
