"""Stochastic representations: a layer that makes a Gaussian of each input, and one that draws."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.batched_layers import side_by_side
from fedloom.core.net import Net
from fedloom.errors import BadInput

SMALLEST = 1e-6
"""Of the learned deviations: the square of its inverse is still far from overflow."""


class Gaussian(nn.Module):
    """A diagonal Gaussian per input, its mean and its standard deviation: [n, d] -> [n, 2, V].

    FedCR writes the second half as the diagonal of a covariance and uses it as a standard
    deviation everywhere; so does this. A fixed `deviation` stands in for the learned one.

    >>> mean, deviation = Gaussian(8, 3)(torch.zeros(5, 8)).unbind(1)
    >>> mean.shape, bool((deviation > 0).all())
    (torch.Size([5, 3]), True)
    """

    def __init__(self, width: int, dims: int, deviation: float | None = None) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 2 * dims)
        self.deviation = deviation

    def forward(self, x: Tensor) -> Tensor:
        mean, rho = self.fc(x.flatten(1)).chunk(2, dim=-1)
        if self.deviation is not None:
            return torch.stack([mean, torch.full_like(mean, self.deviation)], dim=1)
        return torch.stack([mean, F.softplus(rho).clamp_min(SMALLEST)], dim=1)

    def side_by_side(self, x: Tensor) -> Tensor:
        """The same of several clients at once (`core.batched_layers`); softplus goes by client."""
        mean, rho = side_by_side(self.fc, x.flatten(2)).chunk(2, dim=-1)
        if self.deviation is not None:
            return torch.stack([mean, torch.full_like(mean, self.deviation)], dim=2)
        deviation = torch.stack([F.softplus(one) for one in rho])
        return torch.stack([mean, deviation.clamp_min(SMALLEST)], dim=2)


class Sample(nn.Module):
    """Monte-Carlo samples of a `Gaussian`, in training and in prediction: [n, 2, V] -> [n, S, V].

    Drawn from torch's default stream, which the caller seeds; deviations of 0 give the mean.
    """

    draws = True

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples

    def forward(self, gaussian: Tensor) -> Tensor:
        mean, deviation = gaussian.unsqueeze(1).unbind(2)  # [n, 1, V] each
        n, _, dims = mean.shape
        noise = torch.randn(n, self.samples, dims, dtype=mean.dtype, device=mean.device)
        return mean + deviation * noise

    def extra_repr(self) -> str:
        return f"samples={self.samples}"


def stochastic(
    shape: tuple[int, ...], body: nn.Module, width: int, classes: int, dims: int, samples: int
) -> Net:
    """Trunk and head, with stages `gauss` and `sample` between them where `dims` is not zero."""
    if dims < 0 or samples < 1:
        raise BadInput(
            f"gaussian={dims} and samples={samples}: the first is 0 or more, the second 1 or more"
        )
    if dims == 0:
        return Net(shape, body=body, head=nn.Linear(width, classes))
    return Net(
        shape,
        body=body,
        gauss=Gaussian(width, dims),
        sample=Sample(samples),
        head=nn.Linear(dims, classes),
    )
