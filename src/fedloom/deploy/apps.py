"""A federation as Flower sees it: a server app and a client app, made from configuration alone."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedloom.deploy.processes.children import end_with_parent
from fedloom.deploy.settings import Settings
from fedloom.deploy.simulation import simulate, simulation_of
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines.flower.node import Node, client_app
from fedloom.errors import BadInput, DiskError, FedloomError, naming_lack_of_memory

log = logging.getLogger("fedloom")


def _node(context: Context) -> Node:
    if "partition-id" in context.node_config:
        simulation, place = simulation_of(context)
        return simulation.node(place, context)
    return _site(context).node()


def _hello(context: Context) -> dict[str, Any]:
    if "partition-id" in context.node_config:
        simulation, place = simulation_of(context)
        return simulation.hello(place)
    return _site(context).hello()


def _site(context: Context) -> SiteData:
    file = context.node_config.get("site")
    if not isinstance(file, str):
        raise BadInput("start the SuperNode with --node-config 'site=\"/path/to/site.toml\"'")
    return SiteData(SiteConfig.read(Path(file)), Settings.read(context.run_config))


client = client_app(_node, _hello)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run's configuration describes."""
    # Not for sites, which import this file for every message.
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid

    from fedloom.deploy.project.folder import PROJECT, Project
    from fedloom.deploy.project.public_keys import PublicKeys
    from fedloom.deploy.server.audit import record_event
    from fedloom.deploy.server.run import serve

    end_with_parent()  # a server app that outlived its SuperLink would block the run's folder
    # Flower uploads this log by HTTP requests. The root logger would log each of those requests
    # too, and so cause the next one.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("fedloom: %(message)s"))
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    logging.getLogger("flwr").addFilter(without_traceback)
    root = Path(os.environ.get(PROJECT, "."))
    try:
        with naming_lack_of_memory("the server app"):
            if isinstance(grid, InMemoryGrid):
                simulate(grid, context)
                return
            project = Project.read(root)
            keys = PublicKeys(project.keys_folder) if project.link.tls else None
            settings = Settings.read(context.run_config)
            serve(grid, settings, project.schema(), keys, project=project.root)
    except FedloomError as e:
        log.error("%s", e)
        if not isinstance(grid, InMemoryGrid):
            with suppress(DiskError):  # which may be what the run failed of
                record_event(root, "run failed", run=str(context.run_id), sentence=str(e))
        raise  # not as SystemExit, which would end the process before Flower has uploaded its log


def without_traceback(record: logging.LogRecord) -> bool:
    """Of an error whose sentence says all, and stands in the log already, Flower's log needs no
    more."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, FedloomError):
        record.exc_info = None
    return True
