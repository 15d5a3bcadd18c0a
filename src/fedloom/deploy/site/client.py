"""One site of a deployment: its data, what it answers to the server, and what it stores."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch

from fedloom.core.data import ClientData
from fedloom.core.evaluate import model_at
from fedloom.core.rng import rng_scope
from fedloom.core.score import Moment
from fedloom.core.site import Visit
from fedloom.core.threads import on_one_thread
from fedloom.data import FederatedData, RemoteData, Source, federate, load
from fedloom.data.local import input_columns
from fedloom.deploy.project.schema import Schema, check_site, site_schema
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.config import SiteConfig
from fedloom.deploy.site.noise_key import noise_key
from fedloom.deploy.site.quota import check_room
from fedloom.deploy.site.state_binding import acting_settings, bind, settings_digest
from fedloom.engines import check_device
from fedloom.engines.flower.node import Node
from fedloom.engines.flower.site_store import SiteStore
from fedloom.extensions import load_extensions
from fedloom.policy import SiteFacts, facts_of
from fedloom.runs.client_models import card_of
from fedloom.runs.encoder import through_encoder
from fedloom.runs.experiment import Experiment, task_targets
from fedloom.serving.model import PersonalModel


class SiteData:
    """A site in a federation with these settings."""

    def __init__(self, config: SiteConfig, settings: Settings) -> None:
        load_extensions(settings.run.imports)  # the data may be of a user's own kind
        self.config, self.settings = config, settings

    @cached_property
    def source(self) -> Source:
        """All rows of the site, as the run's networks see them."""
        return through_encoder(self.rows, self.settings.run)

    @cached_property
    def rows(self) -> Source:
        """The same as the site has them, which is what a schema describes."""
        run = self.settings.run
        agreed_names = None if self.agreed is None else self.agreed.class_names
        targets = None if self.agreed is None else self.agreed.targets
        return load(
            self.config.data,
            normalize=run.normalization,
            image_size=run.image_size,
            label=self.config.label,
            class_names=self.settings.class_names or agreed_names,
            targets=task_targets(run) or targets,
            fields=() if self.agreed is None else self.agreed.fields,
        )

    @cached_property
    def agreed(self) -> Schema | None:
        """The schema that the site was given, if any."""
        file = self.config.schema_file
        return None if file is None else Schema.read(file, "get it from whoever runs the server")

    @cached_property
    def schema(self) -> Schema:
        """What the site's data looks like; refuses data that is not as the site's schema says."""
        config, agreed = self.config, self.agreed
        actual = site_schema(self.rows, config.data, config.label, config.units, agreed)
        if agreed is not None:
            check_site(agreed, actual, config.data)
        return actual

    @cached_property
    def divided(self) -> FederatedData:
        """The site's rows as train, validation and test."""
        run = self.settings.run
        seed, augment = run.partition_seed, run.augment
        return federate(self.source, "iid", 1, seed, run.split, augment=augment)

    def facts(self) -> SiteFacts:
        """The numbers by which the site's policy judges these settings."""
        return facts_of(self.divided)

    def hello(self) -> dict[str, Any]:
        """What the server learns before the first round: no row, and not how many there are."""
        return introduction(self.config.name, self.schema)

    def node(self) -> Node:
        """The site as the other end of the server's messages."""
        on_one_thread()
        _ = self.schema  # data that was changed since the introduction is refused here
        experiment = self.experiment()
        folder = self.config.state / self.settings.experiment
        check_room(self.config.state, self.config.most_disk)
        bind(folder, self.settings)
        data: ClientData = self.divided.client(0)
        partition = self.divided.partition
        rows = f"{partition.source} {partition.fingerprint}"
        experiment.program.system_secrets = True
        experiment.program.outputs.keep_on_disk(folder / "outputs", rows)

        def save(visit: Visit) -> None:
            moment: Moment = "final" if visit.program.adapt else "received"
            with rng_scope(*visit.down.plan.key, visit.cid, "evaluate", moment):
                state = model_at(visit, moment)
            card = card_of(
                experiment,
                self.divided,
                state,
                cid=visit.cid,
                holder=0,
                name=self.config.name,
                moment=moment,
                number=visit.down.plan.t,
                columns=input_columns(self.config.data, self.config.label),
            )
            words = self.divided.source.words
            PersonalModel.of(experiment.program, state, card, words).save(folder / "model")

        return Node(
            experiment.program,
            data,
            SiteStore(folder / "states", self.settings.keep_rounds),
            check_device(self.config.device),
            self.settings.lost_state,
            save,
            noise_key=self._noise_key(rows),
        )

    def _noise_key(self, rows: str) -> bytes | None:
        """The site's secret for these rows and settings, where the run hides something."""
        if self.settings.run.privacy is None:
            return None
        decisive = settings_digest(acting_settings(self.settings))
        return noise_key(self.config.state, f"{rows} {decisive}")

    def experiment(self) -> Experiment:
        """The run as this site sees it."""
        return Experiment.build(self.settings.run, data=self._remote_data())

    def _remote_data(self) -> RemoteData:
        source, places = self.source, self.settings.run.clients
        assert places is not None
        return RemoteData(
            places,
            source.shape,
            source.class_names,
            source.kind,
            source.vocabulary,
            source.targets,
            fields=source.fields,
        )


def introduction(name: str, schema: Schema) -> dict[str, Any]:
    """How a site with such data introduces itself."""
    return {
        "site": name,
        "shape": list(schema.shape),
        "kind": schema.kind,
        "class_names": list(schema.class_names),
        "vocabulary": schema.vocabulary,
        **({} if schema.targets == "classes" else {"targets": schema.targets}),
        # Flower's records hold numbers and texts, and lists of them.
        **({"fields": [json.dumps(asdict(f)) for f in schema.fields]} if schema.fields else {}),
        "schema": schema.digest,
        "fedloom": version("fedloom"),
        "torch": torch.__version__,
    }
