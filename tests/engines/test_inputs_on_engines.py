"""Several inputs and rows of unlike length give the reference engine's bytes on every engine, and
after a resumed run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import fedloom as fl
from fedloom.engines import make_engine
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from helpers import outcome


class Sum(nn.Module):
    """Linear layers alone, so that the vectorized engine may train clients side by side."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(4, 6)
        self.fc = nn.Linear(6, classes)

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.fc((self.first(a) + self.second(b)).relu())


def sites(unlike: bool) -> fl.FederatedData:
    rng = np.random.default_rng(0)
    clients = []
    for rows in (12, 12, 17):
        y = np.arange(rows) % 3
        a = rng.normal(size=(rows, 3)) + y[:, None]
        notes = [rng.integers(0, 20, int(n)) for n in rng.integers(1, 6, rows)]
        b: Any = notes if unlike else rng.normal(size=(rows, 4))
        clients.append(({"a": a, "b": b}, y))
    return fl.FederatedData.from_clients(clients)


@pytest.fixture(scope="module", params=[True, False], ids=["unlike", "alike"])
def experiment(request: pytest.FixtureRequest) -> Experiment:
    config = RunConfig(method="fedper + mean_regularization", rounds=2, batch_size=5)
    model: Any = "fusion(width=8)" if request.param else Sum
    config = config.changed(model=model if request.param else "<python object>")
    return Experiment.build(config, None, sites(request.param), None if request.param else model)


@pytest.fixture(scope="module")
def reference(experiment: Experiment) -> Any:
    return outcome(start(experiment, Inline()))


@pytest.mark.parametrize("engine", ["pool", "vectorized", "flower"])
def test_every_engine_gives_the_same(engine: str, experiment: Experiment, reference: Any) -> None:
    if engine == "flower":
        pytest.importorskip("flwr")
    made = make_engine(engine, **({"workers": 2} if engine == "pool" else {}))
    try:
        assert outcome(start(experiment, made)) == reference
    finally:
        made.close()


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    data, settings = sites(unlike=True), {"model": "fusion(width=8)", "batch_size": 5}
    whole = fl.run("fedrep", data, rounds=3, **settings)
    fl.run("fedrep", data, rounds=1, out=str(tmp_path / "run"), checkpoint_every=1, **settings)
    resumed = fl.resume(tmp_path / "run", data=data, rounds=3)
    assert resumed.summary.state_sha256 == whole.summary.state_sha256
