"""How a client's model gets ready for a test: fine-tuning, and how a newcomer joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.phase import Phase
from fedloom.core.site import Site
from fedloom.core.tree import State


def adapt(site: Site) -> None:
    """The program's fine-tuning, with plain gradient steps.

    A method tunes what it trains. Head epochs of a protocol tune what the client would be tested
    with, which for Ditto is its second model and for APFL a mixture.
    """
    _tune(site, site.program.adapt)


def join(site: Site) -> None:
    """What a client that never trained does before its test: the fine-tuning where there is any,
    otherwise the local training of a round."""
    program, method = site.program, site.method
    epochs = program.newcomer_epochs
    if epochs is not None:
        site.opt = site.opt.changed({"epochs": epochs, "steps": None})
    if program.adapt:
        _tune(site, lasting(program.adapt, epochs))
    elif type(method).local is Method.local:
        for phase in lasting(method.phases, epochs):
            site.fit(phase)
    else:
        method.local(site)


def adapted_model(site: Site) -> State:
    """The model to test after `adapt` or `join`."""
    state = site.method.personalize(site)
    return {**state, METHOD: site.w} if site.program.head_epochs else state


def _tune(site: Site, phases: Sequence[Phase]) -> None:
    if site.program.head_epochs:
        site.w = site.method.personalize(site)[METHOD]
    for phase in phases:
        site.fit(phase, plain=True)


def lasting(phases: Sequence[Phase], epochs: int | None) -> Sequence[Phase]:
    """The phases with so many epochs; None: as they are.

    Phases that follow the run's number of epochs are left as they are, for the caller sets that
    number. Where every phase has a number of its own, they share the epochs in their proportion.

    >>> rep = Phase("head", epochs=4), Phase("body", epochs=1)
    >>> [phase.epochs for phase in lasting(rep, 10)]
    [8, 2]
    """
    own = [phase.epochs or (phase.steps and 1) for phase in phases]
    if epochs is None or None in own:
        return phases
    total = sum(part or 0 for part in own)
    return [
        replace(phase, steps=None, epochs=max(1, round(epochs * (part or 0) / total)))
        for phase, part in zip(phases, own, strict=True)
    ]
