"""Flower's own simulation (`flwr run .`): the same app, with known data divided among its nodes.

Nothing of a deployment's protection is in it: there are no sites, and all rows are on this machine.
But `simulated_policy` names a site's file, and what its rules refuse to any node is not begun.
What a node keeps is in Flower's context, which ends with the run.
"""

from __future__ import annotations

import logging
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from fedloom.core.data import data_of
from fedloom.data import FederatedData
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import introduction
from fedloom.engines.flower.context_store import ContextStore
from fedloom.engines.flower.node import Node
from fedloom.policy.simulation import check_experiment
from fedloom.runs.experiment import Experiment

log = logging.getLogger("fedloom")


class Simulation:
    """A federation whose sites are the nodes of Flower's simulation."""

    def __init__(self, configured: Settings, nodes: int) -> None:
        names = tuple(_name(place) for place in range(nodes))
        run = configured.run.changed(
            data=configured.simulated_data,
            partition=configured.simulated_partition,
            clients=nodes,
        )
        self.settings = configured.model_copy(update={"sites": names, "run": run})

    @cached_property
    def experiment(self) -> Experiment:
        """The run with all its data, as `fedloom run` would build it."""
        return Experiment.build(self.settings.run)

    @property
    def data(self) -> FederatedData:
        """Divided among all nodes."""
        data = self.experiment.data
        assert isinstance(data, FederatedData)  # built from a name
        return data

    @property
    def schema(self) -> Schema:
        """Of the data that is divided."""
        return Schema.of_rows(self.data.source)

    def hello(self, place: int) -> dict[str, Any]:
        """How a node introduces itself."""
        return introduction(_name(place), self.schema)

    def node(self, place: int, context: Context) -> Node:
        """A node with its part of the data."""
        store = ContextStore(context.state)
        return Node(self.experiment.program, data_of(self.data, place), store)


def simulation_of(context: Context) -> tuple[Simulation, int]:
    """The simulation that a node belongs to, and its place in it."""
    place, nodes = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    return _simulation(tuple(sorted(context.run_config.items())), nodes), place


def simulate(grid: Grid, context: Context) -> None:
    """The server's side; every run has a folder of its own, because none can go on later."""
    from fedloom.deploy.server.run import serve

    nodes = len(list(grid.get_node_ids()))
    simulation = Simulation(Settings.read(context.run_config), nodes)
    settings = simulation.settings
    if settings.simulated_policy is not None:
        check_experiment(simulation.experiment, settings.simulated_policy)
    folder = Path(settings.run.out or "runs").absolute() / f"simulation-{context.run_id}"
    run = settings.run.changed(out=str(folder))
    serve(grid, settings.model_copy(update={"run": run}), simulation.schema)
    log.info("the run's folder is %s", folder / "run")


def _name(place: int) -> str:
    return f"node-{place}"


@lru_cache(maxsize=1)
def _simulation(configuration: tuple[tuple[str, Any], ...], nodes: int) -> Simulation:
    """Data is loaded and divided once in a process that answers for many nodes."""
    return Simulation(Settings.read(dict(configuration)), nodes)
