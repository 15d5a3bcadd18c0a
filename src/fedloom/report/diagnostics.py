"""The diagnostics a run recorded (`diagnostics.jsonl`), each drawn by itself."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.diagnose.registry import diagnostics
from fedloom.drawing.figures import Drawings
from fedloom.drawing.html import Html, tag
from fedloom.record import Finding
from fedloom.report.groups import MethodRuns, RunGroup
from fedloom.report.runs import StoredRun

HOW = "Record {them} with: fedloom diagnose {run}"


def diagnostics_section(group: RunGroup, name: str, drawings: Drawings) -> Html:
    """Of every method, the first seed that recorded some."""
    blocks = [
        _block(row.label, f"{name}-d{i}", run, drawings)
        for i, row in enumerate(group.rows)
        if (run := _recorded(row))
    ]
    most = max(group.rows, key=lambda row: len(r.findings) if (r := _recorded(row)) else 0)
    path = group.first.paths.path
    nothing = tag("p", "No diagnostics were recorded. ", HOW.format(them="them", run=path))
    return tag(
        "section",
        tag("h3", "Diagnostics"),
        tag("div", class_="controls", data_choose=f"{name}-d") if blocks else None,
        tag("div", blocks, data_choices=f"{name}-d", data_first=most.label) if blocks else nothing,
        id=f"{name}-diagnostics",
    )


def _recorded(row: MethodRuns) -> StoredRun | None:
    return next((run for run in row.runs if run.findings), None)


def _block(label: str, name: str, run: StoredRun, drawings: Drawings) -> Html:
    """One run: a chart of each diagnostic that has results, the reasons of the others."""
    charts: list[Html] = []
    missing: list[str] = []
    for diagnostic in diagnostics().values():
        readings = [
            diagnostic.read(finding)
            for finding in run.findings
            if finding.name == diagnostic.name and not finding.skipped
        ]
        if readings:
            charts.append(diagnostic.chart(f"{name}-{diagnostic.name}", readings, drawings))
        else:
            missing.append(diagnostic.name)
    note = HOW.format(them=f"the rest ({', '.join(missing)})", run=run.paths.path)
    return tag(
        "div",
        tag("h4", label),
        tag("p", f"Seed {run.config.seed}. ", " ".join(_measured(run.findings)), class_="quiet"),
        [tag("p", sentence, class_="quiet") for sentence in _skipped(run.findings)],
        tag("div", charts, class_="figures"),
        tag("p", note, class_="quiet") if missing else None,
        data_choice=label,
    )


def _skipped(findings: Sequence[Finding]) -> list[str]:
    """Which diagnostics have no result, and why; every sentence once."""
    known = diagnostics()
    sentences = [
        f"{known[finding.name].title}: {finding.skipped}."
        for finding in findings
        if finding.skipped and finding.name in known
    ]
    return list(dict.fromkeys(sentences))


def _measured(findings: Sequence[Finding]) -> list[str]:
    """Which clients and how many rows, a sentence for the rounds that share them."""
    rounds: dict[tuple[str, int, int], dict[int, None]] = {}
    for finding in findings:
        settings = finding.settings
        if "clients" in settings:
            ids = ", ".join(map(str, settings["clients"]))
            key = ids, settings["clients_in_run"], settings["rows"]
            rounds.setdefault(key, {})[finding.round] = None
    return [
        f"Round{'s' if len(at) > 1 else ''} {', '.join(map(str, at))}: clients {ids} of {of} in the"
        f" run, at most {rows} rows of a data set."
        for (ids, of, rows), at in rounds.items()
    ]
