"""Ending a training that no longer improves."""

from __future__ import annotations

from dataclasses import dataclass

from fedloom.core.metrics import metric
from fedloom.record import RoundRecord
from fedloom.runs.choice import monitored, monitored_rows
from fedloom.runs.watcher import RunView, Stop, Watcher


@dataclass(frozen=True)
class EarlyStop(Watcher):
    """Ends the training when its best evaluation is `evaluations` old, as DBE's program does.

    It looks at the curve of the run, on validation rows where they are scored, and on the split
    that the protocol reports where there are none. The first of equal evaluations is the best.
    """

    evaluations: int

    def step(self, run: RunView, record: RoundRecord) -> Stop | None:
        """Stop, if no newer evaluation is better than one that is so old."""
        if record.headline is None:
            return None
        numbers = [(r.round, monitored(run.experiment.protocol, r)) for r in run.records]
        curve = [(t, value) for t, value in numbers if value is not None]
        gain = metric(record.headline.metric).gain
        best, highest = max(curve, key=lambda one: gain(one[1]))
        since = sum(t > best for t, _ in curve)
        if since < self.evaluations:
            return None
        return Stop(
            f"no evaluation after round {best} was better than its {highest:.4f} on"
            f" {monitored_rows(record)} rows (early_stop = {self.evaluations})"
        )
