"""One self-contained HTML page from run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedloom.data import FederatedData
from fedloom.drawing.figures import Drawings
from fedloom.drawing.html import Html, allowed, join, page_head, script_json, tag
from fedloom.errors import BadInput
from fedloom.files import write_atomic
from fedloom.report.clients import clients_section
from fedloom.report.collaboration import collaboration_section
from fedloom.report.curves import curves_section
from fedloom.report.diagnostics import diagnostics_section
from fedloom.report.export import csv_of, latex_of
from fedloom.report.groups import RunGroup, group_runs
from fedloom.report.newcomers import newcomers_section
from fedloom.report.partition import data_of, partition_section
from fedloom.report.privacy import privacy_section
from fedloom.report.runs import StoredRun, find_runs
from fedloom.report.setup import setup_section
from fedloom.report.summary import summary_section
from fedloom.runs.config import RunConfig

FindData = Callable[[StoredRun], FederatedData | str]
TITLES = {
    "summary": "Summary",
    "curves": "Curves",
    "clients": "Clients",
    "newcomers": "Newcomers",
    "weights": "Combination weights",
    "privacy": "Privacy",
    "diagnostics": "Diagnostics",
    "partition": "Partition",
    "setup": "Configuration",
}
"""Of the sections, by the end of their ids."""
PROTECTING = ("privacy", "secure_aggregation", "compression", "aggregation", "hostile")
"""Keys that change what clients send or what is made of it; told where they are set."""


@dataclass(frozen=True)
class Body:
    """What a page shows, without its frame: all that changes while a run goes on."""

    title: str
    main: Html
    charts: dict[str, Any]


def report(
    folders: Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    targets: Sequence[float] = (),
    csv: str | Path | None = None,
    latex: str | Path | None = None,
) -> Path:
    """Write the report of run folders, or of comparison folders, to a file.

    `targets`: accuracies between 0 and 1 to which rounds and megabytes are counted. `csv`, `latex`:
    files for the table of methods over seeds (`fedloom.launch.tables`).
    """
    runs = find_runs(map(Path, folders))
    for target in targets:
        if any(run.about.share for run in runs) and not 0 < target <= 1:
            raise BadInput(f"a target is an accuracy between 0 and 1, not {target:g}")
    groups = group_runs(runs)
    tables = {
        ("--csv", csv): "" if csv is None else csv_of(groups),
        ("--latex", latex): "" if latex is None else latex_of(groups),
    }
    text = page(body(runs, targets))
    for (option, file), table in tables.items():
        if file is not None:
            _write(file, option, table)
    return _write(out, "-o", text)


def _write(file: str | Path, option: str, text: str) -> Path:
    path = Path(file)
    if path.is_dir():
        raise BadInput(f"{path} is a folder; give {option} the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as e:
        raise BadInput(f"cannot write {path} ({e.strerror}); give another {option}") from None
    return path


def body(
    runs: Sequence[StoredRun], targets: Sequence[float] = (), find_data: FindData = data_of
) -> Body:
    """Sections and charts of these runs."""
    groups = group_runs(runs)
    drawings = Drawings()
    sections = [
        _sections(group, f"g{i}", drawings, targets, find_data(group.first))
        for i, group in enumerate(groups)
    ]
    parts = [
        join(_intro(group, f"g{i}"), list(part.values()))
        for i, (group, part) in enumerate(zip(groups, sections, strict=True))
    ]
    return Body(_title(groups), join(_contents(groups, sections), parts), drawings.specs)


def page(content: Body, live: bool = False) -> str:
    """The whole page; `live`: it asks its server for what is new."""
    style, script = asset("report.css"), asset("report.js")
    connect = "'self'" if live else "'none'"
    head = page_head(
        content.title,
        style,
        f"script-src {allowed(script)}; img-src data:; connect-src {connect};"
        " base-uri 'none'; form-action 'none'",
    )
    frame = tag(
        "body",
        tag("a", "Skip to the summary", href="#main", class_="skip"),
        tag("header", tag("h1", content.title), _buttons(), _live_line() if live else None),
        tag("main", content.main, id="main", tabindex="-1"),
        tag("footer", tag("p", "Made by fedloom. Everything is in this one file.")),
        tag("div", id="tip", hidden=True),
        tag("div", id="announced", role="status", aria_live="polite", class_="unseen"),
        tag("script", Html(script_json(content.charts)), type="application/json", id="charts"),
        tag("script", Html(script)),
        data_live=live,
    )
    return f"<!doctype html>\n{tag('html', head, frame, lang='en')}\n"


@cache
def asset(name: str) -> str:
    """A file that is built into the page."""
    return files("fedloom.report").joinpath("assets", name).read_text(encoding="utf-8")


def _title(groups: list[RunGroup]) -> str:
    runs = [run for group in groups for run in group.runs]
    if len(runs) == 1:
        return f"{groups[0].rows[0].label} on {runs[0].config.data}"
    data = ", ".join(dict.fromkeys(run.config.data for run in runs))
    methods = len({row.label for group in groups for row in group.rows})
    return f"{methods} method{'s' if methods > 1 else ''} on {data}"


def _buttons() -> Html:
    theme = tag("button", "Dark", type="button", id="theme", aria_pressed="false")
    paper = tag("button", "Print", type="button", id="print")
    return tag("div", theme, paper, class_="buttons needs-script")


def _live_line() -> Html:
    words = tag("span", "connecting …", id="live-words")
    bar = tag("progress", id="live-bar", max="1", value="0", aria_label="rounds done")
    return tag("p", bar, " ", words, id="live", role="status")


def _contents(groups: list[RunGroup], sections: list[dict[str, Html]]) -> Html:
    """Links to all sections, by groups where there are several."""
    links = [
        tag("ul", [tag("li", tag("a", TITLES[key], href=f"#g{i}-{key}")) for key in part])
        for i, part in enumerate(sections)
    ]
    if len(groups) == 1:
        return tag("nav", links, id="contents", aria_label="Contents", class_="one-group")
    why = "These runs do not all compare, so they are shown in groups, each with its own tests:"
    items = [
        tag("li", tag("a", group.name, href=f"#g{i}"), links[i]) for i, group in enumerate(groups)
    ]
    return tag("nav", tag("p", why), tag("ol", items), id="contents", aria_label="Contents")


def _sections(
    group: RunGroup,
    name: str,
    drawings: Drawings,
    targets: Sequence[float],
    data: FederatedData | str,
) -> dict[str, Html]:
    """The sections that have something to show, by the keys of TITLES."""
    sections = {
        "summary": summary_section(group, name, targets),
        "curves": curves_section(group, name, drawings),
        "clients": clients_section(group, name, drawings),
        "newcomers": newcomers_section(group, name),
        "weights": collaboration_section(group, name, drawings),
        "privacy": privacy_section(group, name),
        "diagnostics": diagnostics_section(group, name, drawings),
        "partition": partition_section(group, name, data),
        "setup": setup_section(group, name),
    }
    return {key: section for key, section in sections.items() if section is not None}


def _intro(group: RunGroup, name: str) -> Html:
    apart = f"Not comparable with the first group, because {'; '.join(group.apart)}."
    twice = f"Given twice, shown once: {', '.join(group.repeated)}."
    return tag(
        "section",
        tag("h2", group.name),
        tag("p", _about(group)),
        tag("p", apart, class_="warning") if group.apart else None,
        tag("p", twice, class_="warning") if group.repeated else None,
        id=name,
    )


def _about(group: RunGroup) -> str:
    c = group.first.config
    seeds = sorted({run.config.seed for run in group.runs})
    parts = [
        f"{len(group.rows)} method{'s' if len(group.rows) > 1 else ''}",
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        f"{c.rounds} round{'s' if c.rounds > 1 else ''}",
        f"model {c.model}",
        f"participation {100 * c.participation:g} %",
        f"protocol {c.protocol}",
    ]
    if c.newcomers:
        parts.append(f"{c.newcomers} newcomer{'s' if c.newcomers > 1 else ''}")
    if c.shift:
        parts.append(f"shift {c.shift}")
    for key in PROTECTING:
        values = {getattr(run.config, key) for run in group.runs}
        if values != {RunConfig.model_fields[key].default}:
            named = sorted("none" if value is None else value for value in values)
            parts.append(f"{key.replace('_', ' ')} {', '.join(named)}")
    return "; ".join(parts) + "."
