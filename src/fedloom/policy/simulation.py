"""A site's rules in a simulation: every client is judged by its own rows, before any round."""

from __future__ import annotations

from pathlib import Path

from fedloom.data import FederatedData
from fedloom.errors import BadInput
from fedloom.policy.facts import facts_of
from fedloom.policy.judgement import refusals
from fedloom.policy.limits import modules_of
from fedloom.policy.policy import Policy
from fedloom.policy.refusal import Refusal
from fedloom.runs.experiment import Experiment

NAMED = 5
"""How many clients a line names."""


def check_experiment(experiment: Experiment, file: str | Path) -> None:
    """Refuse an experiment that some client's site would refuse, where all have the policy of this
    file."""
    policy, data, program = Policy.read(file), experiment.data, experiment.program
    if not isinstance(data, FederatedData):
        raise BadInput("--policy judges clients by their rows, and this data stays at its sites")
    # A deployment's project holds the files that a run imports, as modules.
    modules = modules_of(experiment.config)
    run = experiment.config.changed(clients=program.clients, imports=modules)
    refused: dict[Refusal, list[str]] = {}
    for cid in range(program.clients):
        name = data.client_names[cid]
        for refusal in refusals(policy, run, facts_of(data, cid), program.method):
            refused.setdefault(refusal, []).append(name)
    if refused:
        lines = _lines(refused, program.clients)
        raise BadInput("\n".join([f"the policy of {file} refuses this run:", *lines]))


def _lines(refused: dict[Refusal, list[str]], clients: int) -> list[str]:
    """One for each sentence: who refuses, which rule, and what it would reveal."""
    by_sentence: dict[tuple[str, str], list[tuple[str, Refusal]]] = {}
    for refusal, names in refused.items():
        whose = by_sentence.setdefault((refusal.rule, refusal.sentence), [])
        whose += [(name, refusal) for name in names]
    lines = []
    for whose in by_sentence.values():
        numbers = [f"{name} ({r.detail})" if r.detail else name for name, r in whose[:NAMED]]
        more = f" and {len(whose) - NAMED} more" if len(whose) > NAMED else ""
        everybody = len(whose) == clients and not whose[0][1].detail
        who = "every client" if everybody else f"client {', '.join(numbers)}{more}"
        refusal = whose[0][1]
        revelation = f". {refusal.revelation}" if refusal.revelation else ""
        lines.append(f"- {who}: {refusal}{revelation}")
    return lines
