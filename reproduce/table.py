"""All methods of the papers under one budget, on two data sets, as a page of the documentation.

    FEDLOOM_DATA=... python reproduce/table.py          # digits and fashion_mnist, then the page
    python reproduce/table.py digits                    # measure one of them, then the page
    python reproduce/table.py --page                    # only write the page again

Rows are in `reproduce/methods/methods.toml`, budgets in `reproduce/methods/<data>.toml`, what was
measured in `<data>.json` beside it, and a paragraph on every method below Local or FedAvg in
`remarks.toml`. Finished runs are kept under `runs/reproduce/methods`, so an interrupted command
goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedloom as fl
from fedloom.errors import FedloomError, TrainingError
from fedloom.files import write_atomic, write_json
from fedloom.runs.folder import current_versions

HERE = Path(__file__).parent / "methods"
PAGE = Path(__file__).parents[1] / "docs/methods-table.md"
RUNS = Path("runs/reproduce/methods")
DATA = ("digits", "fashion_mnist")
RIVALS = ("Local", "FedAvg")
COMMAND = "python reproduce/table.py"

Row = dict[str, Any]
Results = dict[str, dict[str, Row]]
"""Data set -> name of a row -> what was measured."""


def main() -> None:
    """Measure what was asked for, then write the page."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("data", nargs="*", help=f"of {', '.join(DATA)}; by default both")
    asked.add_argument("--page", action="store_true", help="measure nothing, write the page")
    given = asked.parse_args()
    for data in [] if given.page else given.data or DATA:
        if data not in DATA:
            sys.exit(f"there is no experiment {data!r}; it is one of {', '.join(DATA)}")
        measure(data)
    results = {data: stored(data) for data in DATA}
    remarks = read(HERE / "remarks.toml")
    write_atomic(PAGE, page(results, remarks))
    if complaint := missing(results, remarks):
        sys.exit(complaint)


def read(path: Path) -> dict[str, Any]:
    """A TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def stored(data: str) -> dict[str, Row]:
    """What was measured on a data set; empty before that."""
    path = HERE / f"{data}.json"
    if not path.exists():
        return {}
    found: dict[str, Row] = json.loads(path.read_text(encoding="utf-8"))["methods"]
    return found


# ------------------------------------------------------------------ measuring


def measure(data: str) -> None:
    """Every row with every seed; the result is written beside the budget."""
    spec, rows = read(HERE / f"{data}.toml"), read(HERE / "methods.toml")
    differs = spec.get("differs", {})
    common = {name: text for name, text in rows.items() if name not in differs}
    found = compared(common, spec, {}, RUNS / data / "common")
    for name, other in differs.items():
        found |= compared({name: rows[name]}, spec, changes(other), RUNS / data / slug(name))
        found[name]["beside"] = other.get("beside", "")
    record = {
        "title": spec["title"],
        "command": f"{COMMAND} {data}",
        "versions": current_versions(),
        "methods": {name: found[name] for name in rows},
    }
    write_json(HERE / f"{data}.json", record)


def changes(other: dict[str, Any]) -> dict[str, Any]:
    """The settings a row changes."""
    return {k: v for k, v in other.items() if k not in ("reason", "beside")}


def compared(
    rows: dict[str, str], spec: dict[str, Any], other: dict[str, Any], out: Path
) -> dict[str, Row]:
    """Rows under the same settings. One that diverges is noted and does not stop the others."""
    settings = {**spec["settings"], **other, "out": str(out)}
    data, model = settings.pop("data"), settings.pop("model", "auto")
    expressions = list(rows.values())
    try:
        found = fl.compare(
            expressions, data, seeds=spec["seeds"], model=model, watch=Watch(), **settings
        )
    except TrainingError as e:
        if len(rows) == 1:
            return {name: {"failed": str(e)} for name in rows}
        return {
            k: v for row in rows.items() for k, v in compared(dict([row]), spec, other, out).items()
        }
    return dict(zip(rows, map(without_paths, found.rows), strict=True))


def without_paths(row: Any) -> Row:
    """One row over all seeds, and each seed's accuracy."""
    record: Row = {k: v for k, v in row.as_json().items() if k != "seeds"}
    return {**record, "accuracies": row.accuracies}


def slug(name: str) -> str:
    """A name as a folder."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


class Watch(fl.Watcher):
    """A line per run that is computed."""

    def __call__(self, label: str, over: int) -> list[Watch]:
        self.label, self.place = label, over + 1
        return [self]

    def begun(self, run: fl.RunView) -> None:
        self.start = time.perf_counter()

    def ended(self, run: fl.RunView, summary: fl.Summary) -> None:
        seconds = time.perf_counter() - self.start
        print(f"{self.place} {self.label}: {summary.accuracy:.4f}, {seconds:.1f} s", flush=True)


# ------------------------------------------------------------------ the page


def page(results: Results, remarks: dict[str, str]) -> str:
    """The table, what differs, and the paragraphs."""
    names = ranked(results)
    about = [f"- {spec['title']}." for spec in map(spec_of, DATA)]
    paragraphs = [f"**{name}.** {remarks[name].strip()}" for name in names if name in remarks]
    parts = [
        "# Every method under one budget",
        f"Written by `{COMMAND}` (with `FEDLOOM_DATA` naming the local data sets) from"
        " [reproduce/methods](../reproduce/methods); do not edit.",
        "\n".join(about),
        "Every row has the same data, rounds, batches, learning rate and, in a round, one local"
        " epoch, with the exceptions below, and the hyper-parameters that its paper or its"
        " authors' program states, untuned; three seeds. Accuracy is the mean over clients of the"
        " model each would use, on its own test rows, in the last round. **L**: below Local,"
        " **A**: below FedAvg (FedBN and its rivals: with BatchNorm), by the mean over seeds,"
        " however little. MB: sent by one client. Two numbers with a slash are digits /"
        " Fashion-MNIST.",
        UNEQUAL,
        "\n".join([*HEAD, *(line(name, results) for name in names)]),
        "\n".join(["Rows whose settings differ:", "", *differing()]),
        "## Below Local or FedAvg",
        *(paragraphs or ["Nothing is written yet."]),
    ]
    return "\n\n".join(parts) + "\n"


UNEQUAL = (
    "**One budget of rounds is not equal effort, and no method is tuned.** FedRep trains five"
    " epochs in a round and ten before the test, FedETF adds 121 epochs at the end, FedAvg-FT and"
    " FedSR-FT ten, FedBABU and FedEM-FT five. With as many local epochs the order changes:"
    " FedAvg-FT with 121 has 92.6 / 87.8 against FedETF's 91.8 / 88.0, and Local with five a round"
    " 90.7 on digits against FedRep's 89.2. FedSR, SphereFed, FedETF, FedCR and DualFed change the"
    " network, so that Local and FedAvg beside them are of another one. And the common rate suits"
    " some methods and not others: what a row has at its authors' rate stands in its paragraph"
    " where that is known. Those numbers were chosen by looking at test rows: they show that a low"
    " row is the setting's fault, and are no results. A fair table tunes every method with the"
    " same effort on validation rows."
)
HEAD = (
    "| method | digits % | worst tenth | Fashion-MNIST % | worst tenth | MB | seconds |",
    "|---|---|---|---|---|---|---|",
)


def spec_of(data: str) -> dict[str, Any]:
    """The budget on a data set."""
    return read(HERE / f"{data}.toml")


def ranked(results: Results) -> list[str]:
    """Names by accuracy, the best first; what failed or was not measured last."""
    names = dict.fromkeys(name for rows in results.values() for name in rows)

    def mean(name: str) -> float:
        values = [accuracy(rows, name) for rows in results.values()]
        return sum(v or 0.0 for v in values)

    return sorted(names, key=lambda name: -mean(name))


def accuracy(rows: dict[str, Row], name: str) -> float | None:
    """None: not measured, or it diverged."""
    return rows.get(name, {}).get("accuracy")


def below(rows: dict[str, Row], name: str) -> list[str]:
    """Which of Local and FedAvg, under the same settings, do better; both, where it diverged."""
    mine = rows.get(name, {})
    rivals = {rival: f"{rival} {mine.get('beside', '')}".strip() for rival in RIVALS}
    there = {k: other for k, other in rivals.items() if other in rows and other != name}
    if "failed" in mine:
        return list(there)
    reached = accuracy(rows, name)
    if reached is None:
        return []
    return [k for k, other in there.items() if reached < (accuracy(rows, other) or 0.0)]


def line(name: str, results: Results) -> str:
    """One row of the table."""
    cells = [name]
    for rows in results.values():
        cells += [score(rows, name), number(rows, name, lambda r: f"{100 * r['worst_decile']:.1f}")]
    for text in (lambda r: f"{r['megabytes_up_per_client']:.2f}", lambda r: f"{r['seconds']:.1f}"):
        cells.append(" / ".join(number(rows, name, text) for rows in results.values()))
    return f"| {' | '.join(cells)} |"


def number(rows: dict[str, Row], name: str, text: Callable[[Row], str]) -> str:
    """A cell, or a dash where there is nothing to say."""
    return "-" if accuracy(rows, name) is None else text(rows[name])


def score(rows: dict[str, Row], name: str) -> str:
    """Mean and deviation over seeds, with a mark for each rival that does better."""
    marks = "".join({"Local": " **L**", "FedAvg": " **A**"}[rival] for rival in below(rows, name))
    if "failed" in rows.get(name, {}):
        return f"diverged{marks}"
    told = number(
        rows,
        name,
        lambda r: f"{100 * r['accuracy']:.1f} ± {100 * r['accuracy_std_over_seeds']:.1f}",
    )
    return f"{told}{marks}"


def differing() -> list[str]:
    """What differs, where, and why; what is the same on both data sets once."""
    found: dict[str, list[str]] = {}
    for data in DATA:
        for name, other in spec_of(data).get("differs", {}).items():
            what = ", ".join(f"{k} = {v}" for k, v in changes(other).items())
            found.setdefault(f"{name}: {what}; {other['reason']}", []).append(data)
    return [f"- {text} ({', '.join(where)})." for text, where in found.items()]


def missing(results: Results, remarks: dict[str, str]) -> str:
    """One sentence on the methods that want a paragraph and have none; empty if all is said."""
    wanted = [n for n in ranked(results) if any(below(rows, n) for rows in results.values())]
    silent = [name for name in wanted if not str(remarks.get(name, "")).strip()]
    unknown = sorted(set(remarks) - set(read(HERE / "methods.toml")))
    if unknown:
        return f"reproduce/methods/remarks.toml has a remark on {unknown[0]!r}, which is no row"
    if not silent:
        return ""
    return (
        "below Local or FedAvg and without a paragraph in reproduce/methods/remarks.toml"
        f" ({len(silent)}): {', '.join(silent)}"
    )


if __name__ == "__main__":
    try:
        main()
    except FedloomError as e:
        sys.exit(f"table: {e}")
