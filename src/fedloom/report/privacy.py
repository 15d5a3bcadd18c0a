"""What runs with differential privacy have told, by the end and on the way."""

from __future__ import annotations

from fedloom.drawing.figures import plain_table, thinned
from fedloom.drawing.html import Html, tag
from fedloom.drawing.tables import NONE
from fedloom.record import PrivacySpent, RoundRecord
from fedloom.report.groups import RunGroup
from fedloom.report.runs import StoredRun

MOST_ROUNDS = 20
NOTE = (
    "Of the client that told most. Epsilon is towards whoever sees single uploads, as the server"
    " does; the other one is towards those who see means over a round's uploads only."
)


def privacy_section(group: RunGroup, name: str) -> Html | None:
    """A table of the runs and one of their rounds; None where no run had privacy."""
    runs = [
        (row.label, run, told) for row in group.rows for run in row.runs if (told := _told(run))
    ]
    if not runs:
        return None
    ends = [[label, run.config.seed, run.config.privacy, *_end(told)] for label, run, told in runs]
    columns = ["method", "seed", "privacy", "round", "epsilon", "of means", "delta"]
    by_round = [
        [label, run.config.seed, record.round, record.kind, spent.epsilon, _or_none(spent)]
        for label, run, told in runs
        for record, spent in (told[i] for i in thinned(len(told), MOST_ROUNDS))
    ]
    heads = ["method", "seed", "round", "", "epsilon", "of means"]
    return tag(
        "section",
        tag("h3", "Privacy"),
        tag("p", NOTE, class_="quiet"),
        plain_table(f"{name}-privacy-end", "Told in all", columns, ends),
        tag(
            "details",
            tag("summary", "Round by round"),
            plain_table(f"{name}-privacy-rounds", "Told so far", heads, by_round),
        ),
        id=f"{name}-privacy",
    )


def _told(run: StoredRun) -> list[tuple[RoundRecord, PrivacySpent]]:
    return [(record, record.privacy) for record in run.records if record.privacy is not None]


def _end(told: list[tuple[RoundRecord, PrivacySpent]]) -> list[object]:
    record, spent = told[-1]
    return [record.round, spent.epsilon, _or_none(spent), f"{spent.delta:g}"]


def _or_none(spent: PrivacySpent) -> float | str:
    return NONE if spent.epsilon_of_mean is None else spent.epsilon_of_mean
