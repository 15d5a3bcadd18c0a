"""All methods with the same tuning effort, on four data sets, as a page of the documentation.

    FEDLOOM_DATA=... python reproduce/table.py              # everything: a night on two cores
    python reproduce/table.py digits har                    # two of the data sets
    python reproduce/table.py digits --methods fedpac,fedrep --seeds 0,1
    python reproduce/table.py --page                        # measure nothing, write the pages

Every method gets `trials` points of its hyper-parameters by successive halving on validation rows
(`fedloom tune`), then one run with the best of them for every seed. Rows, trials and seeds are in
`reproduce/methods/methods.toml`, data sets in `<data>.toml`, what was measured in `<data>.json`
beside it, written after every method. Trials and runs are kept under `runs/reproduce/methods`:
after a stop, the same command goes on and repeats nothing that had ended. Where a file's settings
were changed, the trials so far are put aside and tuning begins anew. Commands for different data
sets can run side by side.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import table_html
import table_page
from table_results import DATA, HERE, DataSet, Measured, Row, Rows, SeedRun, stored

import fedloom as fl
from fedloom.core.protocol import PROTOCOLS
from fedloom.errors import BadInput, FedloomError, TrainingError, suggestion
from fedloom.files import file_name, jsonable, write_atomic, write_json
from fedloom.registry import squash
from fedloom.reproduce.measure import Choice
from fedloom.runs.folder import current_versions
from fedloom.tuning.result import Tuned
from fedloom.tuning.store import OtherTuning

RUNS = Path("runs/reproduce/methods")
PAGE = Path(__file__).parents[1] / "docs/methods-table.md"
HTML = "table.html"
COMMAND = "python reproduce/table.py"
PAPERS = tuple(name for name in PROTOCOLS if name != "cohort")
"""Protocols under which every run is judged; all clients take part, so that `cohort` is `trained`
of `fedpac` and says nothing new."""


def main() -> None:
    """Measure what was asked for, then write the pages."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("data", nargs="*", help=f"of {', '.join(DATA)}; by default all")
    options.add_argument("--methods", help="rows, with commas; by default all")
    options.add_argument("--seeds", help="with commas; by default all")
    options.add_argument("--page", action="store_true", help="measure nothing, write the pages")
    chosen = options.parse_args()
    problems: list[str] = []
    if not chosen.page:
        rows = Rows.read(HERE)
        names = picked(chosen.methods, rows)
        seeds = Choice.written(None, None, chosen.seeds, None).seeds or rows.seeds
        # All are looked up before the first is measured, which may take hours.
        for data in [data_set(name) for name in chosen.data or DATA]:
            problems += measure(data, rows, names, seeds)
    write_pages()
    if problems:
        sys.exit("\n".join(problems))


def data_set(name: str) -> DataSet:
    """By its name."""
    if name not in DATA:
        raise BadInput(f"there is no data set {name!r} in this table{suggestion(name, DATA)}")
    return DataSet.read(name, HERE)


def picked(text: str | None, rows: Rows) -> list[str]:
    """Names of rows, from names as a reader may type them: `fedpac`, `Fed-RoD`."""
    if text is None:
        return list(rows.methods)
    by_word = {squash(name): name for name in rows.methods}
    for word in text.split(","):
        if squash(word.strip()) not in by_word:
            raise BadInput(f"there is no row {word!r}{suggestion(squash(word), by_word)}")
    return [by_word[squash(word.strip())] for word in text.split(",")]


def page_text() -> str:
    """docs/methods-table.md as it should be now."""
    lessons = HERE / "lessons.md"
    text = lessons.read_text(encoding="utf-8") if lessons.exists() else ""
    return table_page.page(Rows.read(HERE), *everything(), text)


def everything() -> tuple[list[DataSet], dict[str, dict[str, Measured]]]:
    """All data sets, and what was measured on them."""
    return [DataSet.read(name, HERE) for name in DATA], {name: stored(name, HERE) for name in DATA}


def write_pages() -> None:
    """docs/methods-table.md, and the same with charts beside the runs."""
    RUNS.mkdir(parents=True, exist_ok=True)
    charts = table_html.page(Rows.read(HERE), *everything())
    for path, text in ((PAGE, page_text()), (RUNS / HTML, charts)):
        as_before = path.exists() and path.read_text(encoding="utf-8") == text
        if not as_before:
            write_atomic(path, text)
        print(f"{path} is as it was" if as_before else f"wrote {path}")


# ------------------------------------------------------------------ measuring


def measure(data: DataSet, rows: Rows, names: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """Tune and run these rows; a row that fails does not stop the others, and is told at the
    end."""
    problems = []
    for name in names:
        begun = time.perf_counter()
        try:
            measured = measured_row(data, rows.methods[name], rows.trials, seeds)
        except FedloomError as e:
            problems.append(f"{data.name}, {name}: {e}")
            print(problems[-1], flush=True)
            continue
        store(data, rows, name, measured)
        seconds = time.perf_counter() - begun
        print(f"{data.name}, {name}: {in_words(measured)}, {seconds:.0f} s", flush=True)
    return problems


def in_words(measured: Measured) -> str:
    """A row's result for whoever watches."""
    if not measured.seeds:
        return "broke down"
    return f"{100 * measured.mean('accuracy'):.2f} % with {measured.chosen}"


def store(data: DataSet, rows: Rows, name: str, measured: Measured) -> None:
    """Put a row into the data set's results; seeds of an earlier command stay where the settings
    are the same."""
    known = stored(data.name, HERE)
    before = known.get(name)
    if before is not None and before.chosen == measured.chosen:
        seeds, broken = {**before.seeds, **measured.seeds}, {**before.broken, **measured.broken}
        measured = replace(measured, seeds=seeds, broken=broken)
    known[name] = measured
    record = {
        "title": data.title,
        "command": f"{COMMAND} {data.name}",
        "versions": current_versions(),
        "settings": data.settings,
        "methods": {row: known[row].as_json() for row in rows.methods if row in known},
    }
    write_json(HERE / f"{data.name}.json", record)


def measured_row(data: DataSet, row: Row, trials: int, seeds: Sequence[int]) -> Measured:
    """Tune a row, then run it with every seed; what has ended already is read again."""
    folder = RUNS / data.name / file_name(row.name)
    try:
        tuned = tuned_row(data, row, trials, folder / "tune")
    except OtherTuning as e:
        print(f"{data.name}, {row.name}: {kept_aside(folder / 'tune')}, as {e.why}", flush=True)
        tuned = tuned_row(data, row, trials, folder / "tune")
    measured = Measured(
        expression=row.expression,
        chosen=tuned.expression,
        settings=dict(jsonable(tuned.settings)),
        validation=tuned.score,
        untuned=tuned.default.score,
        trials=len(tuned.trials),
        tuning_cpu_seconds=round(tuned.cpu_seconds, 2),
    )
    for seed in seeds:
        outcome = one_run(tuned.expression, data.run_settings(row, seed), folder / f"seed-{seed}")
        if isinstance(outcome, str):
            measured.broken[str(seed)] = outcome
        else:
            measured.seeds[str(seed)] = outcome
    return measured


def tuned_row(data: DataSet, row: Row, trials: int, folder: Path) -> Tuned:
    """The best settings of a row; trials that ended in the folder are not run again."""
    settings = dict(data.tuning_settings(row))
    return fl.tune(
        [row.expression],
        settings.pop("data"),
        model=settings.pop("model"),
        trials=trials,
        workers=1,
        out=str(folder),
        note=lambda sentence: print(f"{data.name}, {row.name}: {sentence}", flush=True),
        **settings,
    ).methods[0]


def kept_aside(folder: Path) -> str:
    """Rename a folder of trials with other settings, so that new ones can begin; says where to."""
    numbers = itertools.count(1)
    places = (folder.with_name(f"{folder.name}-before-{number}") for number in numbers)
    place = next(place for place in places if not place.exists())
    folder.rename(place)
    return f"the trials so far are kept in {place}"


def one_run(expression: str, settings: dict[str, Any], folder: Path) -> SeedRun | str:
    """The run with one seed, or why it broke down; from its folder, if it has ended there.

    A run that was stopped begins again, so that its CPU seconds are those of the whole.
    """
    identity = jsonable({"method": expression, **settings})
    file = folder / "measured.json"
    if file.exists():
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["identity"] == identity:
            return record["broken"] or SeedRun(**record["run"])
    shutil.rmtree(folder, ignore_errors=True)
    outcome = trained(expression, settings, folder)
    broken = outcome if isinstance(outcome, str) else ""
    run = None if isinstance(outcome, str) else asdict(outcome)
    write_json(file, {"identity": identity, "broken": broken, "run": run})
    return outcome


def trained(expression: str, settings: dict[str, Any], folder: Path) -> SeedRun | str:
    """One run from its beginning."""
    others = dict(settings)
    data, model = others.pop("data"), others.pop("model")
    watcher = Timed(PAPERS)
    try:
        result = fl.run(
            expression,
            data,
            model=model,
            watchers=[watcher],
            progress=False,
            out=str(folder),
            checkpoint_every=settings["rounds"],
            **others,
        )
    except TrainingError as e:
        return str(e)
    summary = result.summary
    curve = [
        record.headline.value
        for record in result.records
        if record.kind == "train" and record.headline is not None
    ]
    return SeedRun(
        accuracy=round(summary.accuracy, 5),
        worst_decile=round(summary.worst_decile, 5),
        megabytes=round(summary.bytes_up / summary.clients / 1e6, 4),
        cpu_seconds=round(watcher.cpu_seconds, 2),
        curve=[round(value, 4) for value in curve],
        protocols={name: round(number.value, 5) for name, number in watcher.results.items()},
        digest=summary.digest or "",
    )


class Timed(fl.OtherProtocols):
    """Judges a run under all protocols, and counts the CPU seconds of the run without that."""

    def begun(self, run: fl.RunView) -> None:
        super().begun(run)
        self.cpu_seconds, self._since = 0.0, time.process_time()

    def step(self, run: fl.RunView, record: fl.RoundRecord) -> None:
        self.cpu_seconds += time.process_time() - self._since
        super().step(run, record)
        self._since = time.process_time()


if __name__ == "__main__":
    try:
        main()
    except FedloomError as e:
        sys.exit(f"table: {e}")
