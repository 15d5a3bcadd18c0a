"""Runs that sites did not allow, over real processes: nothing of them runs, and nothing is lost."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("flwr")

from trouble import A, B, FederationUnderTest

from fedloom.audit import verify
from fedloom.deploy.processes.children import ChildFailed
from fedloom.deploy.processes.federation import DeployedFederation
from helpers import LIMIT

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.xdist_group("federation"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks who is at a local port"),
]
TWO = {"sites": f"{A},{B}", "rounds": 1, "patience": 3}
NOBODY = "0 sites take part, fewer than the 2"


def audit(federation: FederationUnderTest, name: str, experiment: str) -> list[dict[str, Any]]:
    """What a site recorded of an experiment."""
    file = federation.sites[name].state / "audit.jsonl"
    verify(file)
    lines = map(json.loads, file.read_text().splitlines())
    return [line for line in lines if line.get("experiment") == experiment]


def fails(federation: FederationUnderTest, overrides: dict[str, Any]) -> None:
    """Submit a run that no operator looked at; no site takes part in it."""
    run = DeployedFederation.submit(federation, {**TWO, **overrides})
    with pytest.raises(ChildFailed, match=NOBODY):
        run.wait(LIMIT)


def test_a_run_that_nobody_approved_gets_nothing_until_somebody_does(
    federation: FederationUnderTest,
) -> None:
    federation.up(A, B)
    fails(federation, {"experiment": "asks"})
    assert [line["event"] for line in audit(federation, A, "asks")] == ["waiting"]
    assert federation.places[A].orders("asks") == []
    run = federation.submit({**TWO, "experiment": "asks"})
    run.wait(LIMIT)
    events = [line["event"] for line in audit(federation, A, "asks")]
    assert events[:2] == ["waiting", "approved"]
    assert events.count("sent") == events.count("received") >= 3


def test_what_the_policy_refuses_is_refused_by_every_site(federation: FederationUnderTest) -> None:
    federation.up(A, B)
    fails(federation, {"experiment": "endless", "rounds": 2000})
    for name in (A, B):
        (line,) = audit(federation, name, "endless")
        assert (line["event"], line["rule"]) == ("refused", "most_rounds")


@contextmanager
def another_app(federation: FederationUnderTest) -> Iterator[None]:
    """The server sends other code under the same settings."""
    file = federation.project.root / "federation" / "client_app.py"
    written = file.read_text()
    file.write_text(f"{written}\nprint('more than was approved')\n")
    try:
        yield
    finally:
        file.write_text(written)


def test_other_code_under_approved_settings_waits(federation: FederationUnderTest) -> None:
    federation.up(A, B)
    federation.approve({**TWO, "experiment": "swapped"})
    with another_app(federation):
        fails(federation, {"experiment": "swapped"})
    events = [line["event"] for line in audit(federation, A, "swapped")]
    assert events == ["approved", "waiting"]
    assert "more than was approved" not in federation.nodes[A].output()


def test_a_site_s_local_port_answers_to_its_own_processes_alone(
    federation: FederationUnderTest,
) -> None:
    """This process is of the same user, but the SuperNode did not start it."""
    federation.up(A)
    connection = http.client.HTTPConnection("127.0.0.1", federation.sites[A].port, timeout=LIMIT)
    connection.request("POST", "/v1/runtime/acquire-task", body=b"")
    response = connection.getresponse()
    assert response.status == 403
    assert response.read() == b"only this site's own processes may do this\n"
    connection.close()
