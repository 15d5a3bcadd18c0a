"""A federation as Flower sees it: a server app and a client app, made from configuration alone."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedloom.deploy.server import serve
from fedloom.deploy.settings import Settings
from fedloom.deploy.site import Site, SiteConfig
from fedloom.engines.flower.node import client_app
from fedloom.errors import BadInput, FedloomError


def _site(context: Context) -> Site:
    file = context.node_config.get("site")
    if not isinstance(file, str):
        raise BadInput("start the SuperNode with --node-config 'site=\"/path/to/site.toml\"'")
    return Site(SiteConfig.read(Path(file)), Settings.read(context.run_config))


client = client_app(lambda context: _site(context).node(), lambda context: _site(context).hello())
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run's configuration describes."""
    logging.basicConfig(level=logging.INFO, format="fedloom: %(message)s", force=True)
    try:
        serve(grid, Settings.read(context.run_config))
    except FedloomError as e:
        logging.getLogger("fedloom").error("%s", e)
        raise SystemExit(1) from None
