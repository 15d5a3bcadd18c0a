"""Minimum description length of labels given a representation.

How long a message must be to tell the labels to a receiver who has the features, when both sides
train the same probe as labels come in. It grows with n: compare only equal n, classes and label
laws, and relative changes rather than the values in DBE's tables, whose protocol is not published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_matrix
from fedloom.analysis.code_length import CodeLength, area, fraction_sizes, log_sizes, online
from fedloom.analysis.mlp_probe import MLPProbe
from fedloom.analysis.probe import Fitted, Probe
from fedloom.analysis.ridge_probe import RidgeProbe
from fedloom.core.rng import generator
from fedloom.errors import BadInput, UnknownName

Key = TypeVar("Key")

PROBES: dict[str, Callable[[], Probe]] = {"ridge": RidgeProbe, "mlp": MLPProbe}


def mdl_reprieve(
    z: Array,
    y: Array,
    classes: int,
    *,
    probe: Probe | str = "ridge",
    sizes: Sequence[int] | None = None,
    validation: int | None = None,
    shuffle_seed: int | None = 0,
) -> CodeLength:
    """Area under the validation loss over training sizes, as the package `reprieve` defines it.

    `validation` rows are held out, a tenth by default. With `probe="mlp"` and without a
    `shuffle_seed` this is that package's definition: it holds out the last rows as they come.

    >>> y = torch.arange(100) % 2
    >>> code = mdl_reprieve(F.one_hot(y), y, 2)
    >>> code.n, round(code.ratio, 2)
    (90, 0.07)
    """
    x, labels = _shuffled(z, y, classes, shuffle_seed)
    held = -(-len(x) // 10) if validation is None else validation
    pool = len(x) - held
    if held < 1 or pool < 1:
        raise BadInput(f"{held} of {len(x)} rows for validation; leave some on both sides")
    reader = _named(probe)
    x = reader.prepare(x, pool, pool)
    ends = log_sizes(pool) if sizes is None else _checked(sizes, pool)
    curve = []
    for size in ends:
        losses = []
        for seed in range(reader.seeds):
            draw = (shuffle_seed, seed) if reader.nested else (shuffle_seed, seed, size)
            rows = torch.randperm(pool, generator=generator("subset", *draw))[:size]
            fitted = reader.fit(x[rows], labels[rows], classes, (shuffle_seed, seed, size))
            losses.append(_loss(fitted, x[pool:], labels[pool:]))
        curve.append(sum(losses) / len(losses))
    return CodeLength(ends, tuple(curve), area(ends, curve), classes, _entropy(labels))


def mdl_online(
    z: Array,
    y: Array,
    classes: int,
    sizes: Sequence[int] | None = None,
    *,
    probe: Probe | str = "ridge",
    shuffle_seed: int | None = 0,
) -> CodeLength:
    """Online code of Voita and Titov (2020): each block costs what the probe before it predicts.

    The first block is coded uniformly. Features are whitened over all rows, since the receiver has
    them from the start.

    >>> y = torch.arange(100) % 2
    >>> code = mdl_online(F.one_hot(y), y, 2, [10, 100])
    >>> code.n, [round(block, 2) for block in code.blocks]
    (100, [6.93, 10.39])
    """
    x, labels = _shuffled(z, y, classes, shuffle_seed)
    reader = _named(probe)
    ends = fraction_sizes(len(x)) if sizes is None else _checked(sizes, len(x))
    x = reader.prepare(x, len(x), max(ends[:-1], default=len(x)))
    curve = []
    for start, end in pairwise(ends):
        fitted = reader.fit(x[:start], labels[:start], classes, (shuffle_seed, 0, start))
        curve.append(_loss(fitted, x[start:end], labels[start:end]))
    return CodeLength(ends, tuple(curve), online(ends, curve, classes), classes, _entropy(labels))


def mdl_table(
    features: Mapping[Key, Array],
    labels: Array | Mapping[Key, Array],
    classes: int,
    *,
    measure: Callable[..., CodeLength] = mdl_reprieve,
    **options: Any,
) -> dict[Key, CodeLength]:
    """`measure` of many matrices, say one for each (client, layer).

    One vector of labels means the same rows, subsets and held-out rows for all of them.

    >>> y = torch.arange(20) % 2
    >>> table = mdl_table({("a", "fc1"): F.one_hot(y), ("b", "fc1"): torch.zeros(20, 3)}, y, 2)
    >>> table["a", "fc1"].nats < table["b", "fc1"].nats
    True
    """

    def one(key: Key) -> CodeLength:
        own = labels[key] if isinstance(labels, Mapping) else labels
        return measure(features[key], own, classes, **options)

    return {key: one(key) for key in features}


def _shuffled(z: Array, y: Array, classes: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """Checked rows in a random order, or as they come."""
    x = as_matrix(z)
    labels = as_labels(y, len(x), classes)
    if seed is None:
        return x, labels
    order = torch.randperm(len(x), generator=generator("shuffle", seed))
    return x[order], labels[order]


def _named(probe: Probe | str) -> Probe:
    if not isinstance(probe, str):
        return probe
    if probe not in PROBES:
        raise UnknownName("probe", probe, PROBES)
    return PROBES[probe]()


def _checked(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    if not sizes or any(a >= b for a, b in pairwise((0, *sizes, most + 1))):
        raise BadInput(f"sizes {list(sizes)} must rise from at least 1 to at most {most}")
    return tuple(sizes)


def _loss(fitted: Fitted, x: Tensor, y: Tensor) -> float:
    """Mean cross-entropy in nats."""
    return float(F.nll_loss(fitted(x), y))


def _entropy(y: Tensor) -> float:
    shares = torch.bincount(y).double() / len(y)
    return float(torch.special.entr(shares).sum())
