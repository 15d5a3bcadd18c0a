"""How much one reply may weigh: bounds on the rows it claims and on the size of its numbers.

A site says itself how many rows it has, and a mean follows whoever claims most; numbers that are
finite can still be so large that nobody can go on from them. A reply beyond a bound is refused,
never changed: what counts is what was sent, and honest runs keep their bytes. Replies of one round
are compared with each other where there are enough of them to have a majority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fedloom.core.message import Up
from fedloom.core.net import METHOD
from fedloom.core.score import ClientScore
from fedloom.engines import Job

MAJORITY = 3
"""Replies among which a single one cannot move the median."""
LARGEST_UPDATE = 100.0
"""How many times as long as the model that was sent an update may be, whoever else replies."""
LARGEST_ENTRY = 1e6
"""The same for what a method sends beside the model, by the root mean square of its entries."""


@dataclass(frozen=True)
class Bounds:
    """What the replies of a round must keep to."""

    most_rows: int = 1_000_000
    rows_ratio: float = 100.0
    """How many times the median of the round a reply may claim in rows."""
    norm_ratio: float = 10.0
    """How many times the median of the round an update may be in length. A site with more rows
    takes more steps, so that its bound is larger by as much."""

    def objections(self, replies: Mapping[int, tuple[Job, Up]]) -> dict[int, str]:
        """Client -> why its reply does not count, of those whose replies do not."""
        objections = {
            cid: why for cid, reply in replies.items() if (why := self._alone(*reply)) is not None
        }
        left = {cid: reply for cid, reply in replies.items() if cid not in objections}
        if len(left) < MAJORITY:
            return objections
        rows = {cid: float(up.n) for cid, (_, up) in left.items()}
        norms = {cid: _update_norm(*reply) for cid, reply in left.items()}
        usual_rows, usual_norm = median(rows.values()), median(norms.values())
        for cid in left:
            times = rows[cid] / usual_rows
            if times > self.rows_ratio:
                objections[cid] = (
                    f"it claims {rows[cid]:.0f} rows, {times:.0f} times the median of the round;"
                    f" most-rows-ratio is {self.rows_ratio:g}"
                )
            elif norms[cid] > self.norm_ratio * max(1.0, times) * usual_norm > 0:
                objections[cid] = (
                    f"its update is {norms[cid] / usual_norm:.0f} times as long as the median of"
                    f" the round; most-norm is {self.norm_ratio:g}"
                )
        return objections

    def objection_to_scores(self, scores: Iterable[ClientScore]) -> str:
        """Why scores do not count; empty if they do: means over sites are weighted by rows."""
        most = max((score.rows for score in scores), default=0)
        if most <= self.most_rows:
            return ""
        return f"a score is of {most} rows; most-rows is {self.most_rows}"

    def _alone(self, job: Job, up: Up) -> str | None:
        """What is wrong with a reply, whatever the others are."""
        if up.n > self.most_rows:
            return f"it claims {up.n} rows; most-rows is {self.most_rows}"
        base = max(1.0, _norm(job.down.state.get(METHOD, {})))
        if (norm := _update_norm(job, up)) > LARGEST_UPDATE * base:
            return f"its update is {norm / base:.3g} times as long as the model it was sent"
        for name, tree in up.state.items():
            if name != METHOD and (size := _root_mean_square(tree)) > LARGEST_ENTRY * max(
                1.0, _root_mean_square(job.down.state.get(name, {}))
            ):
                return f"the numbers in {name!r} are too large ({size:.3g})"
        return None


def _update_norm(job: Job, up: Up) -> float:
    """Length of the difference between the model that was sent and the one that came back."""
    sent, came = job.down.state.get(METHOD, {}), up.state.get(METHOD, {})
    return _norm({k: v.double() - sent[k].double() if k in sent else v for k, v in came.items()})


def _norm(tree: Mapping[str, Tensor]) -> float:
    return float(sum(_square(v) for v in tree.values()) ** 0.5)


def _root_mean_square(tree: Mapping[str, Tensor]) -> float:
    entries = sum(v.numel() for v in tree.values())
    return float((sum(_square(v) for v in tree.values()) / max(1, entries)) ** 0.5)


def _square(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value.double()) ** 2)
