"""Does a reconstruction show which row it came from?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedloom.analysis.arrays import Array, as_matrix, same_width
from fedloom.errors import BadInput

MARGIN = 0.5
"""A row is clearly the nearest where the second nearest candidate is at least twice as far."""
EXACT = 0.01
"""Relative distance of a row that is as good as read."""


@dataclass(frozen=True)
class Identification:
    """Reconstructions against candidates, some of which the client holds.

    A reconstruction points to a candidate where that is clearly the nearest (`MARGIN`). Mere
    nearness would always point to somebody; that other people's rows are hardly ever pointed to
    (`mistaken`) shows that the margin is no accident.
    """

    rows: tuple[int, ...]
    """The client's rows that some reconstruction points to."""
    mistaken: tuple[int, ...]
    """Candidates that are not the client's and are pointed to all the same."""
    exact: tuple[int, ...]
    """The client's rows that some reconstruction is within 1 % of, by length."""
    mse: float
    """Mean over reconstructions of the mean square distance to the nearest row of the client."""
    psnr: float
    """The same in decibels, by the range of the client's rows."""
    reconstructions: int
    candidates: int


def identify(reconstructions: Array, rows: Array, others: Array) -> Identification:
    """Compare reconstructions [r, d] with a client's rows [n, d] and rows of others [m, d].

    `others` are of the same distribution, e.g. its test rows and other clients' rows. Rows that
    occur twice point to nobody.

    >>> rows, others = torch.eye(3), -torch.eye(3)
    >>> found = identify(torch.tensor([[0.9, 0.0, 0.1]]), rows, others)
    >>> found.rows, found.mistaken, found.exact
    ((0,), (), ())
    """
    guesses, own, rest = as_matrix(reconstructions), as_matrix(rows), as_matrix(others)
    same_width(own, guesses, rest)
    candidates = torch.cat([own, rest])
    if len(candidates) < 2:
        raise BadInput("one candidate is always the nearest; give at least two")
    distance = torch.cdist(guesses, candidates)
    nearest, at = distance.topk(2, dim=1, largest=False)
    clear = sorted(set(at[:, 0][nearest[:, 0] < MARGIN * nearest[:, 1]].tolist()))
    to_own = distance[:, : len(own)]
    near, which = to_own.min(1)
    close = near <= EXACT * own[which].norm(dim=1)
    mse = float((near.square() / own.shape[1]).mean())
    extent = float(own.max() - own.min())
    return Identification(
        rows=tuple(i for i in clear if i < len(own)),
        mistaken=tuple(i - len(own) for i in clear if i >= len(own)),
        exact=tuple(sorted(set(which[close].tolist()))),
        mse=mse,
        psnr=10 * math.log10(extent**2 / mse) if mse > 0 and extent > 0 else math.inf,
        reconstructions=len(guesses),
        candidates=len(candidates),
    )
