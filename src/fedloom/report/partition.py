"""Who holds what: the bubble plot of clients and classes, or, without the data, sizes alone."""

from __future__ import annotations

from dataclasses import replace

from fedloom.data import FederatedData
from fedloom.data.picture import bubble_svg, cells
from fedloom.data.tables import offline
from fedloom.drawing.figures import plain_table
from fedloom.drawing.html import Html, tag
from fedloom.errors import FedloomError
from fedloom.report.groups import RunGroup
from fedloom.report.runs import StoredRun
from fedloom.runs.experiment import OBJECT, federated

MOST_BUBBLES = 4000
MOST_CLIENTS = 200


def data_of(run: StoredRun) -> FederatedData | str:
    """The divided data of a run, or why it cannot be had; nothing is ever downloaded."""
    if run.config.data == OBJECT:
        return "the data was a Python object"
    try:
        with offline():
            data = federated(run.config)
    except (FedloomError, OSError) as e:
        return f"the data is not at hand ({e})"
    if data.partition.fingerprint != run.partition:
        return "the data or how it is divided has changed since"
    return data


def partition_section(group: RunGroup, name: str, data: FederatedData | str) -> Html:
    """The first run's partition."""
    run = group.first
    whose = (
        "" if group.same_partition else f" of seed {run.config.seed}; other seeds have their own"
    )
    fingerprint = f"Fingerprint {run.partition[:16]}{whose}."
    shown = _sizes(run, name, data) if isinstance(data, str) else _bubbles(data, name)
    return tag(
        "section",
        tag("h3", "Partition"),
        tag("p", fingerprint, class_="quiet"),
        shown,
        id=f"{name}-partition",
    )


def _bubbles(data: FederatedData, name: str) -> Html:
    most = max(1, min(MOST_CLIENTS, MOST_BUBBLES // data.classes))
    all_clients = len(data)
    if all_clients > most:
        data = replace(
            data, partition=replace(data.partition, clients=data.partition.clients[:most])
        )
    header, rows = cells(data)
    title = "Samples of each client and class"
    some = f" (the first {len(data)} of {all_clients} clients)" if len(data) < all_clients else ""
    table = plain_table(f"{name}-partition-table", title + some, header, rows)
    picture = tag(
        "div",
        Html(bubble_svg(data)),
        class_="scroll picture",
        tabindex="0",
        role="region",
        aria_label=f"Bubble plot: {title}",
    )
    details = tag(
        "details", tag("summary", "Data"), table, id=f"{name}-bubbles-data", class_="data"
    )
    caption = tag("figcaption", tag("strong", title + some), " The area of a bubble is the number.")
    return tag("figure", caption, picture, details, class_="of-picture")


def _sizes(run: StoredRun, name: str, why: str) -> Html:
    if not any(map(any, run.sizes)):
        return tag("p", "The rows are at the sites; the server knows nothing of them.")
    head = ["client", "training", "validation", "test"]
    named = list(zip(run.client_names, run.sizes, strict=True))
    rows = [[name, *size] for name, size in named[:MOST_CLIENTS]]
    table = plain_table(f"{name}-partition-table", "Rows of each client", head, rows)
    return tag("div", tag("p", f"Classes cannot be shown: {why}."), table)
