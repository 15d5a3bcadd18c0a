"""Measure what every method costs beside FedAvg; `fedloom list` shows the result.

    python benchmarks/costs.py                        # all, a few minutes on a quiet core
    python benchmarks/costs.py fedper scaffold        # these only; the others' entries stay
    python benchmarks/costs.py --data fashion_mnist --out costs-fashion.json

`time`: seconds of a training round (clients one after another, and the server), method and FedAvg
in turn, the median of each. `up`, `down`: bytes per client in the last training round. `once`: the
seconds of special rounds and of the final fine-tuning, in rounds of FedAvg. A term is measured as
FedAvg plus the term.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import fedloom as fl
from fedloom.files import write_json
from fedloom.methods import register
from fedloom.observed_traffic import runnable
from fedloom.record import RoundRecord
from fedloom.runs.folder import current_versions

OUT = Path(__file__).parents[1] / "src/fedloom/methods/costs.json"
ROUNDS, TURNS = 4, 3
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"partition": "dirichlet(alpha=0.3)"},
    "fashion_mnist": {
        "partition": "dirichlet(alpha=0.3) + scarce(size=200)",
        "model": "cnn4",
    },
}
MODELS = {"fedbn": {"digits": "mlp(norm=batch)", "fashion_mnist": "mlp(norm=batch)"}}
"""Methods that need another network; FedAvg has the same one beside them."""
COMMON = {"clients": 10, "rounds": ROUNDS, "eval_every": ROUNDS, "batch_size": 10, "lr": 0.05}


def main() -> None:
    """Measure the names asked for and write them to the file."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("names", nargs="*", help="registered names; by default all")
    asked.add_argument("--data", choices=SETTINGS, default="digits")
    asked.add_argument("--out", type=Path, default=OUT)
    given = asked.parse_args()
    settings = {**COMMON, **SETTINGS[given.data]}
    found = entries(given.out) if given.names else {}
    fl.run("fedavg", given.data, **settings)  # reads the data and warms up
    for name in map(register.canonical, given.names or register):
        began = time.perf_counter()
        found[name] = measured(name, given.data, settings)
        print(f"{name:20} {found[name]} {time.perf_counter() - began:.1f} s", flush=True)
    record = {
        "command": "python benchmarks/costs.py",
        "setting": {"data": given.data, **settings},
        "versions": current_versions(),
        "methods": dict(sorted(found.items())),
    }
    write_json(given.out, record)


def entries(path: Path) -> dict[str, dict[str, float]]:
    """What the file says so far."""
    if not path.exists():
        return {}
    found: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))["methods"]
    return found


def measured(name: str, data: str, settings: dict[str, Any]) -> dict[str, float]:
    """One method beside FedAvg, in turn."""
    if name in MODELS:
        settings = {**settings, "model": MODELS[name][data]}
    mine: list[RoundRecord] = []
    fedavg: list[RoundRecord] = []
    for _ in range(TURNS):
        fedavg += fl.run("fedavg", data, **settings).records
        mine += fl.run(runnable(name), data, **settings).records
    unit = round_seconds(fedavg)
    once = sum(seconds(r) for r in mine if r["kind"] != "train") / TURNS
    found = {"time": round_seconds(mine) / unit, "once": once / unit}
    found |= {way: sent(mine, way) / sent(fedavg, way) for way in ("up", "down")}
    return {key: round(value, 3) for key, value in found.items()}


def round_seconds(records: list[RoundRecord]) -> float:
    """The median training round; the first of a run is left out, it warms up."""
    return median(seconds(r) for r in records if r.kind == "train" and r.round > 1)


def seconds(record: RoundRecord) -> float:
    """Of clients and server, not of the evaluation."""
    return float(record.seconds - record.activities["main"].get("evaluation", 0.0))


def sent(records: list[RoundRecord], way: str) -> int:
    """Bytes of all clients in the last training round."""
    return int(getattr([r for r in records if r.kind == "train"][-1], f"bytes_{way}"))


if __name__ == "__main__":
    main()
