"""What comes out of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from fedloom.core.metrics import metric, words
from fedloom.core.score import Moment
from fedloom.core.tree import State
from fedloom.record import Chosen, Finding, PrivacySpent, RoundRecord, Score, Summary
from fedloom.runs.experiment import Experiment
from fedloom.runs.states import States

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedloom.runs.adapted import Adapted
    from fedloom.serving.model import PersonalModel

_AT: Mapping[Moment, str] = {
    "received": "as received",
    "trained": "after local training",
    "adapted": "after fine-tuning",
    "final": "after the final tuning",
}


@dataclass(frozen=True)
class Result:
    """A run that ended: its summary, its journal, and every state."""

    summary: Summary
    records: Sequence[RoundRecord]
    experiment: Experiment
    server: State
    clients: Mapping[int, State]
    warnings: tuple[str, ...] = ()
    diagnostics: Sequence[Finding] = ()
    """What `diagnose` recorded on the way."""
    before_last_round: States | None = None
    """Where the last training round began, if the result is of models trained in it."""

    def client(self, name: int | str) -> PersonalModel:
        """The model of one client, by its number or its site's name: the one that the run's
        protocol judges, as it was after the last round; or after the one that the protocol chose
        by its scores, where a checkpoint has it, and else with a warning."""
        from fedloom.runs.client_models import model_of  # here: most runs are not asked for a model

        return model_of(self, name)

    @cached_property
    def at_chosen_round(self) -> tuple[RoundRecord, States] | None:
        """The round before the last that the result is of, and the states after it, where they are
        kept."""
        from fedloom.runs.client_models import states_at_chosen_round

        return states_at_chosen_round(self)

    def adapt(
        self,
        data: Any,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        name: str | None = None,
        label: str | None = None,
        inputs: str | None = None,
        image_size: int | None = None,
        split: str | None = None,
    ) -> Adapted:
        """Let a newcomer join by the method's own rule, and score its model against training alone
        with the same rows and epochs. Nothing of the run changes.

        Args:
            data: what `load` takes, or a `FederatedData` with one client.
            epochs: of the newcomer's training; by default the protocol's `newcomer_epochs`, or 10.
            lr: in place of the run's learning rate.
            name: of the newcomer, for the card.
            label, inputs: columns of a table; by default those of the run.
            image_size, split: by default those of the run.

        >>> from fedloom.launch.start import run
        >>> new = run("fedper", rounds=2, clients=3, partition="iid").adapt("digits", epochs=1)
        >>> new.model.card.moment, [one.over for one in new.gains]
        ('adapted', ['received', 'alone'])
        """
        from fedloom.runs.adapted import adapt
        from fedloom.runs.newcomer_rows import Reading

        return adapt(self, data, epochs, lr, name, Reading(label, inputs, image_size, split))

    @property
    def value(self) -> float:
        """The number of the run, as its protocol defines it."""
        return self.summary.value

    @property
    def accuracy(self) -> float:
        """The same: of most runs it is an accuracy."""
        return self.summary.value

    def to_pandas(self) -> DataFrame:
        """Every score of the run: a row for each step, model, moment, split and client."""
        return scores_frame(self.records)

    def __repr__(self) -> str:
        summary = self.summary
        return (
            f"Result({summary.label}: {summary.metric} {summary.value:.4f},"
            f" {summary.rounds} rounds, {summary.clients} clients, seed {summary.seed})"
        )

    def _repr_html_(self) -> str:
        """The summary as a table, for notebooks."""
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in summary_rows(self.summary, self.records)
        )
        return f"<table><caption>{escape(self.summary.label)}</caption>{rows}</table>"


def summary_rows(summary: Summary, records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    """A run in words: name and value of every line."""
    result, joined = summary.result, summary.newcomers
    rows = [
        (words(result.metric), _shown(result)),
        ("worst 10 % of clients", metric(result.metric).shown(result.worst_decile)),
        ("tested", f"{result.at.model} model {_AT[result.at.moment]}{_rounds(summary)}"),
        *_other_moments(result, records),
        *_other_metrics(result, records),
    ]
    if joined is not None and joined != result:
        many = f"{len(joined.clients)} newcomer{'s' if len(joined.clients) > 1 else ''}"
        rows.append((f"{many}, after joining", _shown(joined)))
    if summary.privacy is not None:
        rows.append(("privacy", privacy_text(summary.privacy)))
    if summary.stopped:
        rows.append(("stopped early", summary.stopped))
    sent, received = (f"{n / 1e6:.2f} MB" for n in (summary.bytes_up, summary.bytes_down))
    rows += [
        ("protocol", summary.protocol),
        ("rounds, clients", f"{summary.rounds}, {summary.clients}"),
        ("sent, received by clients", f"{sent}, {received}"),
        ("seconds", f"{summary.seconds:.1f}"),
        ("state", summary.state_sha256[:16]),
        ("digest of the run", "not recorded" if summary.digest is None else summary.digest[:16]),
    ]
    return [*rows, ("run", summary.run)] if summary.run else rows


def privacy_text(spent: PrivacySpent) -> str:
    """What was told, in words."""
    text = f"{spent.level} level, epsilon {spent.epsilon:.4g} at delta {spent.delta:g}"
    if spent.epsilon_of_mean is None:
        return text
    return f"{text}; {spent.epsilon_of_mean:.4g} towards those who see means only"


def _shown(chosen: Chosen) -> str:
    of = metric(chosen.metric)
    return f"{of.shown(chosen.value)} ± {of.factor * chosen.std:.2f} over clients"


def _rounds(summary: Summary) -> str:
    """The rounds that count, in words; empty where they are all over."""
    result = summary.result
    if result.select == "best_test_per_client":
        return ", each client's best round"
    if max(result.rounds) > summary.rounds:
        return ""
    if len(result.rounds) > 1:
        return f", mean of rounds {', '.join(map(str, sorted(result.rounds)))}"
    return f", round {result.rounds[0]}"


def _other_moments(result: Chosen, records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    """What was scored last of the same model at other moments, on the same rows."""
    last: dict[Moment, tuple[int, Score]] = {}
    for record in records:
        for score in record.scores:
            if score.at == replace(result.at, moment=score.at.moment):
                last[score.at.moment] = (record.round, score)
    rows = []
    for moment, (number, score) in last.items():
        if moment != result.at.moment:
            spread = score.spread(result.metric)
            value = spread.weighted if result.average == "samples" else spread.mean
            few = len(score.clients) < len(result.clients)
            where = f", {len(score.clients)} of {len(result.clients)} clients" if few else ""
            shown = metric(result.metric).shown(value)
            rows.append((f"{_AT[moment]}, round {number}", f"{shown}{where}"))
    return rows


def _other_metrics(result: Chosen, records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    """Further metrics of the result's model in the last round that counts for it; a task's own
    are in the journal."""
    last = result.rounds[-1]
    scores = [s for r in records if r.round == last for s in r.scores if s.at == result.at]
    if not scores:
        return []
    rows = []
    for name in scores[0].metrics:
        if name not in (result.metric, "nll"):
            spread = scores[0].spread(name)
            value = spread.weighted if result.average == "samples" else spread.mean
            rows.append((f"{words(name)}, same model", metric(name).shown(value)))
    return rows


def scores_frame(records: Sequence[RoundRecord]) -> DataFrame:
    """Scores in long form; single heads and newcomers are rows like any other.

    >>> from fedloom.record import At, Score
    >>> score = Score(At("received", "test"), (0, 1), (5, 7), {"accuracy": (0.2, 0.4)})
    >>> step = RoundRecord(0, 1, "train", "model", (0, 1), None, 0, 0, 0.1, {}, (score,))
    >>> scores_frame([step])[["round", "moment", "client", "accuracy"]].values.tolist()
    [[1, 'received', 0, 0.2], [1, 'received', 1, 0.4]]
    """
    from pandas import DataFrame

    rows = [
        {
            "step": record.step,
            "round": record.round,
            "kind": record.kind,
            "group": score.at.group,
            "moment": score.at.moment,
            "split": score.at.split,
            "model": score.at.model,
            "client": client,
            "rows": score.rows[i],
            **{metric: values[i] for metric, values in score.metrics.items()},
        }
        for record in records
        for score in record.scores
        for i, client in enumerate(score.clients)
    ]
    return DataFrame(rows)
