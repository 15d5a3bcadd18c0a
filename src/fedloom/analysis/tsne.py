"""One t-SNE of several clients and snapshots together (DBE, FedBR and DualFed show such pictures).

Only points of one embedding can be compared, and then only who lies beside whom: distances between
clusters, their sizes and densities mean nothing. `neighbours` has the numbers that do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_matrix, distinct, same_width
from fedloom.analysis.geometry import principal_components
from fedloom.collector import paused
from fedloom.core.rng import generator
from fedloom.errors import BadInput

FEWEST_ROWS = 4


@dataclass(frozen=True)
class Settings:
    """Everything that decides where the points go; the papers give none of it."""

    perplexity: float = 30.0
    early_exaggeration: float = 12.0
    angle: float = 0.5
    components: int = 50
    """Principal components kept before the embedding; nothing is standardised."""
    seed: int = 0
    most_rows: int = 3000


@dataclass(frozen=True, eq=False)
class Panel:
    """The features of one client in one snapshot."""

    features: Array
    labels: Array
    client: int
    snapshot: str = ""


@dataclass(frozen=True, eq=False)
class Embedding:
    """Points in one plane, and where each came from."""

    points: Tensor
    """[n, 2]; NaN where fewer than four rows differ."""
    labels: Tensor
    clients: Tensor
    snapshots: tuple[str, ...]
    divergence: float
    """Kullback-Leibler divergence left, in nats."""
    iterations: int
    explained: float
    """Share of the variance that the principal components keep."""
    n: int
    different_rows: int
    """Rows embedded; equal rows share a point."""
    settings: Settings
    """As used: the perplexity is lowered to a third of the other rows where there are too few."""


def pick_rows(labels: Array, most: int = 100, seed: int = 0) -> Tensor:
    """Sorted numbers of at most `most` rows, the classes in their proportions.

    They depend on labels and seed alone, so that all snapshots show the same samples.

    >>> labels = torch.tensor([0] * 60 + [1] * 30)
    >>> labels[pick_rows(labels, 9)].bincount()
    tensor([6, 3])
    """
    known = as_labels(labels, len(labels))
    shuffled = torch.randperm(len(known), generator=generator(seed, "rows of a picture"))
    place = torch.empty(len(known), dtype=torch.float64)
    for label in distinct(known)[0]:
        own = shuffled[known[shuffled] == label]
        place[own] = (torch.arange(len(own)) + 0.5).double() / len(own)
    return shuffled[place[shuffled].argsort(stable=True)[:most]].sort().values


def joint_tsne(panels: Sequence[Panel], settings: Settings | None = None) -> Embedding:
    """All panels' rows in one embedding.

    >>> z = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(20) % 2
    >>> embedding = joint_tsne([Panel(z, y, 0, "before"), Panel(z + 9, y, 0, "after")])
    >>> embedding.points.shape, embedding.snapshots[20], embedding.settings.perplexity
    (torch.Size([40, 2]), 'after', 13.0)
    """
    settings = settings or Settings()
    if not panels:
        raise BadInput("t-SNE was given no panels; give at least one client's features")
    parts = [as_matrix(panel.features) for panel in panels]
    same_width(*parts)
    rows = torch.cat(parts)
    n = len(rows)
    if not FEWEST_ROWS <= n <= settings.most_rows:
        raise BadInput(
            f"t-SNE was given {n} rows; it takes {FEWEST_ROWS} to {settings.most_rows}"
            " (pick_rows thins them out, most_rows raises the limit)"
        )
    first, place = _different(rows)
    used = replace(settings, perplexity=min(settings.perplexity, (len(first) - 1) / 3))
    scores, explained = principal_components(rows[first], settings.components)
    points, divergence, iterations = _embed(scores, used)
    return Embedding(
        points=points[place],
        labels=torch.cat([as_labels(p.labels, len(z)) for p, z in zip(panels, parts, strict=True)]),
        clients=torch.cat(
            [torch.full((len(z),), p.client) for p, z in zip(panels, parts, strict=True)]
        ),
        snapshots=tuple(p.snapshot for p, z in zip(panels, parts, strict=True) for _ in z),
        divergence=divergence,
        iterations=iterations,
        explained=explained,
        n=n,
        different_rows=len(first),
        settings=used,
    )


def _different(rows: Tensor) -> tuple[list[int], list[int]]:
    """Where each different row comes first, and which of them each row is.

    Extractors that are still the same give equal rows. Barnes-Hut t-SNE leaves out the repulsion of
    points that coincide: 150 rows given twice came out 13 times too wide, at a negative divergence.
    """
    known: dict[bytes, int] = {}
    place = [known.setdefault(row.tobytes(), len(known)) for row in (rows + 0.0).numpy()]
    first = {one: row for row, one in reversed(list(enumerate(place)))}
    return [first[one] for one in range(len(known))], place


def _embed(scores: Tensor, settings: Settings) -> tuple[Tensor, float, int]:
    with paused():
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if len(scores) < FEWEST_ROWS or not scores.any():
        return torch.full((len(scores), 2), torch.nan).double(), float("nan"), 0
    if scores.shape[1] == 1:  # the initial plane needs a second column
        scores = torch.cat([scores, torch.zeros_like(scores)], 1)
    # Initialisation and learning rate are pinned: old versions of scikit-learn had others.
    embedder = TSNE(
        perplexity=settings.perplexity,
        early_exaggeration=settings.early_exaggeration,
        learning_rate="auto",
        init="pca",
        method="barnes_hut",
        angle=settings.angle,
        random_state=settings.seed,
    )
    with threadpool_limits(1):  # the order of its sums depends on the number of threads
        points = embedder.fit_transform(scores.numpy())
    return as_matrix(points), float(embedder.kl_divergence_), int(embedder.n_iter_)
