"""A site's rules applied to a run: every rule that refuses it.

Pure: settings and numbers in, sentences out. Nothing that a run names is imported, so a method that
is not registered here is one of which nobody knows what it sends. torch is imported when a method
is looked at, not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedloom.errors import FedloomError
from fedloom.policy.facts import SiteFacts
from fedloom.policy.limits import limits
from fedloom.policy.policy import Policy
from fedloom.policy.refusal import Refusal
from fedloom.runs.config import RunConfig

if TYPE_CHECKING:
    from fedloom.core.method import Method


def refusals(
    policy: Policy, run: RunConfig, facts: SiteFacts, method: Method | None = None
) -> list[Refusal]:
    """Every rule of a site that refuses a run with the rows that the site has; empty: permitted.

    `run.clients` must be known, for it says of how many sites a round is made. `method` stands in
    for the run's expression where the method with its settings is at hand.
    """
    try:
        listed = list(_all(policy, run, facts, method))
    except FedloomError as e:
        return [Refusal("settings", f"the settings will not do: {e}")]
    except Exception as e:  # whatever a stranger wrote there: what cannot be judged is refused
        return [Refusal("settings", f"the settings cannot be judged ({type(e).__name__})")]
    return list(dict.fromkeys(r for r in listed if not policy.allows(r.rule)))


def _all(
    policy: Policy, run: RunConfig, facts: SiteFacts, method: Method | None
) -> Iterator[Refusal]:
    from fedloom.policy import moves, networks, noise, ranges, rows
    from fedloom.policy.network_size import size_refusals

    yield from limits(policy, run)
    if too_large := size_refusals(policy, run, facts):
        yield from too_large
        return  # other rules would build the networks
    yield from networks.permitted(policy, run)
    yield from rows.data(policy, run, facts)
    yield from rows.task(policy, run, facts)
    yield from rows.metrics(run)
    yield from rows.participants(policy, run)
    method = method or ranges.method_of(run)
    if method is None:
        yield Refusal(
            "unknown", f"{run.method!r} is not registered at this site, so what it sends is unknown"
        )
    else:
        yield from ranges.permitted(policy, run, method)
        yield from rows.revealed(policy, method, facts)
        yield from ranges.usual(policy, method)
    # An unknown method is judged as averaging with the run's settings.
    judged = method or ranges.plain_method(run)
    yield from networks.carried(policy, run, judged, facts)
    yield from rows.training(policy, judged, facts)
    yield from moves.moves(policy, run, judged, facts)
    yield from noise.noise(policy, run, judged, facts)
