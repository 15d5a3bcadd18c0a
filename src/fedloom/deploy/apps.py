"""A federation as Flower sees it: a server app and a client app, made from configuration alone."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedloom.deploy.processes import end_with_parent
from fedloom.deploy.settings import Settings
from fedloom.deploy.site import SiteData
from fedloom.deploy.site_config import SiteConfig
from fedloom.engines.flower.node import client_app
from fedloom.errors import BadInput, FedloomError

log = logging.getLogger("fedloom")


def _site(context: Context) -> SiteData:
    file = context.node_config.get("site")
    if not isinstance(file, str):
        raise BadInput("start the SuperNode with --node-config 'site=\"/path/to/site.toml\"'")
    return SiteData(SiteConfig.read(Path(file)), Settings.read(context.run_config))


client = client_app(lambda context: _site(context).node(), lambda context: _site(context).hello())
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run's configuration describes."""
    from fedloom.deploy.server import serve  # not for sites, which import this for every message

    end_with_parent()  # a server app that outlived its SuperLink would block the run's folder
    # Flower uploads this log by HTTP requests. The root logger would log each of those requests
    # too, and so cause the next one.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("fedloom: %(message)s"))
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    try:
        serve(grid, Settings.read(context.run_config))
    except FedloomError as e:
        log.error("%s", e)
        raise  # not as SystemExit, which would end the process before Flower has uploaded its log
