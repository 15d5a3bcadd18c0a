"""One run judged under several protocols has the numbers that a run under each of them has."""

from __future__ import annotations

from typing import Any

import pytest

import fedloom as fl
from fedloom.runs.other_protocols import OtherProtocols

PAPERS = ("fedloom", "dbe", "fedbr", "dualfed", "fedcr", "fedpac")
SETTINGS: dict[str, Any] = {
    "rounds": 4,
    "eval_every": 2,
    "clients": 3,
    "partition": "dirichlet(alpha=0.3)",
    "split": "merged(train=0.1, val=0.1)",
    "progress": False,
}


@pytest.mark.parametrize(
    "method",
    ["fedavg", "fedavg_ft(adapt_epochs=1)", "ditto", "fedper", "spherefed", "fedavg + dbe"],
)
def test_the_numbers_are_those_of_runs_under_each_protocol(method: str) -> None:
    others = OtherProtocols(PAPERS)
    run = fl.run(method, watchers=[others], **SETTINGS)
    assert run.summary.state_sha256 == fl.run(method, **SETTINGS).summary.state_sha256
    for protocol, chosen in others.results.items():
        alone = fl.run(method, protocol=protocol, **SETTINGS).summary.result
        assert chosen == alone, protocol
    assert set(others.results) | set(others.refused) == set(PAPERS)


def test_a_protocol_that_refuses_the_method_says_why() -> None:
    others = OtherProtocols(["fedcr", "fedbr"])
    fl.run("spherefed", watchers=[others], **SETTINGS)
    assert "without a head that could be trained" in others.refused["fedcr"]
    assert list(others.results) == ["fedbr"]


def test_a_last_round_of_everybody_is_another_training() -> None:
    others = OtherProtocols(["fedpac"])
    fl.run("fedavg", watchers=[others], participation=0.5, **SETTINGS)
    assert "set participation = 1" in others.refused["fedpac"]


def test_models_after_training_need_the_run_to_score_them() -> None:
    others = OtherProtocols(["fedpac"])
    fl.run("fedper", watchers=[others], protocol="fedloom(also=none)", **SETTINGS)
    assert "nothing was scored at trained/test" in others.refused["fedpac"]


def test_what_the_journal_lacks_is_measured_beside_it() -> None:
    others = OtherProtocols(["dualfed"])
    fl.run("fedavg", watchers=[others], protocol="fedbr", **SETTINGS)
    alone = fl.run("fedavg", protocol="dualfed", **SETTINGS).summary.result
    assert others.results["dualfed"] == alone
