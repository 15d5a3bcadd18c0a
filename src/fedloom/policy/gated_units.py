"""Units that fire for single rows: looked for in the network as a run would train it.

A unit that is silent for all rows of a batch but one sends, as the change of its weights divided by
that of its bias, what it sees of that row. If that is as much as the row has numbers, it gives the
row. It does not matter what a network is called, nor who put the layer there: the expression
(`projector`), or a part of the method.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from fedloom.policy.facts import SiteFacts

if TYPE_CHECKING:
    from torch import nn

    from fedloom.core.method import Method
    from fedloom.core.net import Net
    from fedloom.core.phase import Phase
    from fedloom.core.program import Program

SILENT = ("ReLU", "ReLU6", "LeakyReLU", "ELU", "GELU", "SiLU", "Mish", "Hardswish", "Hardtanh")
"""Activations that are next to nothing on one side."""


def sends_what_single_rows_make(model: str, method: Method, facts: SiteFacts, clients: int) -> bool:
    """Does a run send trained layers whose units see as many numbers as a row has (or one of its
    inputs), or more, and fire by what a single row makes of them? A network that cannot be built is
    refused elsewhere."""
    try:
        program = _program(model, method, facts, clients)
    except Exception:  # whatever a builder says to the shape of this site's rows
        return False
    net, sent = program.nets[0], program.shared(0)
    one_input = min((field.numbers for field in facts.fields), default=prod(facts.shape))
    return any(
        layer.in_features >= one_input
        for phase in method.phases
        for stage in net.reads
        for layer in _gated_layers(net, stage, phase, sent)
    )


def _program(model: str, method: Method, facts: SiteFacts, clients: int) -> Program:
    import torch

    from fedloom.core.program import Program
    from fedloom.models import build_model

    with torch.device("meta"):  # shapes are enough
        net = build_model(
            model,
            facts.shape,
            facts.classes,
            seed=0,
            vocabulary=facts.vocabulary,
            fewest=1,
            fields=facts.fields,
        )
        return Program(method, net, clients)


def _gated_layers(net: Net, stage: str, phase: Phase, sent: frozenset[str]) -> Iterator[nn.Linear]:
    """Linear layers of a stage that a phase trains, that are sent, and that are followed by such an
    activation. BatchNorm before one, or between the two, mixes the rows of a batch; but not in a
    stage that uses its running statistics, because the phase trains nothing of it."""
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm

    trained = net.match(phase.train) & net.params
    candidate: nn.Linear | None = None
    for name in net.path_to(stage):
        uses_batches = not phase.frozen_eval or any(k.startswith(f"{name}.") for k in trained)
        for path, module in net.get_submodule(name).named_modules(prefix=name):
            if isinstance(module, _BatchNorm) and uses_batches:
                return
            if isinstance(module, nn.Linear):
                key = f"{path}.weight"
                candidate = module if name == stage and key in trained & sent else None
            elif type(module).__name__ in SILENT and candidate is not None:
                yield candidate
                candidate = None
