"""Clipping, noise, epsilon and DP-SGD, worked by hand."""

from __future__ import annotations

from math import erf, exp, sqrt

import pytest
import torch
from torch import Tensor

from fedloom.core.accountant import epsilon, mechanisms_told
from fedloom.core.example_gradients import clipped_sum
from fedloom.core.message import Plan
from fedloom.core.noise_source import SecretNoise, SeededNoise
from fedloom.core.privacy import ClientPrivacy, ExamplePrivacy, parse_privacy
from fedloom.errors import BadInput

SILENT = 1e-12
PLAN = Plan(1, seed=0)


def hidden(privacy: ClientPrivacy, up: dict, received: dict, cid: int = 0, plan: Plan = PLAN):
    return privacy.hidden(up, received, SeededNoise(plan, cid))


# ------------------------------------------------------------------ uploads


def test_all_slices_are_clipped_together() -> None:
    """The model moved by (3, 0); a mean that nobody sent down is 4 away from zero. Together that is
    5 long, so with clip = 1 a fifth of each is sent: 1 + 3/5 and 4/5. Clipped slice by slice it
    would be 2 and 1."""
    received = {"model": {"w": torch.tensor([1.0, 1.0])}}
    up = {"model": {"w": torch.tensor([4.0, 1.0])}, "means": {"m": torch.tensor([4.0])}}
    sent = hidden(ClientPrivacy(clip=1.0, noise=SILENT), up, received)
    torch.testing.assert_close(sent["model"]["w"], torch.tensor([1.6, 1.0]))
    torch.testing.assert_close(sent["means"]["m"], torch.tensor([0.8]))


def test_a_short_change_is_sent_whole() -> None:
    received = {"model": {"w": torch.tensor([1.0, 1.0])}}
    up = {"model": {"w": torch.tensor([1.3, 1.4])}}
    sent = hidden(ClientPrivacy(clip=1.0, noise=SILENT), up, received)
    torch.testing.assert_close(sent["model"]["w"], up["model"]["w"])


def test_integers_go_back_as_they_came_or_as_zeros() -> None:
    received = {"model": {"batches": torch.tensor(7)}}
    up = {"model": {"batches": torch.tensor(9)}, "counts": {"n": torch.tensor([3, 4])}}
    sent = hidden(ClientPrivacy(), up, received)
    assert int(sent["model"]["batches"]) == 7
    assert sent["counts"]["n"].tolist() == [0, 0]


def test_numbers_that_are_not_finite_leave_only_noise() -> None:
    """Or one row could make an upload longer than clip."""
    received = {"model": {"w": torch.zeros(3)}}
    up = {"model": {"w": torch.tensor([1.0, float("inf"), float("nan")])}}
    privacy = ClientPrivacy(clip=1.0, noise=0.5)
    nothing = {"model": {"w": torch.zeros(3)}}
    assert torch.equal(
        hidden(privacy, up, received)["model"]["w"],
        hidden(privacy, nothing, received)["model"]["w"],
    )


def test_noise_has_the_stated_spread_and_is_of_client_round_and_slice() -> None:
    """noise = 0.5 and clip = 4: a standard deviation of 2."""
    privacy, up = ClientPrivacy(clip=4.0, noise=0.5), {"a": {"w": torch.zeros(20_000)}}
    drawn = hidden(privacy, up, {})["a"]["w"]
    assert abs(float(drawn.std()) - 2.0) < 0.05
    assert abs(float(drawn.mean())) < 0.05
    assert torch.equal(drawn, hidden(privacy, up, {})["a"]["w"])
    for other in (
        hidden(privacy, up, {}, cid=1)["a"]["w"],
        hidden(privacy, up, {}, plan=Plan(2, seed=0))["a"]["w"],
        hidden(privacy, up, {}, plan=Plan(1, seed=1))["a"]["w"],
        hidden(privacy, {"b": up["a"]}, {})["b"]["w"],
    ):
        assert abs(float(torch.corrcoef(torch.stack([drawn, other]))[0, 1])) < 0.05


def test_a_sites_noise_is_normal_and_the_same_for_the_same_answer_only() -> None:
    """Or a server could ask again and again, and average the noise away; or subtract two answers of
    which it knows that they have the same noise."""
    value, other_value = torch.zeros(20_000), torch.zeros(20_000).index_fill(0, torch.tensor(0), 1)
    source = SecretNoise(b"key", "order")
    drawn, next_one = source.normal("w", value), source.normal("w", value)
    assert abs(float(drawn.std()) - 1) < 0.05
    assert abs(float((drawn.abs() < 1).double().mean()) - 0.6827) < 0.02
    assert float(drawn.abs().max()) < 9
    assert torch.equal(drawn, SecretNoise(b"key", "order").normal("w", value))
    for other in (
        next_one,
        SecretNoise(b"another", "order").normal("w", value),
        SecretNoise(b"key", "another").normal("w", value),
        SecretNoise(b"key", "order").normal("v", value),
        SecretNoise(b"key", "order").normal("w", other_value),
    ):
        assert abs(float(torch.corrcoef(torch.stack([drawn, other]))[0, 1])) < 0.05


# ------------------------------------------------------------------ epsilon


def delta_of(sigma: float, eps: float) -> float:
    """Balle and Wang (2018), Theorem 8, for sensitivity 1."""

    def phi(x: float) -> float:
        return (1 + erf(x / sqrt(2))) / 2

    return phi(1 / (2 * sigma) - eps * sigma) - exp(eps) * phi(-1 / (2 * sigma) - eps * sigma)


@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0])
def test_epsilon_of_one_gaussian_mechanism(noise: float) -> None:
    """The delta that belongs to the epsilon found is the one that was asked for."""
    found = epsilon(mechanisms_told(noise), 1e-5)
    assert delta_of(noise, found) == pytest.approx(1e-5, rel=1e-3)


def test_mechanisms_add_up_by_their_squares() -> None:
    """Four with noise 2 tell as much as one with noise 1: 4 / 2^2 = 1 / 1^2."""
    assert epsilon(mechanisms_told(2.0, 4), 1e-5) == epsilon(mechanisms_told(1.0), 1e-5)
    assert epsilon(0.0, 1e-5) == 0.0


def test_the_sum_is_what_googles_general_accountant_finds() -> None:
    """Its privacy loss distributions know nothing of Gaussians that add up."""
    import dp_accounting

    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(3.0), 12)
    general = accountant.get_epsilon(1e-5)
    assert ClientPrivacy(noise=3.0).epsilon_after(12) == pytest.approx(general, rel=1e-2)


# ------------------------------------------------------------------ gradients of rows


def squared(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return (weights["w"] @ x + weights["b"] - y) ** 2 / 2


def test_dp_sgd_on_a_linear_model() -> None:
    """w = (0, 0), b = 0. A row's gradient is -y (x, 1).

    Row 1: x = (3, 0), y = 1: -(3, 0, 1), length sqrt 10, clipped to 1: -(3, 0, 1) / sqrt 10.
    Row 2: x = (0, 0.5), y = 0.5: -(0, 0.25, 0.5), length sqrt 0.3125 < 1, as it is.
    The sum is (-3 / sqrt 10, -0.25, -1 / sqrt 10 - 0.5). Clipping the mean of the batch, or weight
    and bias apart, would give something else."""
    weights = {"w": torch.zeros(2), "b": torch.zeros(())}
    x, y = torch.tensor([[3.0, 0.0], [0.0, 0.5]]), torch.tensor([1.0, 0.5])
    total, losses = clipped_sum(squared, weights, (x, y), 2, clip=1.0)
    torch.testing.assert_close(total["w"], torch.tensor([-3 / sqrt(10), -0.25]))
    torch.testing.assert_close(total["b"], torch.tensor(-1 / sqrt(10) - 0.5))
    torch.testing.assert_close(losses, torch.tensor([0.5, 0.125]))


def test_a_row_that_is_no_number_does_not_spoil_the_sum() -> None:
    weights = {"w": torch.zeros(1), "b": torch.zeros(())}
    x, y = torch.tensor([[float("inf")], [1.0]]), torch.tensor([1.0, 1.0])
    total, _ = clipped_sum(squared, weights, (x, y), 2, clip=10.0)
    assert bool(torch.isfinite(total["w"]).all())


def test_rows_in_parts_sum_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    gen = torch.Generator().manual_seed(0)
    weights = {"w": torch.randn(4, generator=gen), "b": torch.zeros(())}
    x, y = torch.randn(7, 4, generator=gen), torch.randn(7, generator=gen)
    whole, _ = clipped_sum(squared, weights, (x, y), 7, clip=0.5)
    monkeypatch.setattr("fedloom.core.example_gradients.MOST_NUMBERS", 10)
    parts, losses = clipped_sum(squared, weights, (x, y), 7, clip=0.5)
    torch.testing.assert_close(whole, parts)
    assert len(losses) == 7


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    "wrong", ["client(clip=0)", "client(noise=0)", "example(delta=1)", "client(budget=-1)"]
)
def test_what_is_no_privacy_is_refused(wrong: str) -> None:
    with pytest.raises(BadInput, match="privacy"):
        parse_privacy(wrong)


def test_written_and_read_back() -> None:
    privacy = ExamplePrivacy(clip=0.5, budget=8.0)
    assert parse_privacy(str(privacy)) == privacy
