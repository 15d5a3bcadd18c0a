"""The first order of a real server to a site: `serve` itself writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from shutil import copytree

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from gated_site import OTHER, SITE, GatedSite
from sites import digits_schema

from fedloom.data import load
from fedloom.deploy import apps
from fedloom.deploy.server.run import serve
from fedloom.deploy.settings import Settings
from fedloom.engines.flower.in_process import LocalGrid
from fedloom.engines.message_bundle import opened


class _FirstOrder(Exception):
    """Ends the run with what was asked."""


class _Grid(LocalGrid):
    """Two sites that introduce themselves; the first order to node 1000 ends it."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        for message in sent:
            is_order = message.metadata.message_type == MessageType.TRAIN
            if is_order and message.metadata.dst_node_id == 1000:
                raise _FirstOrder(opened(message.content))
        return super().push_messages(sent)


def served_order(site: GatedSite, folder: Path) -> RecordDict:
    """What the server of the site's project asks it first; the other site has digits too."""
    other = folder / OTHER
    copytree(site.file.parent, other, ignore=lambda *_: ["state"])
    (other / "site.toml").write_text(site.file.read_text().replace(f'"{SITE}"', f'"{OTHER}"'))
    source = load("digits")
    np.savez(other / "data.npz", x=np.asarray(source.x)[240:400], y=np.asarray(source.y)[240:400])
    config = {**site.project.config, "out": str(folder / "out")}
    grid = _Grid(apps.client, 2)
    for context, file in zip(
        grid._contexts.values(), (site.file, other / "site.toml"), strict=True
    ):
        context.node_config, context.run_config = {"site": str(file)}, config
    try:
        serve(grid, Settings.read(config), digits_schema(), poll=0.01)
    except _FirstOrder as e:
        order: RecordDict = e.args[0]
        return order
    raise AssertionError("the server asked for nothing")
