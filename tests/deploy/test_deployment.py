"""A deployment with real processes where all is well: runs, and their bytes.

Only the first two of the four sites run, so that later tests can let the others join.
"""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("flwr")

from trouble import A, B, FederationUnderTest, undisturbed, without_times

from fedloom.deploy.processes.children import ChildFailed
from fedloom.deploy.processes.federation import Run
from helpers import LIMIT

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.xdist_group("federation"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="127.0.0.2 is this machine"),
]
METHOD = "fedpac + dbe + control_variates"
"""It has a special round, a download for each client, personal tensors, state at both ends."""


@pytest.fixture(scope="module")
def runs(federation: FederationUnderTest) -> dict[str, Run]:
    """Two at once: experiments do not get in each other's way."""
    federation.up(A, B)
    two = {"sites": f"{A},{B}", "rounds": 2}
    waiting = {"experiment": "waiting", "clients": 3, "min_clients": 3, "patience": 3}
    return {
        "good": federation.submit({**two, "experiment": "good", "method": METHOD}),
        "waiting": federation.submit({**two, **waiting}),
    }


def test_a_deployment_gives_the_bytes_of_one_process(
    runs: dict[str, Run], federation: FederationUnderTest
) -> None:
    """States of the server and of every site, and all scores, after a special round and two."""
    run = runs["good"]
    run.wait(LIMIT)
    assert run.out == federation.project.root / "server" / "runs" / "good"
    expected = undisturbed(federation.project, run, steps=3)
    assert federation.sha256(run) == expected.sha256
    assert without_times(federation.records(run)) == expected.records


def test_a_run_that_fails_is_told_with_the_server_s_reason(runs: dict[str, Run]) -> None:
    """It waits for three sites where there are two."""
    with pytest.raises(ChildFailed, match=r"(?s)finished:failed.*2 sites take part, fewer"):
        runs["waiting"].wait(LIMIT)


def test_all_processes_of_a_federation_are_known(federation: FederationUnderTest) -> None:
    """Each of link and nodes starts a SuperExec, in a session of Flower's choice."""
    federation.up(A, B)
    assert len(federation.processes()) >= 6
    assert len(federation.find("flower-superexec")) == 3
    assert len(federation.find("flwr-clientapp")) == 2  # from which a site's apps are forked
