"""Is the advice right? `python benchmarks/advise.py [--draw 1] [CASE ...]` asks `fedloom advise`
about every partition of `advise_cases.py` and writes benchmarks/results/advise.json.

The rule by which advice is given was settled while draw 0 was looked at; draw 1 makes the same
cases of other random numbers, and nothing was changed after it. A case that was stopped goes on
from its folder under runs/; one that is in the results is asked again only if it is named.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import torch
from advise_cases import CASES, Case

import fedloom as fl
from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "advise.json"
RUNS = Path("runs") / "benchmark-advise"
SETTINGS: dict[str, Any] = {
    "rounds": 20,
    "batch_size": 20,
    "trials": 4,
    "seeds": 5,
    "model": "mlp(hidden=[32])",
    "workers": 1,
}


def ask(case: Case, draw: int) -> dict[str, Any]:
    """The advice for a case, and whether it is right."""
    folder = RUNS / f"{case.name}-{draw}"
    advice = fl.advise(case.data(draw), **{**SETTINGS, **case.settings}, out=str(folder))
    record = advice.as_json()
    return {
        "why": case.why,
        "right_kinds": sorted(case.kinds),
        "advised": advice.method,
        "kind": advice.kind,
        "right": advice.kind in case.kinds,
        "best_on_validation_rows": advice.evidence.best,
        "expression": advice.expression,
        "metric": advice.metric,
        "validation": {
            one.method: {"mean": round(one.mean, 4), "behind": round(one.behind, 4), "p": one.p}
            for one in advice.evidence.standings
        },
        "test": {one["method"]: one["mean"] for one in record["tested"]},
        "losers": [one["client"] for one in record["losers"]],
    }


def main() -> None:
    """Ask about what is left, or about the cases that are named."""
    torch.set_num_threads(1)
    arguments = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("cases", nargs="*", choices=[[], *CASES])
    arguments.add_argument("--draw", type=int, default=0)
    chosen = arguments.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"draws": {}}
    cases = results["draws"].setdefault(str(chosen.draw), {"cases": {}})["cases"]
    for name in chosen.cases or [name for name in CASES if name not in cases]:
        cases[name] = ask(CASES[name], chosen.draw)
        print(f"{name}: {cases[name]['advised']}, right: {cases[name]['right']}", flush=True)
        results["draws"][str(chosen.draw)] = {
            "right": sum(one["right"] for one in cases.values()),
            "asked": len(cases),
            "cases": {k: cases[k] for k in CASES if k in cases},
        }
        write_json(RESULTS, {**results, "settings": SETTINGS, "versions": current_versions()})


if __name__ == "__main__":
    main()
