"""What hostile clients do to the papers' methods, and what the rules in place of the mean save.

    python benchmarks/hostile.py [METHOD ...]     what is not in results/hostile.json yet

Digits over 20 clients by Dirichlet(0.3), one seed; accuracy is the mean over the honest clients'
personal models, each as its client uses it (fedloom's protocol). All of it takes about 40 minutes
of one core. Methods may be measured by several processes; a number that one of them writes over is
measured by the next call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import fedloom as fl
from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "hostile.json"
METHODS = {
    "FedAvg": "fedavg",
    "FedRep": "fedrep",
    "DBE": "fedavg + dbe",
    "FedCR": "fedcr",
    "FedPAC": "fedpac",
    "DualFed": "dualfed",
}
RULES = ("mean", "median", "trimmed_mean", "krum", "norm_bound")
SHARES = (0.4, 0.1, 0.2, 0.3)
"""In the order in which they are measured."""
BEHAVIOURS = ("label_flip", "sign_flip", "scaled", "collude")
STRONG = {"sign_flip": "scale=4", "scaled": "factor=-10", "collude": "size=1"}
SETTINGS = {
    "clients": 20,
    "partition": "dirichlet(alpha=0.3)",
    "rounds": 8,
    "epochs": 1,
    "batch_size": 16,
    "optimizer": "adam",
    "lr": 0.005,
    "eval_every": 8,
}


def cases() -> Iterator[tuple[str, str | None, float, str]]:
    """Title, behaviour of the hostile clients, their share, and a rule."""
    for rule in RULES:
        yield "nobody", None, 0.0, rule
    for share in SHARES:
        for rule in RULES:
            for name in BEHAVIOURS:
                more = f", {STRONG[name]}" if name in STRONG else ""
                yield f"{name} {share:g}", f"{name}(share={share}{more})", share, rule


def rule_for(name: str, share: float) -> str:
    """Told the share that there is, as its papers assume; Krum bears less than half of 20."""
    if name == "trimmed_mean":
        return f"trimmed_mean(share={share})"
    if name == "krum":
        return f"krum(share={share}, keep=0)"
    return name


def recorded() -> dict[str, Any]:
    """What was measured so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}, "ended": {}}


def record(label: str, accuracy: float | None, reason: str) -> None:
    """Add one number, or why there is none."""
    measured = recorded()
    measured["runs"][label] = accuracy
    if reason:
        measured["ended"][label] = reason
    write_json(RESULTS, measured | {"settings": SETTINGS, "versions": current_versions()})
    print(label, accuracy, reason, flush=True)


def measure(title: str, hostile: str | None, rule: str) -> tuple[float | None, str]:
    """The accuracy of one run, or why it has none: weights that are no numbers any more end it."""
    try:
        result = fl.run(
            METHODS[title],
            "digits",
            hostile=hostile,
            aggregation=rule,
            progress=False,
            **SETTINGS,
        )
    except fl.FedloomError as e:
        return None, str(e)
    return round(result.accuracy, 4), ""


def main(titles: list[str]) -> None:
    """Measure what is missing, of these methods."""
    torch.set_num_threads(1)
    for case, hostile, share, rule in cases():
        for title in titles or METHODS:
            label = f"{title} | {case} | {rule}"
            if label not in recorded()["runs"]:
                record(label, *measure(title, hostile, rule_for(rule, share)))


if __name__ == "__main__":
    main(sys.argv[1:])
