"""Every registered method, recipe and term over Flower's messages, as in a deployment."""

from __future__ import annotations

import pytest
from cases import ALL, ROUNDS, federation, method, need

from fedloom.engines.flower import InProcess
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from helpers import outcome


@pytest.mark.parametrize("name", ALL)
def test_the_wire_changes_nothing(name: str) -> None:
    """Every message is encoded and decoded, clients' states are on the disk, every upload is
    compared with what the phantom sends; a newcomer is tested at the end."""
    config = RunConfig(rounds=ROUNDS, model=need(name).model, seed=3, newcomers=1)
    made = Experiment.build(config, method(name), federation())
    assert outcome(start(made, InProcess())) == outcome(start(made, Inline()))
