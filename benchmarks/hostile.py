"""What hostile clients do to the papers' methods, and what the rules in place of the mean save.

    python benchmarks/hostile.py     what is not in results/hostile.json yet; about 40 minutes

Digits over 20 clients by Dirichlet(0.3), one seed; accuracy is the mean over the honest clients'
personal models, each as its client uses it (fedloom's protocol).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

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
SHARES = (0.2, 0.4)
BEHAVIOURS = ("label_flip", "sign_flip", "scaled", "collude")
STRONG = {"sign_flip": "scale=4", "scaled": "factor=-10", "collude": "size=1"}
SETTINGS = {
    "clients": 20,
    "partition": "dirichlet(alpha=0.3)",
    "rounds": 20,
    "epochs": 2,
    "eval_every": 20,
}


def cases() -> Iterator[tuple[str, str | None, float]]:
    """Title, behaviour of the hostile clients, and their share."""
    yield "nobody", None, 0.0
    for name in BEHAVIOURS:
        for share in SHARES:
            more = f", {STRONG[name]}" if name in STRONG else ""
            yield f"{name} {share:g}", f"{name}(share={share}{more})", share


def rule_for(name: str, share: float) -> str:
    """Told the share that there is, as its papers assume; Krum bears less than half of 20."""
    if name == "trimmed_mean":
        return f"trimmed_mean(share={share})"
    if name == "krum":
        return f"krum(share={share}, keep=0)"
    return name


def main() -> None:
    torch.set_num_threads(1)
    measured = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    for case, hostile, share in cases():
        for rule in RULES:
            for title, method in METHODS.items():
                label = f"{title} | {case} | {rule}"
                if label in measured["runs"]:
                    continue
                try:
                    result = fl.run(
                        method,
                        "digits",
                        hostile=hostile,
                        aggregation=rule_for(rule, share),
                        progress=False,
                        **SETTINGS,
                    )
                    accuracy = round(result.accuracy, 4)
                except fl.FedloomError as e:  # weights that are no numbers any more end a run
                    accuracy, reason = None, str(e)
                    measured.setdefault("ended", {})[label] = reason
                measured["runs"][label] = accuracy
                measured |= {"settings": SETTINGS, "versions": current_versions()}
                write_json(RESULTS, measured)
                print(label, measured["runs"][label], flush=True)


if __name__ == "__main__":
    main()
