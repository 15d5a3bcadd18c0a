"""What was run: configuration, versions, folders, and the commands that repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from fedloom.drawing.figures import plain_table
from fedloom.drawing.html import Html, tag
from fedloom.drawing.tables import NONE
from fedloom.errors import FedloomError
from fedloom.methods import describe, parse_method
from fedloom.report.groups import MethodRuns, RunGroup
from fedloom.report.runs import StoredRun
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import OBJECT

COMPARED = ("method", "title", "seed", "out")
"""Keys that one `fedloom compare` varies."""
LINE = 100
"""About how long the lines of a command are."""


def setup_section(group: RunGroup, name: str) -> Html:
    """Everything that is needed to do it again."""
    return tag(
        "section",
        tag("h3", "Configuration"),
        _shared_table(group, name),
        _own_table(group, name),
        tag("h4", "To repeat"),
        tag("p", "With everything that is not a default.", class_="quiet"),
        tag(
            "div",
            tag(
                "pre", tag("code", "\n".join(commands(group))), id=f"{name}-commands", tabindex="0"
            ),
            class_="commands",
            data_copy=f"{name}-commands",
        ),
        tag("h4", "Runs"),
        _runs_table(group, name),
        id=f"{name}-setup",
    )


def commands(group: RunGroup) -> list[str]:
    """Command lines that repeat a group: one for all methods that share seeds and settings, where
    these are what `fedloom compare` takes, else one for each run."""
    alike: dict[tuple[Any, ...], list[MethodRuns]] = {}
    for row in group.rows:
        seeds_and_settings = tuple((run.config.seed, _settings(run.config)) for run in row.runs)
        alike.setdefault(seeds_and_settings, []).append(row)
    lines: list[str] = []
    for rows in alike.values():
        runs = [run for row in rows for run in row.runs]
        if len(runs) > 1 and _is_comparison(rows[0].runs) and not any(map(_why_not, runs)):
            lines.append(_compare_command(rows))
        else:
            lines += map(command, runs)
    return lines


def _is_comparison(runs: Sequence[StoredRun]) -> bool:
    """Do a method's runs have the seeds 0, 1, ... and else nothing that differs?"""
    seeds = [run.config.seed for run in runs]
    return seeds == list(range(len(runs))) and len({_settings(r.config) for r in runs}) == 1


def command(run: StoredRun) -> str:
    """The command line that gives the same run in a new folder."""
    if why := _why_not(run):
        return f"# {run.paths.path}: {why}; repeat it from Python"
    return _wrapped(["fedloom run", f"--method={_expression(run)}", *_flags(run.config)])


def _compare_command(rows: Sequence[MethodRuns]) -> str:
    first = rows[0].runs
    methods = [_expression(row.runs[0]) for row in rows]
    flags = _flags(first[0].config, leave_out=COMPARED)
    return _wrapped(["fedloom compare", *methods, f"--seeds={len(first)}", *flags])


def _wrapped(words: Sequence[str]) -> str:
    """A command, in lines that a shell reads as one."""
    lines = [words[0]]
    for word in map(shlex.quote, words[1:]):
        if len(lines[-1]) + len(word) < LINE:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return " \\\n".join(lines)


def _expression(run: StoredRun) -> str:
    """The method as it was written, if that gives the same method."""
    try:
        return run.label if describe(parse_method(run.label)) == run.method else run.method
    except FedloomError:
        return run.method


def _flags(config: RunConfig, leave_out: Iterable[str] = ("method", "title", "out")) -> list[str]:
    """What is not a default, as options."""
    flags: list[str] = []
    for key, field in RunConfig.model_fields.items():
        value = getattr(config, key)
        if key in leave_out or value is None or value == field.default:
            continue
        flag = key.replace("_", "-")
        if key == "imports":
            flags += [f"--import={spec}" for spec in value]
        elif isinstance(value, bool):
            flags.append(f"--{'' if value else 'no-'}{flag}")
        else:
            flags.append(f"--{flag}={value}")
    return flags


def _settings(config: RunConfig) -> tuple[tuple[str, Any], ...]:
    return tuple((k, v) for k, v in config.model_dump().items() if k not in COMPARED)


def _why_not(run: StoredRun) -> str:
    """Why no command line repeats a run; empty: one does."""
    for key in ("data", "model"):
        if getattr(run.config, key) == OBJECT:
            return f"its {key} was a Python object"
    try:
        parse_method(run.config.method)
    except FedloomError:
        return "its method has no name here"
    return ""


def _shared_table(group: RunGroup, name: str) -> Html:
    rows = [[key, _text(v[0])] for key, v in _values_by_key(group).items() if len(v) == 1]
    inner = plain_table(f"{name}-shared", "The same in all runs", ["key", "value"], rows)
    return _folded(f"The same in all runs: {len(rows)} keys", inner, f"{name}-shared-data")


def _own_table(group: RunGroup, name: str) -> Html | None:
    values = _values_by_key(group)
    differ = [
        key for key, v in values.items() if len(v) > 1 and key not in ("out", "title", "seed")
    ]
    if not differ:
        return None
    rows = [
        [row.label, *(_text(getattr(row.runs[0].config, key)) for key in differ)]
        for row in group.rows
    ]
    inner = plain_table(f"{name}-own", "What differs", ["run", *differ], rows)
    return _folded(f"What differs: {', '.join(differ)}", inner, f"{name}-own-data")


def _folded(title: str, inner: Html, name: str) -> Html:
    return tag("details", tag("summary", title), inner, id=name, class_="data")


def _values_by_key(group: RunGroup) -> dict[str, list[Any]]:
    configs = [run.config for run in group.runs]
    return {k: list(dict.fromkeys(getattr(c, k) for c in configs)) for k in RunConfig.model_fields}


def _runs_table(group: RunGroup, name: str) -> Html:
    names = dict.fromkeys(key for run in group.runs for key in run.versions)
    versions = {key: [str(run.versions.get(key, NONE)) for run in group.runs] for key in names}
    differ = [key for key, values in versions.items() if len(set(values)) > 1]
    same = [f"{key} {values[0]}" for key, values in versions.items() if key not in differ]
    rows = [
        [
            str(run.paths.path),
            row.label,
            str(run.config.seed),
            _state(run),
            run.summary.state_sha256[:16] if run.summary else NONE,
            *(str(run.versions.get(key, NONE)) for key in differ),
        ]
        for row in group.rows
        for run in row.runs
    ]
    head = ["folder", "method", "seed", "state", "result", *differ]
    table = plain_table(f"{name}-runs", "Runs, and the digest of the result", head, rows)
    return tag(
        "div", tag("p", f"All with {', '.join(same)}.", class_="quiet") if same else None, table
    )


def _state(run: StoredRun) -> str:
    if run.summary is None:
        return f"unfinished: round {run.done} of {run.config.rounds}"
    return f"stopped: {run.summary.stopped}" if run.summary.stopped else "ended"


def _text(value: Any) -> str:
    return NONE if value is None else str(value)
