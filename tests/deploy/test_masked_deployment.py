"""Secure aggregation at sites of their own: real processes, secrets of the operating system."""

from __future__ import annotations

import sys

import pytest
import torch

pytest.importorskip("flwr")

from sites import gathered
from trouble import A, B, C, FederationUnderTest

from fedloom.core.secure.setting import Pairwise
from fedloom.core.secure.slices import SECURE
from fedloom.core.tree import State
from fedloom.deploy.processes.federation import Run
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths
from helpers import LIMIT

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.xdist_group("federation"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="127.0.0.2 is this machine"),
]


def in_one_process(federation: FederationUnderTest, run: Run, secure: str | None) -> State:
    """The server's state after the same run over the same rows."""
    settings = run.settings
    data = gathered([federation.project.site(name) for name in settings.sites], settings)
    config = settings.run.changed(out=None, secure_aggregation=secure)
    return start(Experiment.build(config, data=data), Inline()).server


def test_masked_sites_end_where_the_plain_mean_ends(federation: FederationUnderTest) -> None:
    """DBE's means and one round of FedAvg. Sums of whole numbers do not depend on masks, so the
    sites' own secrets give the bytes of a simulation; the plain mean is half a step away at most,
    beside the rounding of float32."""
    federation.up(A, B, C)
    run = federation.submit(
        {
            "experiment": "masked",
            "sites": f"{A},{B},{C}",
            "method": "fedavg + dbe",
            "rounds": 1,
            "min_clients": 3,
            "secure_aggregation": "pairwise",
        }
    )
    run.wait(LIMIT)
    deployed = Checkpoints(RunPaths(run.out / "run").checkpoints).load_latest()[0].server
    simulated = in_one_process(federation, run, "pairwise")
    plain = in_one_process(federation, run, None)
    assert not torch.equal(deployed[SECURE]["publics"], simulated[SECURE]["publics"])
    compared = 0
    for name, tree in plain.items():
        for key, value in tree.items():
            assert torch.equal(deployed[name][key], simulated[name][key]), (name, key)
            error = (deployed[name][key].double() - value.double()).abs()
            bound = Pairwise().step / 2 + 1e-6 * value.double().abs()
            assert bool((error <= bound).all()), (name, key, float(error.max()))
            compared += value.numel()
    assert compared > 1000
    records = federation.records(run)
    assert [record.rows for record in records] == [{}] * len(records)
    assert (run.out / "run" / "unmasked.jsonl").read_text().count("\n") == len(records)
