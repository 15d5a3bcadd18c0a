"""One self-contained HTML page from run folders."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedloom.data import FederatedData
from fedloom.drawing.figures import Drawings
from fedloom.drawing.html import Html, join, script_json, tag
from fedloom.errors import BadInput
from fedloom.files import write_atomic
from fedloom.report.clients import clients_section
from fedloom.report.collaboration import collaboration_section
from fedloom.report.curves import curves_section
from fedloom.report.diagnostics import diagnostics_section
from fedloom.report.groups import Group, group
from fedloom.report.partition import data_of, partition_section
from fedloom.report.runs import StoredRun, find_runs
from fedloom.report.setup import setup_section
from fedloom.report.summary import summary_section

FindData = Callable[[StoredRun], FederatedData | str]


@dataclass(frozen=True)
class Body:
    """What a page shows, without its frame: all that changes while a run goes on."""

    title: str
    main: Html
    charts: dict[str, Any]


def report(
    folders: Sequence[str | Path], out: str | Path = "report.html", *, targets: Sequence[float] = ()
) -> Path:
    """Write the report of run folders, or of comparison folders, to a file.

    `targets`: accuracies between 0 and 1 to which rounds and megabytes are counted.
    """
    for target in targets:
        if not 0 < target <= 1:
            raise BadInput(f"a target is an accuracy between 0 and 1, not {target:g}")
    made = body(find_runs(map(Path, folders)), targets)
    path = Path(out)
    if path.is_dir():
        raise BadInput(f"{path} is a folder; give -o the name of a file, such as report.html")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, page(made))
    except OSError as e:
        raise BadInput(f"cannot write {path} ({e.strerror}); give another -o") from None
    return path


def body(
    runs: Sequence[StoredRun], targets: Sequence[float] = (), find_data: FindData = data_of
) -> Body:
    """Sections and charts of these runs."""
    groups = group(runs)
    drawings = Drawings()
    parts = [
        _group_html(one, f"g{i}", drawings, targets, find_data) for i, one in enumerate(groups)
    ]
    title = _title(groups)
    return Body(title, join(_contents(groups), parts), drawings.specs)


def page(made: Body, live: bool = False) -> str:
    """The whole page; `live`: it asks its server for what is new."""
    style, script = asset("report.css"), asset("report.js")
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)};"
        f" img-src data:; connect-src {connect};"
        " base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="fedloom"),
        tag("title", made.title),
        tag("style", Html(style)),
    )
    frame = tag(
        "body",
        tag("a", "Skip to the summary", href="#main", class_="skip"),
        tag("header", tag("h1", made.title), _buttons(), _live_line() if live else None),
        tag("main", made.main, id="main", tabindex="-1"),
        tag("footer", tag("p", "Made by fedloom. Everything is in this one file.")),
        tag("div", id="tip", hidden=True),
        tag("div", id="said", role="status", aria_live="polite", class_="unseen"),
        tag("script", Html(script_json(made.charts)), type="application/json", id="charts"),
        tag("script", Html(script)),
        data_live=live,
    )
    return f"<!doctype html>\n{tag('html', head, frame, lang='en')}\n"


@cache
def asset(name: str) -> str:
    """A file that is built into the page."""
    return files("fedloom.report").joinpath("assets", name).read_text(encoding="utf-8")


def _allowed(text: str) -> str:
    """What the content security policy calls exactly this inline text."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def _title(groups: list[Group]) -> str:
    runs = [run for one in groups for run in one.runs]
    if len(runs) == 1:
        return f"{groups[0].rows[0].label} on {runs[0].config.data}"
    data = ", ".join(dict.fromkeys(run.config.data for run in runs))
    methods = len({row.label for one in groups for row in one.rows})
    return f"{methods} method{'s' if methods > 1 else ''} on {data}"


def _buttons() -> Html:
    theme = tag("button", "Dark", type="button", id="theme", aria_pressed="false")
    paper = tag("button", "Print", type="button", id="print")
    return tag("div", theme, paper, class_="buttons needs-script")


def _live_line() -> Html:
    words = tag("span", "connecting …", id="live-words")
    bar = tag("progress", id="live-bar", max="1", value="0", aria_label="rounds done")
    return tag("p", bar, " ", words, id="live", role="status")


def _contents(groups: list[Group]) -> Html | None:
    if len(groups) < 2:
        return None
    links = [tag("li", tag("a", _name(one), href=f"#g{i}")) for i, one in enumerate(groups)]
    said = "These runs do not all compare, so they are shown in groups, each with its own tests:"
    return tag("nav", tag("p", said), tag("ol", links), id="contents", aria_label="Groups")


def _group_html(
    one: Group, name: str, drawings: Drawings, targets: Sequence[float], find_data: FindData
) -> Html:
    sections = [
        summary_section(one, name, targets),
        curves_section(one, name, drawings),
        clients_section(one, name, drawings),
        collaboration_section(one, name, drawings),
        diagnostics_section(one, name, drawings),
        partition_section(one, name, find_data(one.first)),
        setup_section(one, name),
    ]
    apart = f"Not comparable with the first group, because {'; '.join(one.apart)}."
    twice = f"Given twice, shown once: {', '.join(one.repeated)}."
    intro = tag(
        "section",
        tag("h2", _name(one)),
        tag("p", _about(one)),
        tag("p", apart, class_="warning") if one.apart else None,
        tag("p", twice, class_="warning") if one.repeated else None,
        id=name,
    )
    return join(intro, sections)


def _name(one: Group) -> str:
    config = one.first.config
    return f"{config.data}, {config.partition}, {one.first.clients} clients"


def _about(one: Group) -> str:
    c = one.first.config
    seeds = sorted({run.config.seed for run in one.runs})
    parts = [
        f"{len(one.rows)} method{'s' if len(one.rows) > 1 else ''}",
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        f"{c.rounds} rounds",
        f"model {c.model}",
        f"participation {100 * c.participation:g} %",
        f"protocol {c.protocol}",
    ]
    if c.shift:
        parts.append(f"shift {c.shift}")
    return "; ".join(parts) + "."
