"""Was a row in the training? Scores of single rows, and how well they part members from others.

A score is larger for rows that were probably trained on. The members and the others must be rows of
one distribution (training and test rows of the same client), or a score tells distributions apart
and not membership.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import optimize, stats
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_logits, as_matrix
from fedloom.analysis.significance import Interval
from fedloom.errors import BadInput

FALSE_ALARMS = 0.01
"""The share of other rows that may be taken for members where only few mistakes are allowed."""
LEAST_SPREAD = 1e-6
"""Of scores under reference models; below it they all say the same."""


@dataclass(frozen=True)
class Membership:
    """How well scores part the members of a training set from other rows."""

    auc: float
    """Probability that a member scores higher than another row; 0.5 is a guess."""
    interval: Interval
    """95 % of the auc, by Newcombe's (2006) score interval; also where the auc is 0 or 1."""
    advantage: float
    """The largest share of members found less the share of others taken for members."""
    advantage_by_chance: float
    """What scores that tell nothing have there in the mean, for the threshold is the best of
    all: sqrt(pi/8 (1/n + 1/m))."""
    found: float
    """Share of members found with 1 % false alarms; of fewer than 100 others, with none."""
    found_interval: Interval
    """95 % (Clopper-Pearson) of `found`, with the threshold as it is."""
    members: int
    others: int


def membership(members: Array, others: Array) -> Membership:
    """How well scores tell `members` [n] from `others` [m].

    >>> told = membership(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]))
    >>> told.auc, told.advantage, told.found
    (1.0, 1.0, 1.0)
    """
    inside, outside = as_matrix(members, "scores"), as_matrix(others, "scores")
    if inside.shape[1] != 1 or outside.shape[1] != 1:
        raise BadInput("membership takes one score for each row; give vectors [n] and [m]")
    a, b = inside.flatten(), outside.flatten()
    n, m = len(a), len(b)
    ordered = b.sort().values
    below, not_above = (torch.searchsorted(ordered, a, right=right) for right in (False, True))
    auc = float((below + not_above).sum()) / (2 * n * m)  # a tie counts half
    thresholds = torch.cat([a, b])
    gap = _share_from(a, thresholds) - _share_from(b, thresholds)
    hits = int((a > ordered[m - 1 - math.floor(FALSE_ALARMS * m)]).sum())
    return Membership(
        auc=auc,
        interval=_auc_interval(auc, n, m),
        advantage=max(float(gap.max()), 0.0),
        advantage_by_chance=math.sqrt(math.pi / 8 * (1 / n + 1 / m)),
        found=hits / n,
        found_interval=_share_interval(hits, n),
        members=n,
        others=m,
    )


def log_odds(logits: Array, labels: Array) -> Tensor:
    """log p_y / (1 - p_y) of every row: its loss on a scale on which scores of one row under many
    models are nearly normal (Carlini et al., 2022). Alone it is the loss-threshold attack.

    >>> log_odds(torch.tensor([[2.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0]))
    tensor([ 2., -5.], dtype=torch.float64)
    """
    rows = as_logits(logits)
    y = as_labels(labels, len(rows), rows.shape[1])
    own = rows.gather(1, y[:, None]).squeeze(1)
    rest = rows.scatter(1, y[:, None], -torch.inf).logsumexp(1)
    return own - rest


def likelihood_ratio(scores: Array, without: Array, within: Array | None = None) -> Tensor:
    """Scores [n] against those of reference models [n, r] that were trained without the row, and,
    where there are some, of models that were trained with it (Carlini et al., 2022, LiRA).

    The logarithm of the ratio of two normal densities; without `within`, how many deviations the
    score lies above its mean. The means are each row's own; the deviation is that over all rows,
    which few reference models know better. With one reference model, the difference from it.

    >>> scores, references = torch.tensor([3.0, 1.0]), torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    >>> likelihood_ratio(scores, references)
    tensor([2., 0.], dtype=torch.float64)
    """
    own, out = as_matrix(scores, "scores").flatten(), as_matrix(without, "scores without")
    if len(out) != len(own):
        raise BadInput(f"{len(own)} rows have scores, and {len(out)} have those of references")
    z = (own - out.mean(1)) / _spread(out)
    if within is None:
        return z
    inside = as_matrix(within, "scores within")
    if len(inside) != len(own):
        raise BadInput(f"{len(own)} rows have scores, and {len(inside)} have those of references")
    spread = _spread(inside)
    z_in = (own - inside.mean(1)) / spread
    return (z.square() - z_in.square()) / 2 + math.log(_spread(out) / spread)


def _spread(scores: Tensor) -> float:
    """The deviation of a row's scores about their mean, over all rows."""
    if scores.shape[1] < 2:
        return 1.0
    return max(float(scores.var(1, correction=0).mean().sqrt()), LEAST_SPREAD)


def _share_from(scores: Tensor, thresholds: Tensor) -> Tensor:
    """Share of scores at or above each threshold."""
    below = torch.searchsorted(scores.sort().values, thresholds)
    return 1 - below / len(scores)


def _share_interval(hits: int, n: int) -> Interval:
    """Clopper and Pearson's, by quantiles of beta distributions."""
    low = stats.beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0
    high = stats.beta.ppf(0.975, hits + 1, n - hits) if hits < n else 1.0
    return float(low), float(high)


def _auc_interval(auc: float, n: int, m: int) -> Interval:
    """Where |theta - auc| = z sqrt(V(theta)), V by Hanley and McNeil with exponential scores and
    both sizes replaced by their mean (Newcombe's method 5)."""
    z, other = float(stats.norm.isf(0.025)), (n + m) / 2 - 1

    def beyond(theta: float) -> float:
        odds = 1 + other * (1 - theta) / (2 - theta) + other * theta / (1 + theta)
        return abs(theta - auc) - z * math.sqrt(theta * (1 - theta) * odds / (n * m))

    edge = 1e-9  # at 0 and 1 themselves the variance is none
    low = 0.0 if auc <= edge else optimize.brentq(beyond, edge, min(auc, 1 - edge))
    high = 1.0 if auc >= 1 - edge else optimize.brentq(beyond, max(auc, edge), 1 - edge)
    return float(low), float(high)
