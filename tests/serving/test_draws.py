"""Random numbers of a prediction, drawn once."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor
from torch.distributions import Normal

from fedloom import BadInput
from fedloom.serving.draws import FixedDraws, draws_of


def test_every_row_gets_what_was_drawn_for_one() -> None:
    def predict(x: Tensor) -> Tensor:
        return x + torch.randn(len(x), 2) + torch.rand_like(x)

    drawn = draws_of(predict, torch.zeros(1, 2), Generator().manual_seed(0))
    with FixedDraws(drawn):
        predicted = predict(torch.zeros(3, 2))
    assert torch.equal(predicted, (drawn[0] + drawn[1]).expand(3, 2))


@pytest.mark.parametrize(
    "predict",
    [
        lambda x: x + torch.normal(0.0, 1.0, x.shape),
        lambda x: x + torch.empty_like(x).uniform_(),
        lambda x: Normal(x, torch.ones_like(x)).sample(),
    ],
)
def test_draws_that_cannot_be_kept_are_refused(predict: object) -> None:
    with pytest.raises(BadInput, match=r"draws by normal|draws by uniform_"):
        draws_of(predict, torch.zeros(1, 2), Generator())  # type: ignore[arg-type]
