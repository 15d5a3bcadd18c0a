"""Every registered method and term runs with each rule in place of the mean."""

from __future__ import annotations

import pytest
from cases import ALL, case

from fedloom.core.aggregation import aggregations
from fedloom.engines.inline import Inline
from fedloom.launch.start import start

RULES = sorted(set(aggregations) - {"mean"})


@pytest.mark.parametrize("name", ALL)
def test_a_rule_takes_the_place_of_the_mean(name: str) -> None:
    for rule in RULES:
        experiment = case(name).experiment(rounds=2, eval_every=2, aggregation=rule)
        server = start(experiment, Inline()).server
        assert all(value.isfinite().all() for tree in server.values() for value in tree.values())
