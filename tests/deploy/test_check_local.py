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
    result = site.check(Settings.read(SETTINGS))["name"]
    assert result.ok is False
    assert "did you mean 'north'?" in result.message


def test_missing_data(site: SiteToSpoil) -> None:
    site.good_server()
    (site.root / "data.npz").unlink()
    results = site.check()
    assert wrong(results) == ["data"]
    assert str(site.root / "data.npz") in results["data"].message


def test_a_misspelt_label_column(site: SiteToSpoil) -> None:
    site.good_server()
    (site.root / "rows.csv").write_text("age,diagnosis\n" + "1,a\n2,a\n3,b\n4,b\n")
    site.values |= {"data": "rows.csv", "label": "diagnose"}
    results = site.check()
    assert wrong(results) == ["data"]
    assert "did you mean 'diagnosis'?" in results["data"].message
    site.values["label"] = "diagnosis"
    assert "by class: a 2, b 2" in site.check()["data"].message


def test_the_policy_judges_the_federations_settings(site: SiteToSpoil) -> None:
    """With the words in which the gate would refuse the run, and the site's own numbers."""
    site.good_server()
    site.policy = []
    assert site.check()["policy"].ok
    result = site.check(Settings.read({**SETTINGS, "rounds": 5}))["policy"]
    assert result.ok is False
    for words in ("few_rows: ", "5 rows", "dense_layers: ", "close to those rows"):
        assert words in result.message
    result = site.check(Settings.read({**SETTINGS, "rounds": 5000}))["policy"]
    assert "most_rounds: rounds = 5000 is more than the 1000 this site permits" in result.message


@pytest.mark.parametrize("settings", [None, Settings.read(SETTINGS)], ids=["alone", "project"])
def test_a_class_with_one_row(site: SiteToSpoil, settings: Settings | None) -> None:
    """Two dogs are enough, one cat is not; no owl at all is no fault."""
    site.good_server()
    site.write_data(["cat", "dog", "dog"])
    results = site.check(settings)
    assert wrong(results) == ["data"]
    assert "cat cannot be in both training and test" in results["data"].message
    assert "dog 2" in results["data"].message


def test_a_class_that_the_federation_does_not_have(site: SiteToSpoil) -> None:
    site.good_server()
    site.write_data(["cat", "cat", "cow", "cow"])
    assert site.check()["data"].ok
    results = site.check(Settings.read(SETTINGS))
    assert wrong(results) == ["data", "schema"]
    assert "cow" in results["data"].message
    assert "cow" in results["schema"].message


def test_a_split_that_the_data_cannot_have(site: SiteToSpoil) -> None:
    site.good_server()
    results = site.check(Settings.read({**SETTINGS, "split": "official"}))
    assert wrong(results) == ["data"]
    assert "no official test split" in results["data"].message


def test_states_are_counted_by_experiment(site: SiteToSpoil) -> None:
    for experiment, n in (("first", 1), ("second", 2)):
        store, before = SiteStore(site.root / "state" / experiment / "states"), None
        for i in range(n):
            before = store.put({"model": {"w": torch.full((1,), float(i))}}, before)
    (site.root / "state" / "flower").mkdir()
    result = site.check()["state folder"]
    assert result.ok
    assert "it holds first (1 states), second (2 states)" in result.message


def test_a_state_folder_below_a_file_cannot_be_made(site: SiteToSpoil) -> None:
    site.good_server()
    site.values["state"] = "data.npz/state"
    results = site.check()
    assert wrong(results) == ["state folder"]
    assert "cannot be written (Not a directory)" in results["state folder"].message


def test_a_state_folder_that_others_can_read_is_warned_of(site: SiteToSpoil) -> None:
    state = site.root / "state"
    state.mkdir()
    for mode, warned in ((0o755, True), (0o700, False)):
        state.chmod(mode)
        result = site.check()["state folder"]
        assert result.ok
        assert (f"chmod 700 {state}" in result.message) == warned


def test_a_full_disk(site: SiteToSpoil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ROOM", 10**18)
    result = site.check()["state folder"]
    assert result.ok is False
    assert "make room" in result.message


def test_a_device_that_is_not_here(site: SiteToSpoil) -> None:
    site.good_server()
    site.values["device"] = "cuda:77"
    results = site.check()
    assert wrong(results) == ["device"]
    assert "cuda:77" in results["device"].message


def test_a_busy_port_and_who_has_it(site: SiteToSpoil) -> None:
    site.good_server()
    with closing(socket.create_server(("127.0.0.1", int(site.values["port"])))):
        results = site.check()
    assert wrong(results) == ["own port"]
    assert f"process {os.getpid()}: " in results["own port"].message
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
            result = site.check()["own port"]
        finally:
            node.kill()
    assert result.ok is own
    assert f"process {node.pid}" in result.message


def test_the_release_of_flower_is_the_pinned_one() -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    assert f"flwr=={local.FLWR}" in extras["flower"]


def test_another_release_of_flower_is_wrong(
    site: SiteToSpoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "FLWR", "1.40.0")
    result = site.check()["versions"]
    assert result.ok is False
    assert "pip install flwr==1.40.0" in result.message
