"""Ridge regression from sums that clients can add up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def normal_equations(z: Tensor, y: Tensor, classes: int) -> dict[str, Tensor]:
    """Z'Z [d, d] and Z'Y [d, K] of features [n, d] and labels [n], in float64."""
    wide = z.double()  # products of float32 would lose half their digits
    return {"zz": wide.T @ wide, "zy": wide.T @ F.one_hot(y, classes).double()}


def ridge_solution(zz: Tensor, zy: Tensor, lam: float) -> Tensor:
    """argmin_B |Z B - Y|^2 + lam |B|^2 = (Z'Z + lam I)^-1 Z'Y, [d, K].

    >>> ridge_solution(torch.tensor([[3.0]]), torch.tensor([[2.0]]), 1.0)
    tensor([[0.5000]])
    """
    solution: Tensor = torch.linalg.solve(zz + lam * torch.eye(len(zz), dtype=zz.dtype), zy)
    return solution
