"""Run an experiment file and write what was measured beside it.

    python reproduce/run.py reproduce/smoke/dbe.toml

A file names the claim, what the paper reports, the methods, the seeds and the settings of
`fedloom.RunConfig`. The result `<file>.json` holds every number and the versions that gave it.
Finished runs are kept under `runs/reproduce`, so an interrupted experiment goes on where it was.
"""

import json
import sys
import tomllib
from pathlib import Path

import fedloom as fl
from fedloom.files import write_json
from fedloom.record import RoundRecord
from fedloom.runs.folder import current_versions
from fedloom.runs.journal import read_records


def main(path: Path) -> None:
    """Measure one experiment."""
    spec = tomllib.loads(path.read_text(encoding="utf-8"))
    settings = dict(spec["settings"])
    out = Path("runs/reproduce") / path.parent.name / path.stem
    found = fl.compare(
        spec["methods"],
        settings.pop("data"),
        seeds=spec["seeds"],
        model=settings.pop("model", "auto"),
        out=str(out),
        **settings,
    )
    rows = [{**row.as_json(), "curve": curve(row)} for row in found.rows]
    measured = {
        "claim": spec["claim"],
        "paper": spec["paper"],
        "command": f"python reproduce/run.py {path.as_posix()}",
        "holds": holds(rows, spec["better"], spec["worse"]),
        "methods": rows,
        "versions": current_versions(),
    }
    write_json(path.with_suffix(".json"), measured)
    print(json.dumps({r["method"]: r["accuracy"] for r in rows}), "holds:", measured["holds"])


def curve(row: fl.Comparison) -> list[list[float]]:
    """[round, accuracy] of the first seed."""
    records = read_records(Path(row.summaries[0].run) / "metrics.jsonl", RoundRecord)
    return [[r.round, round(r.headline.value, 4)] for r in records if r.headline is not None]


def holds(rows: list[dict], better: str, worse: str) -> bool:
    """Is the claim's sign there?"""
    accuracy = {r["method"]: r["accuracy"] for r in rows}
    return accuracy[better] > accuracy[worse]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(Path(argument))
