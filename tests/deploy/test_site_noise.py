"""The noise of a site is of a secret of its own: nobody can take it off, and asking again does not
wear it out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from sites import write_rows

from fedloom.core.client import client
from fedloom.core.message import Plan
from fedloom.core.round import Round, initial_server, send
from fedloom.core.site import Visit
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.deploy.site.noise_key import FILE, noise_key
from fedloom.engines.flower.node import Node
from fedloom.errors import BadInput

CONFIG = {
    "experiment": "first",
    "method": "fedavg",
    "model": "mlp(hidden=[8])",
    "sites": "a,b",
    "class-names": "0,1,2",
}
LEVELS = ["client(clip=0.5, noise=1)", "example(clip=0.5, noise=1)"]


@pytest.fixture
def site(tmp_path: Path) -> SiteConfig:
    write_rows(tmp_path / "rows.npz", (0, 1, 2))
    file = tmp_path / "site.toml"
    file.write_text('name = "a"\ndata = "rows.npz"\nstate = "kept"\n')
    return SiteConfig.read(file)


def node(site: SiteConfig, **changes: str | int) -> Node:
    """As after every start of the site's process."""
    return SiteData(site, Settings.read({**CONFIG, **changes})).node()


def answer(node: Node, secret: bool = True) -> torch.Tensor:
    """The upload of round 1, in one row."""
    program, plan = node.program, Plan(1, seed=0, clients=2)
    down = send(Round(program, plan, initial_server(program), [0]), 0)
    key = node.noise_key if secret else None
    up, _ = client(Visit(program, 0, node.data, down, noise_key=key))
    return torch.cat([value.flatten() for value in up.state["model"].values()])


@pytest.mark.parametrize("privacy", LEVELS)
def test_the_same_order_gets_the_same_noise_and_another_site_other_noise(
    site: SiteConfig, privacy: str
) -> None:
    first = answer(node(site, privacy=privacy))
    assert torch.equal(answer(node(site, privacy=privacy)), first)
    assert torch.equal(answer(node(site, privacy=privacy, rounds=99)), first)
    assert not torch.equal(answer(node(site, privacy=privacy), secret=False), first)
    (site.state / FILE).unlink()
    assert not torch.equal(answer(node(site, privacy=privacy)), first)


def test_other_settings_have_other_noise(site: SiteConfig) -> None:
    """Two uploads that differ by a setting do not differ by that setting alone."""
    keys = [
        node(site, privacy=privacy, experiment=f"e{i}").noise_key
        for i, privacy in enumerate(LEVELS)
    ]
    assert None not in keys
    assert keys[0] != keys[1]


def test_a_run_without_privacy_wants_no_secret(site: SiteConfig) -> None:
    assert node(site).noise_key is None
    assert not (site.state / FILE).exists()


def test_a_secret_is_the_owners_alone_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    keys = [noise_key(tmp_path, what) for what in ("a", "b", "a")]
    assert keys[0] == keys[2] != keys[1]
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
    (tmp_path / FILE).write_bytes(b"short")
    with pytest.raises(BadInput, match="is not a key"):
        noise_key(tmp_path, "a")
