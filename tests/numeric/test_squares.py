"""Mean squares by hand, and to the bit those of torch's own loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedloom.ops.squares import mean_squares


def test_means_and_slopes_of_two_side_by_side() -> None:
    """x = (1, 3) and (0, 2), y = (0, 1): gaps (1, 2) and (0, 1), means 5/2 and 1/2.

    Each mean's slope is 2/2 of its gaps, here times what arrives: 4 for the first, -1 for the
    second. Of y, which both share, the slopes are minus their sum: -(4, 8) - (0, -1) = (-4, -7).
    """
    x = torch.tensor([[1.0, 3.0], [0.0, 2.0]], requires_grad=True)
    y = torch.tensor([0.0, 1.0], requires_grad=True)
    means = mean_squares(x, y, dims=1)
    assert means.tolist() == [2.5, 0.5]
    of_x, of_y = torch.autograd.grad((means * torch.tensor([4.0, -1.0])).sum(), (x, y))
    assert of_x.tolist() == [[4.0, 8.0], [0.0, -1.0]]
    assert of_y.tolist() == [-4.0, -7.0]


@pytest.mark.parametrize("shape", [(1,), (7,), (33,), (80,), (512,), (5, 3, 3)])
def test_to_the_bit_the_loss_of_each(shape: tuple[int, ...]) -> None:
    """Widths that are no powers of two, where 2/n times a gap is rounded."""
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(6, *shape, generator=gen).requires_grad_()
    y = torch.randn(shape, generator=gen)
    strength = torch.tensor(0.3)
    together = strength * mean_squares(x, y, dims=len(shape))
    (slopes,) = torch.autograd.grad(together.sum(), x)
    for one, value, slope in zip(x.detach(), together, slopes, strict=True):
        alone = one.clone().requires_grad_()
        for loss in (F.mse_loss(alone, y), mean_squares(alone, y, dims=len(shape))):
            (expected,) = torch.autograd.grad(strength * loss, alone)
            assert torch.equal(strength * loss, value)
            assert torch.equal(expected, slope)


def test_slopes_and_their_slopes() -> None:
    x = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    y = torch.randn(4, dtype=torch.double, requires_grad=True)

    def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mean_squares(x, y, 1)

    assert torch.autograd.gradcheck(summed, (x, y))
    assert torch.autograd.gradgradcheck(summed, (x, y))
