"""Containers, units and hashed constraints: what can be said of them without building anything."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^([A-Za-z0-9_.\[\]-]+)==([^\s;\\]+)", re.MULTILINE)


@pytest.mark.parametrize("name", ["server", "site"])
def test_containers_run_without_rights_on_a_read_only_root(name: str) -> None:
    file = ROOT / "containers" / f"compose.{name}.yaml"
    (service,) = yaml.safe_load(file.read_text())["services"].values()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service["user"].startswith("0")
    assert "privileged" not in service
    assert service["logging"]["options"]["max-size"]
    assert ("ports" in service) == (name == "server")


def test_the_image_installs_by_hash_and_runs_as_a_user() -> None:
    lines = (ROOT / "containers" / "Dockerfile").read_text().splitlines()
    assert any("--require-hashes" in line and "constraints/flower.txt" in line for line in lines)
    assert "USER 10001:10001" in lines[-4:]


def test_every_week_packages_are_audited_and_the_image_is_built() -> None:
    """Only that the workflow says so: it cannot be run here."""
    supply = yaml.safe_load((ROOT / ".github" / "workflows" / "supply.yml").read_text())
    steps = {
        job: " ".join(step.get("run", "") for step in about["steps"])
        for job, about in supply["jobs"].items()
    }
    assert "make audit" in steps["audit"]
    assert "docker build -f containers/Dockerfile" in steps["image"]
    assert "--read-only --cap-drop ALL" in steps["image"]
    assert "schedule" in supply[True]  # which is how YAML reads `on`


@pytest.mark.parametrize("name", ["link", "node"])
def test_units_are_hardened(name: str) -> None:
    parser: Any = configparser.RawConfigParser(strict=False, allow_no_value=True)
    parser.optionxform = str
    parser.read(ROOT / "containers" / "systemd" / f"fedloom-{name}.service")
    service = dict(parser["Service"])
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert service["User"] == "fedloom"
    assert f"deploy {name} " in service["ExecStart"]


@pytest.mark.parametrize("name", ["flower", "dev"])
def test_hashed_constraints_are_those_that_were_tested(name: str) -> None:
    """Every package has a hash, and those that constraints.txt pins have the same version."""
    text = (ROOT / "constraints" / f"{name}.txt").read_text()
    hashed = dict(PINNED.findall(text))
    tested = dict(PINNED.findall((ROOT / "constraints.txt").read_text()))
    assert {k: v for k, v in tested.items() if k in hashed} == {
        k: v for k, v in hashed.items() if k in tested
    }
    if name == "dev":
        assert tested.keys() <= hashed.keys()
    entries = re.split(r"\n(?=[a-z0-9])", text)
    assert len(hashed) > 90
    assert all("--hash=sha256:" in entry for entry in entries if "==" in entry)
