"""Features in the plane: t-SNE before and after local training, and Gaussians of classes."""

from __future__ import annotations

from typing import Any

from fedloom.drawing.figures import Drawings, plain_table, rounded, thinned
from fedloom.drawing.html import Html
from fedloom.runs.scores import Record

MOST_POINTS = 3000
"""Of one embedding, in a file that must stay small."""
MOST_PANELS = 12
SHAPES = 8
"""That the page's script can draw."""


def tsne_figure(name: str, line: Record, drawings: Drawings) -> Html:
    """One joint embedding, its points before and after in panels of their own."""
    found = line["result"]
    kept = thinned(len(found["points"]), MOST_POINTS)
    panels = [
        {
            "name": f"{side} local training",
            "points": [
                [*_short(found["points"][i]), found["labels"][i], found["clients"][i]]
                for i in kept
                if found["snapshots"][i] == side
            ],
            "ellipses": [],
        }
        for side in ("before", "after")
    ]
    purity = found["purity"]
    rows = [
        [what.replace("_", " "), *(values[k] for k in ("before", "after", "null"))]
        for what, values in purity.items()
    ]
    head = ["share of neighbours alike in", "before", "after", "by chance"]
    shapes = sorted(set(found["clients"]))
    repeat = (
        " There are more clients than shapes, so shapes repeat." if len(shapes) > SHAPES else ""
    )
    return drawings.figure(
        name,
        f"t-SNE of {line['layer']}, round {line['round']}",
        {
            "kind": "scatter",
            "shapes": shapes,
            "views": [{"name": "", "panels": panels}],
        },
        plain_table(f"{name}-table", "Purity of neighbourhoods in the original space", head, rows),
        "Colour is the label, shape the client; distances between clusters mean little." + repeat,
    )


def ellipses_figure(name: str, line: Record, drawings: Drawings) -> Html:
    """For every client, its features before and after with an ellipse for each class."""
    found = line["result"]
    panels = found["panels"][: 2 * MOST_PANELS]
    each = max(20, MOST_POINTS // max(1, len(panels)))
    ids = list(dict.fromkeys(p["client"] for p in panels))
    views = [
        {"name": f"client {cid}", "panels": [_panel(p, each) for p in panels if p["client"] == cid]}
        for cid in ids
    ]
    rows = [
        [
            p["client"],
            p["snapshot"],
            e["label"],
            e["n"],
            *e["mean"],
            *(e["half_axes"] or (None, None)),
        ]
        for p in panels
        for e in p["ellipses"]
    ]
    head = ["client", "model", "class", "rows", "mean x", "mean y", "half axis", "half axis"]
    share = f"{100 * found['explained']:.0f} % of the variance lies in this plane."
    return drawings.figure(
        name,
        f"Features of {line['layer']} in the plane, round {line['round']}",
        {"kind": "scatter", "shapes": [], "views": views, "choose": "client", "equal": True},
        plain_table(f"{name}-table", "Gaussians of the classes", head, rows),
        f"Ellipses hold {100 * line['settings'].get('coverage', 0.95):.0f} % of a class. {share}",
    )


def _panel(panel: dict[str, Any], most: int) -> dict[str, Any]:
    kept = thinned(len(panel["points"]), most)
    return {
        "name": f"{panel['snapshot']} local training",
        "points": [
            [*_short(panel["points"][i]), panel["labels"][i], panel["client"]] for i in kept
        ],
        "ellipses": [
            [*_short(e["mean"]), *_short(e["half_axes"]), rounded(e["angle"], 4), e["label"]]
            for e in panel["ellipses"]
            if e["half_axes"] is not None
        ],
    }


def _short(pair: list[float]) -> list[float | None]:
    return [rounded(v, 3) for v in pair]
