"""The diagnostics a run recorded (`diagnostics.jsonl`): only what is there is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedloom.diagnose.finding import NAMES
from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html, tag
from fedloom.report.bias import representation_bias
from fedloom.report.description import description_length
from fedloom.report.findings import SIDES, bars, newest
from fedloom.report.groups import Group, Row
from fedloom.report.runs import StoredRun
from fedloom.report.scatter import ellipses_figure, tsne_figure
from fedloom.runs.scores import Record

HOW = "Record {them} with: fedloom diagnose {run}"


def diagnostics_section(group: Group, name: str, drawings: Drawings) -> Html:
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


def _recorded(row: Row) -> StoredRun | None:
    return next((run for run in row.runs if run.findings), None)


def _block(label: str, name: str, run: StoredRun, drawings: Drawings) -> Html:
    findings = run.findings
    said = [f for f in findings if "skipped" not in f["result"]]
    skipped = list(dict.fromkeys(f["result"]["skipped"] for f in findings if f not in said))
    figures: list[Html | None] = []
    for kinds, make in MAKERS.items():
        lines = [f for f in said if f["name"] in kinds]
        if lines:
            figures.append(make(f"{name}-{kinds[0]}", lines, drawings))
    shown = sorted({f["name"] for f in said})
    missing = [kind for kind in NAMES if kind not in shown]
    note = HOW.format(them=f"the rest ({', '.join(missing)})", run=run.paths.path)
    return tag(
        "div",
        tag("h4", label),
        tag("p", f"Seed {run.config.seed}. ", " ".join(_measured(findings)), class_="quiet"),
        [tag("p", sentence, class_="quiet") for sentence in skipped],
        tag("div", figures, class_="figures"),
        tag("p", note, class_="quiet") if missing else None,
        data_choice=label,
    )


def _measured(findings: list[Record]) -> list[str]:
    """Which clients and how many rows, a sentence for the rounds that share them."""
    rounds: dict[tuple[str, int, int], dict[int, None]] = {}
    for f in findings:
        if "clients" in (used := f["settings"]):
            ids = ", ".join(map(str, used["clients"]))
            key = ids, used["clients_in_run"], used["rows"]
            rounds.setdefault(key, {})[f["round"]] = None
    return [
        f"Round{'s' if len(at) > 1 else ''} {', '.join(map(str, at))}: clients {ids} of {of} in the"
        f" run, at most {rows} rows of a data set."
        for (ids, of, rows), at in rounds.items()
    ]


# ------------------------------------------------------------------ per layer


def _separation(name: str, lines: list[Record], drawings: Drawings) -> Html:
    now = newest(lines)
    rows = [
        [line["layer"], *(m[side][k] for k in ("value", "null", "debiased") for side in SIDES)]
        for line in now
        for m in [line["result"]["mean"]]
    ]
    head = [
        "layer",
        "before",
        "after",
        "shuffled before",
        "shuffled after",
        "debiased before",
        "debiased after",
    ]
    chart = drawings.figure(
        name,
        f"Class-wise separation, round {now[0]['round']}",
        {
            "kind": "bars",
            "ylabel": "R²",
            "groups": [line["layer"] for line in now],
            "series": bars(now, "value"),
            "references": [],
        },
        plain_table(f"{name}-table", "Mean over clients", head, rows),
        "Share of the spread that lies between classes, on clients' own test rows.",
    )
    return tag(
        "div",
        chart,
        _over_rounds(
            name,
            "Separation over rounds",
            "R²",
            lines,
            drawings,
            lambda line, side: line["result"]["mean"][side]["value"],
        ),
        class_="flat",
    )


def _cka(name: str, lines: list[Record], drawings: Drawings) -> Html:
    now = newest(lines)
    frames = [
        {
            "name": f"{line['layer']}, {line['snapshot']}",
            "rows": list(map(str, line["result"]["clients"])),
            "cols": list(map(str, line["result"]["clients"])),
            "values": [[rounded(v, 3) for v in row] for row in line["result"]["matrix"]],
        }
        for line in now
    ]
    keys = ("mean", "null", "debiased_mean", "smallest", "largest", "n")
    rows = [[line["layer"], line["snapshot"], *(line["result"][k] for k in keys)] for line in now]
    rows = [[*row, line["settings"]["width"]] for row, line in zip(rows, now, strict=True)]
    head = [
        *("layer", "model", "mean", "shuffled rows", "debiased mean", "smallest", "largest"),
        *("rows", "width"),
    ]
    few = any(_few_rows(line) for line in lines)
    shown = "debiased_mean" if few else "mean"
    heat = drawings.figure(
        name,
        f"CKA between clients, round {now[0]['round']}",
        {
            "kind": "heat",
            "xlabel": "client",
            "ylabel": "client",
            "max": 1.0,
            "digits": 2,
            "frames": frames,
            "choose": "layer and model",
        },
        plain_table(f"{name}-table", "Linear CKA over pairs of clients", head, rows),
        "1: two clients' features are alike on the same rows. With fewer rows than ten times the"
        " width, CKA is high whatever the features; then hold it against that of shuffled rows, or"
        " read the debiased mean, which is 0 for those.",
    )
    return tag(
        "div",
        heat,
        _over_rounds(
            name,
            "CKA between clients over rounds" + (", debiased" if few else ""),
            "debiased CKA" if few else "CKA",
            lines,
            drawings,
            lambda line, side: line["result"][shown] if line["snapshot"] == side else None,
        ),
        class_="flat",
    )


def _few_rows(line: Record) -> bool:
    """So few for the width that plain CKA is mostly bias."""
    width = line["settings"]["width"]
    widest = max(width) if isinstance(width, list) else width
    return bool(line["result"]["n"] < 10 * widest)


def _over_rounds(
    name: str,
    title: str,
    ylabel: str,
    lines: list[Record],
    drawings: Drawings,
    value: Callable[[Record, str], float | None],
) -> Html | None:
    if len({line["round"] for line in lines}) < 2:
        return None
    found: dict[str, dict[int, float | None]] = {}
    for line in lines:
        for side in SIDES:
            if (v := value(line, side)) is not None:
                found.setdefault(f"{line['layer']}, {side}", {})[line["round"]] = v
    rounds = sorted({t for column in found.values() for t in column})
    series = [
        {"key": key, "x": list(column), "y": [rounded(v) for v in column.values()]}
        for key, column in found.items()
    ]
    table = [[t, *(column.get(t) for column in found.values())] for t in rounds]
    return drawings.figure(
        f"{name}-rounds",
        title,
        {
            "kind": "lines",
            "xlabel": "round",
            "ylabel": ylabel,
            "keys": list(found),
            "views": [{"name": "", "series": series}],
        },
        plain_table(f"{name}-rounds-table", title, ["round", *found], table),
    )


# ------------------------------------------------------------------ predictions


def _classifier_bias(name: str, lines: list[Record], drawings: Drawings) -> Html:
    line = min(newest(lines), key=lambda f: f["settings"].get("seen_at_least", 1))
    found = line["result"]
    classes = found["class_names"] or list(map(str, range(found["classes"])))
    ids = list(map(str, found["clients"]))
    frames = [
        {
            "name": f"{side} local training",
            "rows": ids,
            "cols": classes,
            "values": [[rounded(v, 3) for v in row] for row in found[side]["predicted"]],
            "marked": found["seen"],
        }
        for side in SIDES
    ]
    head = [
        "client",
        "classes seen %",
        "seen mass before",
        "after",
        "unseen recall before",
        "after",
        "seen recall before",
        "after",
    ]
    keys = ("seen_mass", "unseen_recall", "seen_recall")
    rows = [
        [cid, 100 * found["blind"][i], *(found[side][k][i] for k in keys for side in SIDES)]
        for i, cid in enumerate(ids)
    ]
    return drawings.figure(
        name,
        f"Classifier bias, round {line['round']}",
        {
            "kind": "heat",
            "xlabel": "predicted class",
            "ylabel": "client",
            "max": 1.0,
            "digits": 2,
            "frames": frames,
            "choose": "model",
        },
        plain_table(f"{name}-table", "What rows of unseen classes are taken for", head, rows),
        "Share of rows of classes a client has never seen that it takes for each class; framed: the"
        " classes it has seen.",
    )


def _global_accuracy(name: str, lines: list[Record], drawings: Drawings) -> Html:
    line = newest(lines)[-1]
    found = line["result"]
    whole = found["aggregated"]
    references = [{"name": "chance", "value": rounded(100 * found["chance"], 2)}]
    if whole["accuracy"] is not None:
        references.append({"name": "aggregated", "value": rounded(100 * whole["accuracy"], 2)})
    accuracy = {side: [_times100(v) for v in found[side]["accuracy"]] for side in SIDES}
    ids = list(map(str, found["clients"]))
    rows = [[cid, *(accuracy[side][i] for side in SIDES)] for i, cid in enumerate(ids)]
    mean = [_times100(found["mean"][side]["accuracy"]) for side in SIDES]
    why = f" There is no global model: {whole['why']}." if whole["why"] else ""
    return drawings.figure(
        name,
        f"Accuracy on balanced rows, round {line['round']}",
        {
            "kind": "bars",
            "ylabel": "accuracy %",
            "xlabel": "client",
            "groups": ids,
            "series": [{"key": side, "values": accuracy[side]} for side in SIDES],
            "references": references,
        },
        plain_table(
            f"{name}-table", "Accuracy in percent", ["client", *SIDES], [*rows, ["mean", *mean]]
        ),
        f"Each client's model on {found['n']} class-balanced rows that are the same for all.{why}",
    )


def _times100(value: float | None) -> float | None:
    return None if value is None else rounded(100 * value, 2)


WAYS = {
    "predict": "as the method predicts",
    "single": "one pass at the mean",
    "probability_average": "mean of probabilities",
    "logit_average": "mean of logits",
    "tempered": "after temperature scaling",
}


def _calibration(name: str, lines: list[Record], drawings: Drawings) -> Html:
    now = newest(lines)
    keys = list(dict.fromkeys(WAYS.get(way, way) for line in now for way in line["result"]["ways"]))
    views = [
        {
            "name": f"{line['snapshot']} local training"
            if line["snapshot"] in SIDES
            else "adapted",
            "series": [
                {"key": WAYS.get(way, way), **_diagram(found["table"])}
                for way, found in line["result"]["ways"].items()
            ],
        }
        for line in now
    ]
    measures = (
        *("ece", "noise", "mean_client_ece", "mean_client_noise"),
        *("mce", "gap", "accuracy", "nll", "brier", "n"),
    )
    rows = [
        [WAYS.get(way, way), line["snapshot"], *(found[k] for k in measures)]
        for line in now
        for way, found in line["result"]["ways"].items()
    ]
    head = [
        "prediction",
        "model",
        "ECE",
        "ECE if calibrated",
        "mean client's ECE",
        "if calibrated",
        "MCE",
        "confidence less accuracy",
        "accuracy",
        "nats",
        "Brier",
        "rows",
    ]
    return drawings.figure(
        name,
        f"Reliability, round {now[0]['round']}",
        {
            "kind": "lines",
            "xlabel": "confidence",
            "ylabel": "accuracy",
            "keys": keys,
            "views": views,
            "diagonal": True,
            "dots": True,
        },
        plain_table(f"{name}-table", "Calibration on clients' test rows", head, rows),
        "; ".join(
            f"{WAYS.get(way, way)}: ECE {found['ece']:.3f}"
            for way, found in now[-1]["result"]["ways"].items()
        )
        + f" ({now[-1]['snapshot']}).",
    )


def _diagram(table: Record) -> dict[str, Any]:
    bins = [
        (c, a, n)
        for c, a, n in zip(table["confidence"], table["accuracy"], table["counts"], strict=True)
        if c is not None and a is not None
    ]
    return {
        "x": [rounded(c) for c, _, _ in bins],
        "y": [rounded(a) for _, a, _ in bins],
        "weight": [n for *_, n in bins],
    }


def _tsne(name: str, lines: list[Record], drawings: Drawings) -> Html:
    return _each_layer(tsne_figure, name, lines, drawings)


def _ellipses(name: str, lines: list[Record], drawings: Drawings) -> Html:
    return _each_layer(ellipses_figure, name, lines, drawings)


def _each_layer(
    draw: Callable[[str, Record, Drawings], Html],
    name: str,
    lines: list[Record],
    drawings: Drawings,
) -> Html:
    """A picture of every layer that was recorded last."""
    found = {line["layer"]: line for line in newest(lines)}.values()
    figures = [draw(f"{name}-{i}", line, drawings) for i, line in enumerate(found)]
    return tag("div", figures, class_="flat")


MAKERS: dict[tuple[str, ...], Callable[[str, list[Record], Drawings], Html | None]] = {
    ("mdl",): description_length,
    ("cka",): _cka,
    ("separation",): _separation,
    ("fisher", "drift", "overlap"): representation_bias,
    ("classifier_bias",): _classifier_bias,
    ("global_accuracy",): _global_accuracy,
    ("calibration",): _calibration,
    ("tsne",): _tsne,
    ("ellipses",): _ellipses,
}
