"""Every registered method and term lets a newcomer join after the run: as one within it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import ALL, case

import fedloom
from fedloom import At, FederatedData, Partition
from fedloom.core.digest import digest
from fedloom.data.partition.assignment import ClientRows
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.result import Result
from fedloom.testing.case import CLIENTS

NEWCOMER = CLIENTS
"""The number of the one that joins."""


def clients(data: FederatedData, which: slice) -> FederatedData:
    """Some clients' rows of a federation."""
    rows: list[ClientRows] = list(data.partition.clients[which])
    return FederatedData(data.source, Partition(rows, source=data.partition.source))


def ended(name: str, data: FederatedData, newcomers: int, out: str | None = None) -> Result:
    tested = case(name)
    settings = {
        "method": tested.expression,
        "model": tested.model,
        "rounds": 1,
        "newcomers": newcomers,
        "protocol": "fedloom(newcomer_epochs=2)",
        "data": "<python object>",
        "out": out,
    }
    config = RunConfig.checked(settings)
    return start(Experiment.build(config, tested.method_anew(), data), Inline())


def contents(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file): sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("name", ALL)
def test_who_joins_after_the_run_gets_what_a_newcomer_of_the_run_gets(
    name: str, tmp_path: Path
) -> None:
    """To the last bit, with the same scores; the run's folder stays as it was."""
    data = case(name).data
    within = ended(name, data, newcomers=1)
    ended(name, clients(data, slice(CLIENTS)), newcomers=0, out=str(tmp_path / "run"))
    before = contents(tmp_path)
    run = fedloom.open(tmp_path / "run", data=clients(data, slice(CLIENTS)))
    joined = run.adapt(clients(data, slice(NEWCOMER, NEWCOMER + 1)))
    assert contents(tmp_path) == before
    assert digest(joined.model.state) == digest(within.client(NEWCOMER).state)
    last = within.records[-1]
    for moment, scores in (("received", joined.received), ("adapted", joined.adapted)):
        for split in ("test", "val"):
            recorded = last.score(At(moment, split, group="newcomers"))
            assert recorded is not None
            assert scores[split] == {k: v[0] for k, v in recorded.metrics.items()}
    rows = np.asarray(data.source.x)[data.partition.clients[NEWCOMER].test]
    joined.save(tmp_path / "model")
    again = fedloom.PersonalModel.load(tmp_path / "model")
    assert torch.equal(again.predict(rows), joined.model.predict(rows))


def test_alone_is_what_the_method_local_would_have_given() -> None:
    """Whatever method the run was of: the network without its additions, the first weights."""
    data = case("fedrod").data
    newcomer = clients(data, slice(NEWCOMER, NEWCOMER + 1))
    results = {
        name: ended(name, clients(data, slice(CLIENTS)), 0).adapt(newcomer)
        for name in ("local", "fedrod", "dbe")
    }
    alone = results["local"].adapted
    assert all(result.alone == alone for result in results.values())
