"""How large a run's networks are: found without the memory that they would take."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fedloom.policy.facts import SiteFacts
from fedloom.policy.networks import may_be_built, networks, own_network
from fedloom.policy.policy import Policy
from fedloom.policy.refusal import Refusal
from fedloom.runs.config import RunConfig

RULE = "most_parameters"


def size_refusals(policy: Policy, run: RunConfig, facts: SiteFacts) -> list[Refusal]:
    """Of a run's networks where they are fedloom's own. Code of the run's own is not imported for
    this; it is counted when it runs, by `counted`. Nor is what a network names outside of the app
    read, unless the site permits that."""
    import torch

    from fedloom.models import build_model
    from fedloom.models.size import TooLarge, counted

    if not facts.shape:
        return []
    shape, classes = facts.shape, facts.classes
    of_data: dict[str, Any] = {"vocabulary": facts.vocabulary, "fields": facts.fields}
    models = [model for model in networks(run) if may_be_built(policy, model)]
    known = [network for model in models if (network := own_network(model, facts))]
    try:
        with torch.device("meta"), counted(policy.most_parameters):
            for network in known:
                with suppress(Exception):  # one that cannot be built is refused where it is
                    build_model(network.expression, shape, classes, seed=0, **of_data)
    except TooLarge as e:
        return [Refusal(RULE, str(e))]
    return []
