"""How many planted mistakes do the tests notice?

    python tests/mutants/run.py [--only NAME ...] [--jobs 2]

`mutants.toml` lists small changes of the source that a good engineer could make by mistake, each
with the tests that ought to notice it. Every one is applied alone to a copy of the working tree,
never to the working tree itself. `results.json` holds what became of each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, TypeVar

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.json"
COPIED = ("src", "tests", "docs", "pyproject.toml")
"""Of the working tree: the tests, and all that they read."""
START_SECONDS = 60.0
SLOWER = 5.0
"""A mutant may take so many times as long as the unchanged source, and START_SECONDS more."""
Outcome = Literal["caught", "timeout", "survived", "broken"]
"""By a failed test; because the tests did not end; not at all; the tests could not be run, so that
nothing is known."""
T, U = TypeVar("T"), TypeVar("U")


@dataclass(frozen=True)
class Mutant:
    """One planted mistake."""

    name: str
    file: str
    """Below src/fedloom."""
    mistake: str
    """What would be wrong, in words."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Arguments for pytest: who ought to notice."""

    @property
    def path(self) -> str:
        """Of the file, in the working tree."""
        return f"src/fedloom/{self.file}"

    def applied_to(self, source: str) -> str:
        """The source with the mistake in it."""
        if (times := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its text occurs {times} times in {self.path}, not once")
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    name: str
    outcome: Outcome
    seconds: float
    test: str | None
    """The first that failed."""


@dataclass(frozen=True)
class PytestRun:
    """One call of pytest."""

    code: int | None
    """None: it did not end in time."""
    seconds: float
    output: str

    @property
    def failed_test(self) -> str | None:
        """The first test that failed or broke down, by its id."""
        line = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", self.output, re.MULTILINE)
        return line[1] if line else None

    @property
    def outcome(self) -> Outcome:
        """Read as the test of a mutant."""
        if self.code is None:
            return "timeout"
        outcomes: dict[int, Outcome] = {0: "survived", 1: "caught"}
        return outcomes.get(self.code, "broken")


def read_mutants() -> list[Mutant]:
    """All of them."""
    entries = tomllib.loads((HERE / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


class Workspaces:
    """Copies of the working tree, one for each job."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.jobs = jobs
        self._idle: SimpleQueue[Path] = SimpleQueue()
        ignored = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info")
        for number in range(jobs):
            copy = folder / str(number)
            copy.mkdir()
            for name in COPIED:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, copy / name, ignore=ignored)
                else:
                    shutil.copy(ROOT / name, copy / name)
            self._idle.put(copy)

    @contextmanager
    def one(self) -> Iterator[Path]:
        """A copy that nobody else uses."""
        copy = self._idle.get()
        try:
            yield copy
        finally:
            self._idle.put(copy)

    def each(self, do: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        """Do something for all items, as many at a time as there are copies, in their order."""
        with ThreadPoolExecutor(self.jobs) as threads:
            yield from threads.map(do, items)


def environment(copy: Path) -> dict[str, str]:
    """In which the copy's fedloom is imported. Without cached bytecode: a file that was changed
    within a second, to one of the same length, would be taken for the cached one."""
    return {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }


def check_import(copy: Path) -> None:
    """An installed fedloom must not be tested in place of the copy."""
    command = [sys.executable, "-c", "import fedloom; print(fedloom.__file__)"]
    imported = subprocess.run(
        command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=True
    )
    if not Path(imported.stdout.strip()).is_relative_to(copy):
        sys.exit(f"fedloom is imported from {imported.stdout.strip()}, not from the copy {copy}")


def run_tests(copy: Path, tests: Sequence[str], limit: float | None = None) -> PytestRun:
    """Run pytest in a copy, up to the first failure; workers it left behind are ended."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=copy,
            env=environment(copy),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):  # none of its processes is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        return PytestRun(code, time.monotonic() - begun, log.read())


def time_unchanged(
    mutants: Sequence[Mutant], workspaces: Workspaces
) -> dict[tuple[str, ...], float]:
    """Seconds that each selection of tests takes on the unchanged source, where it must pass."""
    selections = list(dict.fromkeys(mutant.tests for mutant in mutants))

    def passed(tests: tuple[str, ...]) -> float:
        with workspaces.one() as copy:
            done = run_tests(copy, tests)
        if done.code != 0:
            sys.exit(f"without any mutant, {' '.join(tests)} does not pass:\n{done.output}")
        return done.seconds

    return dict(zip(selections, workspaces.each(passed, selections), strict=True))


def run_mutant(mutant: Mutant, workspaces: Workspaces, usual_seconds: float) -> Result:
    """Apply one mutant, run its tests, take it back."""
    with workspaces.one() as copy:
        file = copy / mutant.path
        source = file.read_text(encoding="utf-8")
        file.write_text(mutant.applied_to(source), encoding="utf-8")
        try:
            done = run_tests(copy, mutant.tests, START_SECONDS + SLOWER * usual_seconds)
        finally:
            file.write_text(source, encoding="utf-8")
    return Result(mutant.name, done.outcome, round(done.seconds, 1), done.failed_test)


def write_results(results: Sequence[Result], mutants: Sequence[Mutant]) -> None:
    """Put results in the file, beside those of mutants that were not run this time."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))["mutants"] if RESULTS.exists() else []
    by_name = {one["name"]: one for one in [*stored, *map(asdict, results)]}
    lines = [by_name[mutant.name] for mutant in mutants if mutant.name in by_name]
    score = Counter(line["outcome"] for line in lines)
    RESULTS.write_text(json.dumps({"score": score, "mutants": lines}, indent=1) + "\n", "utf-8")


def main() -> None:
    """Run all mutants, or some; exit code 1 unless every one is caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    arguments = parser.parse_args()
    mutants = read_mutants()
    names = [mutant.name for mutant in mutants]
    if unknown := sorted(set(arguments.only or ()) - set(names)):
        parser.error(f"there is no mutant {unknown[0]!r} in mutants.toml")
    chosen = [m for m in mutants if arguments.only is None or m.name in arguments.only]
    for mutant in chosen:
        mutant.applied_to((ROOT / mutant.path).read_text(encoding="utf-8"))  # or an error, at once
    width = max(map(len, names))
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        workspaces = Workspaces(Path(scratch).resolve(), arguments.jobs)
        with workspaces.one() as copy:
            check_import(copy)
        print(f"{len(chosen)} mutants; first their tests on the unchanged source")
        usual_seconds = time_unchanged(chosen, workspaces)

        def run(mutant: Mutant) -> Result:
            return run_mutant(mutant, workspaces, usual_seconds[mutant.tests])

        results = []
        for result in workspaces.each(run, chosen):
            results.append(result)
            shown = f"{result.outcome:<9} {result.seconds:6.1f} s  {result.test or ''}"
            print(f"{result.name:<{width}}  {shown}", flush=True)
            write_results(results, mutants)
    score = Counter(result.outcome for result in results)
    print(", ".join(f"{count} {outcome}" for outcome, count in score.most_common()))
    sys.exit(0 if set(score) <= {"caught", "timeout"} else 1)


if __name__ == "__main__":
    main()
