"""A site's own rules: what it lets a federation do with its rows, and why a run is refused."""

from __future__ import annotations

from fedloom.policy.facts import SiteFacts, facts_of
from fedloom.policy.judgement import refusals
from fedloom.policy.limits import (
    app_refusals,
    byte_refusals,
    experiment_refusals,
    limits,
    module_refusals,
    modules_of,
    refused_now,
)
from fedloom.policy.policy import Policy
from fedloom.policy.refusal import Refusal

__all__ = [
    "Policy",
    "Refusal",
    "SiteFacts",
    "app_refusals",
    "byte_refusals",
    "experiment_refusals",
    "facts_of",
    "limits",
    "module_refusals",
    "modules_of",
    "refusals",
    "refused_now",
]
