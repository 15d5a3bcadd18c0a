"""`fedloom deploy check` on a site itself: its name, data, folder, device, port and versions."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
import torch

from helpers import wait_until

pytest.importorskip("flwr")

from site_to_spoil import SETTINGS, SiteToSpoil, wrong

from fedloom.deploy.check import local
from fedloom.deploy.settings import Settings
from fedloom.engines.flower.site_store import SiteStore


def test_a_name_the_federation_does_not_know(site: SiteToSpoil) -> None:
    site.values["name"] = "nort"
    found = site.check(Settings.read(SETTINGS))["name"]
    assert found.ok is False
    assert "did you mean 'north'?" in found.said


def test_missing_data(site: SiteToSpoil) -> None:
    site.good_server()
    (site.root / "data.npz").unlink()
    found = site.check()
    assert wrong(found) == ["data"]
    assert str(site.root / "data.npz") in found["data"].said


def test_a_misspelt_label_column(site: SiteToSpoil) -> None:
    site.good_server()
    (site.root / "rows.csv").write_text("age,diagnosis\n" + "1,a\n2,a\n3,b\n4,b\n")
    site.values |= {"data": "rows.csv", "label": "diagnose"}
    found = site.check()
    assert wrong(found) == ["data"]
    assert "did you mean 'diagnosis'?" in found["data"].said
    site.values["label"] = "diagnosis"
    assert "by class: a 2, b 2" in site.check()["data"].said


@pytest.mark.parametrize("settings", [None, Settings.read(SETTINGS)], ids=["alone", "project"])
def test_a_class_with_one_row(site: SiteToSpoil, settings: Settings | None) -> None:
    """Two dogs are enough, one cat is not; no owl at all is no fault."""
    site.good_server()
    site.write_data(["cat", "dog", "dog"])
    found = site.check(settings)
    assert wrong(found) == ["data"]
    assert "cat cannot be in both training and test" in found["data"].said
    assert "dog 2" in found["data"].said


def test_a_class_that_the_federation_does_not_have(site: SiteToSpoil) -> None:
    site.good_server()
    site.write_data(["cat", "cat", "cow", "cow"])
    assert site.check()["data"].ok
    found = site.check(Settings.read(SETTINGS))
    assert wrong(found) == ["data"]
    assert "cow" in found["data"].said


def test_a_split_that_the_data_cannot_have(site: SiteToSpoil) -> None:
    site.good_server()
    found = site.check(Settings.read({**SETTINGS, "split": "official"}))
    assert wrong(found) == ["data"]
    assert "no official test split" in found["data"].said


def test_states_are_counted_by_experiment(site: SiteToSpoil) -> None:
    for experiment, n in (("first", 1), ("second", 2)):
        vault, before = SiteStore(site.root / "state" / experiment / "states"), None
        for i in range(n):
            before = vault.put({"model": {"w": torch.full((1,), float(i))}}, before)
    (site.root / "state" / "flower").mkdir()
    found = site.check()["state folder"]
    assert found.ok
    assert "it holds first (1 states), second (2 states)" in found.said


def test_a_state_folder_below_a_file_cannot_be_made(site: SiteToSpoil) -> None:
    site.good_server()
    site.values["state"] = "data.npz/state"
    found = site.check()
    assert wrong(found) == ["state folder"]
    assert "cannot be written (Not a directory)" in found["state folder"].said


def test_a_state_folder_that_others_can_read_is_warned_of(site: SiteToSpoil) -> None:
    state = site.root / "state"
    state.mkdir()
    for mode, warned in ((0o755, True), (0o700, False)):
        state.chmod(mode)
        found = site.check()["state folder"]
        assert found.ok
        assert (f"chmod 700 {state}" in found.said) == warned


def test_a_full_disk(site: SiteToSpoil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ROOM", 10**18)
    found = site.check()["state folder"]
    assert found.ok is False
    assert "make room" in found.said


def test_a_device_that_is_not_here(site: SiteToSpoil) -> None:
    site.good_server()
    site.values["device"] = "cuda:77"
    found = site.check()
    assert wrong(found) == ["device"]
    assert "cuda:77" in found["device"].said


def test_a_busy_port_and_who_has_it(site: SiteToSpoil) -> None:
    site.good_server()
    with closing(socket.create_server(("127.0.0.1", int(site.values["port"])))):
        found = site.check()
    assert wrong(found) == ["own port"]
    assert f"process {os.getpid()}: " in found["own port"].said
    assert site.check()["own port"].ok


LISTEN = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); input()"


@pytest.mark.parametrize("own", [True, False])
def test_a_port_held_by_the_sites_own_node_is_no_fault(site: SiteToSpoil, own: bool) -> None:
    file = site.file if own else site.root / "another.toml"
    port = int(site.values["port"])
    command = [sys.executable, "-c", LISTEN, str(port), "--node-config", f"site='{file}'"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as node:
        try:
            wait_until(lambda: local.listener(port)[0] == node.pid)
            found = site.check()["own port"]
        finally:
            node.kill()
    assert found.ok is own
    assert f"process {node.pid}" in found.said


def test_the_release_of_flower_is_the_pinned_one() -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    assert extras["flower"] == [f"flwr=={local.FLWR}"]


def test_another_release_of_flower_is_wrong(
    site: SiteToSpoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "FLWR", "1.40.0")
    found = site.check()["versions"]
    assert found.ok is False
    assert "pip install flwr==1.40.0" in found.said
