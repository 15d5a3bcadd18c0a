"""What differential privacy costs the papers' methods, by noise.

    python benchmarks/privacy.py     what is not in results/privacy.json yet; minutes of one core

Digits over 40 clients by Dirichlet(0.3), a perceptron of 32 units, one seed; accuracy is the mean
over clients of their personal models, each as its client uses it (fedloom's protocol).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import fedloom as fl
from fedloom.core.accountant import epsilon, mechanisms_told
from fedloom.errors import BadInput
from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "privacy.json"
METHODS = {
    "FedAvg": "fedavg",
    "FedRep": "fedrep(head_epochs=2, body_epochs=1, adapt_epochs=0)",
    "DBE": "fedavg + dbe",
    "FedCR": "fedcr",
    "FedPAC": "fedpac",
    "DualFed": "dualfed(lr=0.05)",
    "local": "local",
}
SETTINGS: dict[str, Any] = {
    "clients": 40,
    "partition": "dirichlet(alpha=0.3)",
    "model": "mlp(hidden=[32])",
    "rounds": 10,
    "epochs": 2,
    "batch_size": 32,
    "lr": 0.2,
    "eval_every": 10,
}
PRIVACIES = (
    "none",
    "client(clip=0.5, noise=0.03)",
    "example(clip=1.0, noise=0.5)",
    "client(clip=0.5, noise=0.3)",
    "example(clip=1.0, noise=2.0)",
    "client(clip=0.5, noise=0.1)",
)
DELTA = 1e-5
DBE_NOISE = ((0.05, 0.2), (0.5, 0.2), (1.0, 0.2), (5.0, 0.2))
"""s and q of DBE's Table 3; the first is the paper's choice."""


def measured(method: str, privacy: str) -> dict[str, Any]:
    """Accuracy and epsilon, or the sentence that refuses or ends it."""
    try:
        result = fl.run(
            method,
            "digits",
            privacy=None if privacy == "none" else privacy,
            progress=False,
            **SETTINGS,
        )
    except BadInput as e:
        return {"refused": str(e)}
    except fl.FedloomError as e:  # weights that are no numbers any more
        return {"ended": str(e)}
    found: dict[str, Any] = {"accuracy": round(result.accuracy, 4)}
    if (spent := result.summary.privacy) is not None:
        found |= {"epsilon": spent.epsilon, "epsilon_of_mean": spent.epsilon_of_mean}
    return found


def main() -> None:
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    results["dbe_noise"] = [
        {"s": s, "q": q, "epsilon": epsilon(mechanisms_told(s * q), DELTA)} for s, q in DBE_NOISE
    ]
    write_json(RESULTS, results)
    for privacy in PRIVACIES:
        for title, method in METHODS.items():
            label = f"{title} | {privacy}"
            if label in results["runs"]:
                continue
            results["runs"][label] = measured(method, privacy)
            results |= {"settings": SETTINGS, "versions": current_versions()}
            write_json(RESULTS, results)
            print(label, results["runs"][label], flush=True)


if __name__ == "__main__":
    main()
