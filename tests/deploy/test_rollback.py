"""`deploy rollback`: an experiment that was spoilt goes on from an earlier round."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import RecordDict
from hostile import Federation, hostile_federation
from sites import digits_schema

from fedloom.audit import AuditLog
from fedloom.deploy.project.folder import Project
from fedloom.deploy.project.new import write_project
from fedloom.deploy.server.audit import AUDIT
from fedloom.deploy.server.rollback import roll_back
from fedloom.errors import BadInput, RunFolderError
from fedloom.runs.folder import RunFolder, RunPaths
from fedloom.runs.ledger import Account


def honest(records: RecordDict) -> RecordDict:
    return records


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return hostile_federation(tmp_path)


@pytest.fixture
def project(federation: Federation, tmp_path: Path) -> Project:
    """One whose server folder is where the federation's runs are."""
    return write_project(tmp_path / "study", ["hospital-a"], schema=digits_schema())


def test_a_run_goes_on_from_an_earlier_round_with_the_bytes_of_one_that_was_never_further(
    federation: Federation, project: Project
) -> None:
    """Four rounds, back to the second: sites still have the states of that round."""
    out = str(project.root / "server" / "runs" / "first")
    result = federation.run("first", honest, rounds=4, out=out)
    assert roll_back(project, "first", 2) == 2
    again = federation.run("first", honest, rounds=4, out=out)
    assert [record.absent for record in again.records] == [{}] * 4
    assert again.summary.state_sha256 == result.summary.state_sha256
    ledger = Account.read(RunPaths(Path(out) / "run").ledger)
    assert sorted((step.round, step.counted) for step in ledger.steps) == [
        (1, True), (2, True), (3, False), (3, True), (4, False), (4, True),
    ]  # fmt: skip
    (line,) = AuditLog(project.root / AUDIT).lines()
    assert (line["event"], line["forgotten"]) == ("rolled back", [3, 4])


def test_only_kept_rounds_can_be_gone_back_to(federation: Federation, project: Project) -> None:
    out = str(project.root / "server" / "runs" / "first")
    federation.run("first", honest, rounds=4, out=out, **{"keep-rounds": 2})
    for round_ in (1, 9):
        with pytest.raises(BadInput, match="there are checkpoints of rounds 3, 4"):
            roll_back(project, "first", round_)
    with pytest.raises(RunFolderError, match="there is no run"):
        roll_back(project, "other", 1)
    with (
        RunFolder.open(Path(out) / "run"),
        pytest.raises(RunFolderError, match="in use"),
    ):
        roll_back(project, "first", 3)
