"""One site of a deployment: its data, what it answers to the server, and what it stores."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch

from fedloom.core.data import ClientData
from fedloom.core.evaluate import model_at
from fedloom.core.rng import rng_scope
from fedloom.core.score import Moment
from fedloom.core.site import Visit
from fedloom.data import FederatedData, RemoteData, Source, federate, load
from fedloom.deploy.personal import save_personal
from fedloom.deploy.settings import Settings
from fedloom.deploy.site_config import SiteConfig
from fedloom.engines import check_device
from fedloom.engines.flower.node import Node
from fedloom.engines.flower.site_store import SiteStore
from fedloom.extensions import load_extensions
from fedloom.runs.experiment import Experiment


class SiteData:
    """A site in a federation with these settings."""

    def __init__(self, config: SiteConfig, settings: Settings) -> None:
        load_extensions(settings.run.imports)  # the data may be of a user's own kind
        self.config, self.settings = config, settings

    @cached_property
    def source(self) -> Source:
        """All rows of the site."""
        run = self.settings.run
        return load(
            self.config.data,
            normalize=run.normalization,
            image_size=run.image_size,
            label=self.config.label,
            class_names=self.settings.class_names or None,
        )

    @cached_property
    def divided(self) -> FederatedData:
        """The site's rows as train, validation and test."""
        run = self.settings.run
        seed, augment = run.partition_seed, run.augment
        return federate(self.source, "iid", 1, seed, run.split, augment=augment)

    def hello(self) -> dict[str, Any]:
        """What the server learns before the first round: no row, and not how many there are."""
        source = self.source
        return {
            "site": self.config.name,
            "shape": list(source.shape),
            "kind": source.kind,
            "class_names": list(source.class_names),
            "vocabulary": source.vocabulary,
            "fedloom": version("fedloom"),
            "torch": torch.__version__,
        }

    def node(self) -> Node:
        """The site as the other end of the server's messages."""
        torch.set_num_threads(1)  # the bytes of a sum depend on how many threads share it
        experiment = Experiment.build(self.settings.run, data=self._remote_data())
        folder = self.config.state / self.settings.experiment
        data: ClientData = self.divided.client(0)

        def save(visit: Visit) -> None:
            moment: Moment = "final" if visit.program.adapt else "received"
            with rng_scope(*visit.down.plan.key, visit.cid, "evaluate", moment):
                state = model_at(visit, moment)
            save_personal(folder / "model", state, visit, experiment.config, self.divided)

        return Node(
            experiment.program,
            data,
            SiteStore(folder / "states"),
            check_device(self.config.device),
            self.settings.lost_state,
            save,
        )

    def _remote_data(self) -> RemoteData:
        source, places = self.source, self.settings.run.clients
        assert places is not None
        return RemoteData(places, source.shape, source.class_names, source.kind, source.vocabulary)
