"""What was run: configuration, versions, folders, and the command that repeats each run."""

from __future__ import annotations

import shlex
from typing import Any

from fedloom.drawing.figures import plain_table
from fedloom.drawing.html import Html, tag
from fedloom.drawing.tables import NONE
from fedloom.errors import FedloomError
from fedloom.methods import parse_method
from fedloom.report.groups import Group
from fedloom.report.runs import StoredRun
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import OBJECT


def setup_section(group: Group, name: str) -> Html:
    """Everything that is needed to do it again."""
    commands = "\n".join(command(run) for run in group.runs)
    return tag(
        "section",
        tag("h3", "Configuration"),
        _shared_table(group, name),
        _own_table(group, name),
        tag("h4", "To repeat"),
        tag(
            "p", "One command for each run, with everything that is not a default.", class_="quiet"
        ),
        tag(
            "div",
            tag("pre", tag("code", commands), id=f"{name}-commands", tabindex="0"),
            class_="commands",
            data_copy=f"{name}-commands",
        ),
        tag("h4", "Runs"),
        _runs_table(group, name),
        id=f"{name}-setup",
    )


def command(run: StoredRun) -> str:
    """The command line that gives the same run in a new folder."""
    given = run.config.model_dump()
    for key in ("data", "model"):
        if given[key] == OBJECT:
            return f"# {run.paths.path}: its {key} was a Python object; repeat it from Python"
    try:
        parse_method(run.config.method)
    except FedloomError:
        return f"# {run.paths.path}: its method has no name here; repeat it from Python"
    words = ["fedloom", "run"]
    for key, field in RunConfig.model_fields.items():
        value = run.method if key == "method" else given[key]
        if key == "out" or value is None or (value == field.default and key != "method"):
            continue
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{flag}")
        else:
            words.append(f"--{flag}={value}")
    return shlex.join(words)


def _shared_table(group: Group, name: str) -> Html:
    values = _by_key(group)
    rows = [[key, _said(found[0])] for key, found in values.items() if len(found) == 1]
    inner = plain_table(f"{name}-shared", "The same in all runs", ["key", "value"], rows)
    return _folded(f"The same in all runs: {len(rows)} keys", inner, f"{name}-shared-data")


def _own_table(group: Group, name: str) -> Html | None:
    differ = [
        k for k, found in _by_key(group).items() if len(found) > 1 and k not in ("out", "seed")
    ]
    if not differ:
        return None
    rows = [
        [row.label, *(_said(getattr(row.runs[0].config, key)) for key in differ)]
        for row in group.rows
    ]
    inner = plain_table(f"{name}-own", "What differs", ["run", *differ], rows)
    return _folded(f"What differs: {', '.join(differ)}", inner, f"{name}-own-data")


def _folded(title: str, inner: Html, name: str) -> Html:
    return tag("details", tag("summary", title), inner, id=name, class_="data")


def _by_key(group: Group) -> dict[str, list[Any]]:
    configs = [run.config for run in group.runs]
    return {k: list(dict.fromkeys(getattr(c, k) for c in configs)) for k in RunConfig.model_fields}


def _runs_table(group: Group, name: str) -> Html:
    names = list(dict.fromkeys(k for run in group.runs for k in run.versions))
    head = ["folder", "method", "seed", "state", "result", *names]
    rows = [
        [
            str(run.paths.path),
            row.label,
            str(run.config.seed),
            "ended" if run.summary else f"unfinished: round {run.done} of {run.config.rounds}",
            (run.summary or {}).get("state_sha256", NONE)[:16],
            *(str(run.versions.get(k, NONE)) for k in names),
        ]
        for row in group.rows
        for run in row.runs
    ]
    return plain_table(f"{name}-runs", "Runs, versions and the digest of the result", head, rows)


def _said(value: Any) -> str:
    return NONE if value is None else str(value)
