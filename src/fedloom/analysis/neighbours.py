"""Who a sample's neighbours are, in the original space: the numbers behind a t-SNE picture."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_matrix, distinct
from fedloom.analysis.geometry import squared_distances
from fedloom.errors import BadInput

NEIGHBOURS = 10


@dataclass(frozen=True)
class Purity:
    """Mean share of a row's neighbours that belong to its own group; NaN without neighbours."""

    value: float
    null: float
    """What groups mixed at random give: near sum of p_i^2, the row itself left out."""
    n: int
    """Rows that have a neighbour."""
    k: int


def neighbour_shares(squared: Tensor, groups: Tensor, count: int, k: int) -> Tensor:
    """Share of each row's k nearest others in each group [n, count], from distances [n, n].

    Rows equally far as the k-th share what is left, so that the order of rows is of no matter.

    >>> line = squared_distances(torch.tensor([[0.0], [1.0], [3.0], [5.0]]).double())
    >>> neighbour_shares(line, torch.tensor([0, 1, 0, 1]), 2, 1)
    tensor([[0., 1.],
            [1., 0.],
            [0., 1.],
            [1., 0.]], dtype=torch.float64)
    """
    others = squared.clone().fill_diagonal_(torch.inf)
    limit = others.kthvalue(k, dim=1, keepdim=True).values
    member = F.one_hot(groups, count).to(squared.dtype)
    nearer, level = (others < limit).to(squared.dtype), (others == limit).to(squared.dtype)
    left = k - nearer.sum(1, keepdim=True)
    return (nearer @ member + level @ member * left / level.sum(1, keepdim=True)) / k


def neighbour_purity(z: Array, groups: Array, k: int = NEIGHBOURS) -> Purity:
    """Of the k nearest other rows, the share of the same group (client or label).

    >>> neighbour_purity(torch.tensor([0.0, 1, 100, 101]), torch.tensor([0, 0, 1, 1]), k=1)
    Purity(value=1.0, null=0.3333333333333333, n=4, k=1)
    """
    rows = as_matrix(z)
    member = as_labels(groups, len(rows), name="groups")
    return _pooled(rows, member, torch.zeros_like(member), k)


def purity_within_classes(z: Array, clients: Array, labels: Array, k: int = NEIGHBOURS) -> Purity:
    """Client purity with neighbours sought among rows of the same label only.

    This takes away what clients differ in by their label mix; after minus before local training
    is the number for representation bias (DBE).

    >>> z, clients = torch.tensor([0.0, 1, 5, 6]), torch.tensor([0, 1, 0, 1])
    >>> purity_within_classes(z, clients, torch.tensor([0, 0, 1, 1])).value
    0.0
    """
    rows = as_matrix(z)
    groups = as_labels(clients, len(rows), name="clients")
    return _pooled(rows, groups, as_labels(labels, len(rows)), k)


def silhouette(z: Array, groups: Array) -> float:
    """Mean silhouette by client or by label; NaN with one group or with none larger than one row.

    >>> round(silhouette(torch.tensor([0.0, 1, 100, 101]), torch.tensor([0, 0, 1, 1])), 3)
    0.99
    """
    from sklearn.metrics import silhouette_score

    rows = as_matrix(z)
    member = as_labels(groups, len(rows), name="groups")
    if not 1 < len(distinct(member)[0]) < len(rows):
        return float("nan")
    distances = squared_distances(rows).sqrt().numpy()
    return float(silhouette_score(distances, member.numpy(), metric="precomputed"))


def _pooled(rows: Tensor, groups: Tensor, among: Tensor, k: int) -> Purity:
    """Purity over all rows, each seeking neighbours among the rows of its own part."""
    if k < 1:
        raise BadInput(f"k is {k}; a purity needs at least one neighbour")
    count = int(groups.max()) + 1
    same, mixed, used = 0.0, 0.0, 0
    for part in distinct(among)[0]:
        own = (among == part).nonzero().flatten()
        if (n := len(own)) < 2:
            continue
        member = groups[own]
        shares = neighbour_shares(squared_distances(rows[own]), member, count, min(k, n - 1))
        same += float(shares.gather(1, member[:, None]).sum())
        sizes = member.bincount().double()
        mixed += float((sizes * (sizes - 1)).sum() / (n - 1))
        used += n
    if not used:
        return Purity(float("nan"), float("nan"), 0, k)
    return Purity(same / used, mixed / used, used, k)
