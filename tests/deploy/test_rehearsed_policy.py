"""Rehearsals and Flower's own simulation by the rules of a site's file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from rich.console import Console

from fedloom.deploy.processes.rehearsal import Rehearsal, digits_project
from fedloom.deploy.simulation import simulate
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines.flower.in_process import LocalGrid
from fedloom.errors import BadInput
from fedloom.policy import Policy
from fedloom.policy.table import stated_table
from helpers import fedloom

RULES = """
name = "clinic"
data = "rows.csv"
state = "state"
[policy]
least_rows = 100000
hours = "08:00-18:00"
[policy.methods.fedper]
lr = [0.005, 0.1]
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "site.toml"
    file.write_text(RULES)
    return file


def test_a_policy_is_stated_as_it_was_read(rules: Path) -> None:
    policy = Policy.read(rules)
    assert policy.methods
    assert Policy.of(tomllib.loads(stated_table(policy)), "") == policy


def test_a_rehearsal_plays_by_the_rules_of_a_file_at_every_site(
    rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    project = digits_project(tmp_path / "study", 2, False, {"rounds": 1}, Policy.read(rules))
    for name in project.settings().sites:
        assert SiteConfig.read(project.site(name)).policy == Policy.read(rules)
    with pytest.raises(BadInput, match="few_rows"):
        Rehearsal(Console(), 60)._approve(project)


def test_the_command_takes_the_file(rules: Path) -> None:
    rules.write_text(RULES.replace("least_rows", "leest_rows"))
    done = fedloom("deploy", "local", "--policy", rules)
    assert done.code != 0
    assert "unknown key 'leest_rows' in [policy]" in done.err


def test_flowers_own_simulation_begins_nothing_that_the_rules_refuse(
    rules: Path, tmp_path: Path
) -> None:
    config = {
        "sites": "a,b",
        "min-clients": 2,
        "drop-last": True,
        "model": "mlp(norm=batch)",
        "simulated-policy": str(rules),
        "out": str(tmp_path / "out"),
    }
    context = Context(1, 1, {}, RecordDict(), config)
    with pytest.raises(
        BadInput, match=r"(?s)the policy of .*site\.toml refuses this run.*few_rows"
    ):
        simulate(LocalGrid(ClientApp(), 3), context)
    assert not (tmp_path / "out").exists()
