"""What taking part brings each client: its accuracy less that of training alone (`local`).

Both with the same architecture, steps, seed and test rows, and each at the round its protocol
selects. Accuracy on a shared balanced test set and on clients' own rows do not compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from fedloom.analysis.evenness import noise_variance
from fedloom.analysis.significance import mcnemar
from fedloom.analysis.tables import Numbers, row_counts, same_length, shares, table, vector
from fedloom.errors import BadInput


@dataclass(frozen=True)
class Gain:
    """Differences per client, in the order given."""

    gains: tuple[float, ...]
    errors: tuple[float, ...]
    """Standard errors of the gains."""
    n: tuple[int, ...]
    """Test rows."""
    mean: float
    median: float
    worst: float
    worst_client: int
    """Position of the client that loses most or gains least."""
    helped: float
    """Share of clients whose gain is above 0 and outside its 95 % interval around 0."""
    harmed: float
    """The same below 0."""
    positive: float
    """Share above 0: half of the clients that change at all, if nothing happened."""
    sign_p: float
    """Sign test of that half; 1 if no client changes."""


def gain(
    method: ArrayLike, local: ArrayLike, n: ArrayLike, disagreements: ArrayLike | None = None
) -> Gain:
    """Gain over Local from clients' accuracies and numbers of test rows.

    `disagreements`: per client (rows only the method gets right, rows only Local gets right), see
    `significance.disagreements`; they make errors exact. A journal holds only accuracies; from
    these alone the errors are those of independent models, too wide where models agree.

    >>> gained = gain([0.8, 0.7], [0.6, 0.7], [100, 100])
    >>> round(gained.mean, 3), gained.helped, gained.harmed
    (0.1, 0.5, 0.0)
    """
    a, b, rows = shares(method, "method"), shares(local, "local"), row_counts(n)
    same_length(method=a, local=b, n=rows)
    gains = np.round(a - b, 12)  # so that .9 - .8 equals .3 - .2
    if disagreements is None:
        errors = np.sqrt((a * (1 - a) + b * (1 - b)) / rows)
    else:
        errors = _paired_errors(table(disagreements, "disagreements"), gains, rows)
    clear = np.abs(gains) > stats.norm.isf(0.025) * errors
    up, down = int((gains > 0).sum()), int((gains < 0).sum())
    return Gain(
        gains=tuple(gains.tolist()),
        errors=tuple(errors.tolist()),
        n=tuple(int(rows_of) for rows_of in rows),
        mean=float(gains.mean()),
        median=float(np.median(gains)),
        worst=float(gains.min()),
        worst_client=int(gains.argmin()),
        helped=float((clear & (gains > 0)).mean()),
        harmed=float((clear & (gains < 0)).mean()),
        positive=up / len(gains),
        sign_p=mcnemar(up, down).p,  # the same binomial test, of clients instead of rows
    )


def plain_gain(gains: ArrayLike, n: ArrayLike) -> Gain:
    """The same of a metric whose noise cannot be told from the number of rows: errors are not
    known (NaN), and every client whose number moves counts as helped or harmed.

    >>> plain_gain([0.5, -1.0], [10, 20]).harmed
    0.5
    """
    changes, rows = np.round(vector(gains, "gains"), 12), row_counts(n)
    same_length(gains=changes, n=rows)
    up, down = int((changes > 0).sum()), int((changes < 0).sum())
    return Gain(
        gains=tuple(changes.tolist()),
        errors=(math.nan,) * len(changes),
        n=tuple(int(rows_of) for rows_of in rows),
        mean=float(changes.mean()),
        median=float(np.median(changes)),
        worst=float(changes.min()),
        worst_client=int(changes.argmin()),
        helped=up / len(changes),
        harmed=down / len(changes),
        positive=up / len(changes),
        sign_p=mcnemar(up, down).p,
    )


def _paired_errors(counts: Numbers, gains: Numbers, rows: Numbers) -> Numbers:
    """sqrt(b + c - (b - c)^2 / n) / n."""
    if counts.shape != (len(gains), 2):
        raise BadInput(f"disagreements need two counts for each of {len(gains)} clients")
    b, c = counts.T
    if not np.allclose((b - c) / rows, gains, atol=1e-6) or (b + c > rows).any():
        raise BadInput("disagreements and accuracies are not of the same rows; check their order")
    errors: Numbers = np.sqrt(b + c - (b - c) ** 2 / rows) / rows
    return errors


@dataclass(frozen=True)
class Trend:
    """Do those gain most who do worst alone?"""

    correlation: float
    """NaN if there is no spread on one of the axes."""
    clients: int
    axis: Literal["another Local seed", "mean of method and Local"]
    artefact: float
    """What gain against *the same* Local accuracy would show without any effect."""


def trend(
    method: ArrayLike, local: ArrayLike, n: ArrayLike, other_local: ArrayLike | None = None
) -> Trend:
    """Correlation over clients of gain with what a client reaches alone.

    Never against the same Local run, whose noise is on both axes: against another seed of Local,
    or against the mean of method and Local. Without an effect the first would show
    -e / sqrt(2 (v + e^2)), with e^2 the mean noise of an accuracy and v the variance of the true
    ones, given as `artefact`.

    >>> trend([0.7, 0.8, 0.9], [0.4, 0.7, 0.9], [50, 50, 50], [0.5, 0.6, 0.9]).axis
    'another Local seed'
    """
    a, b, rows = shares(method, "method"), shares(local, "local"), row_counts(n)
    x = (a + b) / 2 if other_local is None else shares(other_local, "other_local")
    same_length(method=a, local=b, n=rows, other_local=x)
    spread = len(a) > 1 and np.ptp(a - b) > 1e-12 and np.ptp(x) > 1e-12
    return Trend(
        correlation=float(np.corrcoef(a - b, x)[0, 1]) if spread else math.nan,
        clients=len(a),
        axis="mean of method and Local" if other_local is None else "another Local seed",
        artefact=_artefact(b, rows),
    )


def _artefact(local: Numbers, rows: Numbers) -> float:
    """The observed variance of Local's accuracies estimates v + e^2."""
    observed = local.var(ddof=1) if len(local) > 1 else 0.0
    return -math.sqrt(noise_variance(local, rows) / (2 * observed)) if observed > 0 else math.nan
