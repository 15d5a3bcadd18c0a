"""Rules about differential privacy: that a run has it, and what it may tell in all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedloom.core.privacy import Privacy, parse_privacy
from fedloom.policy.facts import SiteFacts
from fedloom.policy.policy import Policy
from fedloom.policy.refusal import Refusal
from fedloom.policy.training import rows_trained
from fedloom.runs.config import RunConfig

if TYPE_CHECKING:
    from fedloom.core.method import Method


def noise(policy: Policy, run: RunConfig, method: Method, facts: SiteFacts) -> Iterator[Refusal]:
    """Of a whole run, if every round asks this site and none is asked again."""
    privacy = None if run.privacy is None else parse_privacy(run.privacy)
    found = "none" if privacy is None else privacy.name
    if policy.privacy not in ("none", found):
        yield Refusal(
            "privacy",
            f"privacy is {found}, and this site takes part only in runs with {policy.privacy}(...)",
        )
    if privacy is None:
        if policy.least_noise or policy.most_epsilon:
            yield Refusal(
                "least_noise" if policy.least_noise else "most_epsilon",
                "the run has no privacy, and this site bounds what a run may tell; set privacy",
            )
        return
    if privacy.noise < policy.least_noise:
        yield Refusal(
            "least_noise",
            f"noise = {privacy.noise:g} is less than the {policy.least_noise:g} this site wants",
        )
    if privacy.delta > policy.most_delta:
        yield Refusal(
            "most_delta",
            f"delta = {privacy.delta:g} is more than the {policy.most_delta:g} this site permits",
        )
    if policy.most_epsilon:
        rows = rows_trained(method, facts.rows, facts.val_rows)
        if (told := epsilon_of(privacy, method, run.rounds, rows)) > policy.most_epsilon:
            yield Refusal(
                "most_epsilon",
                f"the run would come to epsilon = {told:.4g}, more than the"
                f" {policy.most_epsilon:g} this site permits; raise noise, or take fewer rounds",
            )


def epsilon_of(privacy: Privacy, method: Method, rounds: int, rows: int) -> float:
    """Of a whole run towards the server, for a site with so many rows that is in every round. A
    budget does not count: it is the server that keeps to it."""
    plans = method.schedule(rounds)
    return privacy.epsilon_after(sum(privacy.mechanisms(method, plan, rows) for plan in plans))
