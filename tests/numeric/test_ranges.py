"""Hyper-parameters out of range are refused in a sentence when a sum is read, not in a round."""

from __future__ import annotations

import pytest

from fedloom.errors import BadInput
from fedloom.methods import parse_method


@pytest.mark.parametrize(
    "wrong",
    [
        "moon(tau=0)",  # divides by it
        "moon(mu=-1)",
        "fedavg + model_contrast(tau=-0.5)",
        "fedprox(mu=-0.1)",  # pushes away from the received model
        "ditto(lam=-1)",
        "ditto(personal_epochs=-1)",
        "dualfed(tau=0)",
        "dualfed(lam=-1)",
        "dualfed(hidden=0)",
        "fedcr(beta=-1)",
        "fedcr(tau=0)",
        "fedcr(sigma=-1)",
    ],
)
def test_refused(wrong):
    with pytest.raises(BadInput, match=r"or more|above 0"):
        parse_method(wrong)


@pytest.mark.parametrize(
    "null", ["moon(mu=0)", "fedprox(mu=0)", "ditto(lam=0)", "dualfed(lam=0)", "fedcr(beta=0)"]
)
def test_null_settings_are_not(null):
    assert parse_method(null)
