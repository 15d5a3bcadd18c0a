"""What heads, updates and sums tell of a client's classes, on gradients that are computed."""

from __future__ import annotations

import pytest
import torch
from normals import normal
from torch import Tensor, nn

from fedloom.analysis import (
    labels_of_shares,
    present_classes,
    share_error,
    shares_of_bias,
    shares_of_counts,
    shares_of_update,
)
from fedloom.errors import BadInput

COUNTS = torch.tensor([5, 0, 2, 1])
LABELS = torch.arange(4).repeat_interleave(COUNTS)


def bias_gradient(head: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(head(x), y)
    return torch.autograd.grad(loss, [head.bias])[0]


def test_counts_from_one_step_of_a_new_head():
    """A head of zeros predicts 1/4 for all: db = -lr (1/4 - shares), so shares are exact."""
    head = nn.Linear(3, 4)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    change = -0.1 * bias_gradient(head, normal(8, 3).float(), LABELS)
    shares = shares_of_bias(change, moved=0.1)
    assert torch.allclose(shares, COUNTS.double() / 8, atol=1e-6)
    assert torch.equal(labels_of_shares(shares, 8), LABELS)


def test_counts_from_a_trained_head_need_its_predictions():
    """db = lr (s - P's) with P the mean prediction for rows of each class: exact with the client's
    own P, and wrong where all classes are taken to be predicted alike."""
    torch.manual_seed(0)
    head, x = nn.Linear(3, 4), 3 * normal(8, 3).float()
    change = -0.1 * bias_gradient(head, x, LABELS)
    with torch.no_grad():
        p = head(x).softmax(1)
        of_class = torch.stack(
            [p[c == LABELS].mean(0) if COUNTS[c] else torch.full((4,), 0.25) for c in range(4)]
        )
    assert share_error(shares_of_bias(change, 0.1, of_class), COUNTS) < 1e-5
    assert share_error(shares_of_bias(change, 0.1), COUNTS) > 0.05


def test_shares_from_a_body_whose_head_stayed_at_home():
    """The mean gradient is the mixture of the classes' gradients, by shares; and any multiple."""
    torch.manual_seed(0)
    body, head = nn.Linear(3, 6), nn.Linear(6, 4)

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(head(body(x).relu()), y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(body.parameters()))])

    x = normal(40, 3).float()
    y = torch.arange(4).repeat(10)
    per_class = torch.stack([gradient(x[y == c], y[y == c]) for c in range(4)])
    some = torch.cat([torch.arange(40)[y == c][:10] for c in (0, 2)])
    assert torch.allclose(
        shares_of_update(7 * gradient(x[some], y[some]), per_class),
        torch.tensor([0.5, 0, 0.5, 0]).double(),
        atol=1e-4,
    )


def test_what_is_sent_for_classes_shows_which_there_are():
    sums = torch.zeros(4, 5).index_add_(0, LABELS, torch.ones(8, 5))
    assert present_classes(sums).tolist() == [True, False, True, True]
    assert torch.equal(shares_of_counts(sums[:, 0]), COUNTS.double() / 8)


def test_error_is_the_share_of_rows_in_wrong_classes():
    """Of 8 rows, 5 0 2 1 against 4 1 2 1: one row in a wrong class."""
    assert share_error(torch.tensor([4, 1, 2, 1]), COUNTS) == pytest.approx(1 / 8)
    assert share_error(torch.tensor([0, 1, 0, 0]), COUNTS) == 1.0


def test_nothing_sent_is_no_knowledge():
    assert shares_of_counts(torch.zeros(4)).tolist() == [0.25] * 4


def test_bad_input():
    with pytest.raises(BadInput, match="a row for each class"):
        shares_of_bias(torch.zeros(4), 1.0, torch.zeros(3, 4))
