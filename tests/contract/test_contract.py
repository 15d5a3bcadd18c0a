"""What every registered method, recipe and term must do; the rules are in `fedloom.testing`."""

from __future__ import annotations

import pytest
from cases import ALL, NEEDS, case

from fedloom.testing import CHECKS
from fedloom.testing.case import CLIENTS, OPT
from fedloom.testing.checks import Check
from fedloom.testing.federations import common_federation


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.xdist_group(f"contract of {name}")) for name in ALL],
)
def test_every_method_keeps_the_rule(name: str, check: Check) -> None:
    check(case(name))


def test_needs_are_of_registered_names() -> None:
    assert set(NEEDS) <= set(ALL)


def test_the_common_ground_is_what_it_says() -> None:
    """The cases would prove less if all clients held all classes or the batches were whole."""
    data = common_federation()
    counts = data.counts("train")
    assert len(data) == CLIENTS + 1
    assert (counts == 0).any(axis=1).all()
    assert (counts.sum(axis=1) % OPT.batch != 0).any()
