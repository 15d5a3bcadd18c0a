"""Real answers on the site's own data, computed and described, and neither kept nor sent.

`fedloom deploy try` starts it as a process of its own, because it runs what a run would run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import RecordDict

from fedloom.core.data import ClientData
from fedloom.core.digest import digest
from fedloom.core.dry_run import PlayedVisit, play
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.tree import State
from fedloom.deploy.consent.proposal import App
from fedloom.deploy.gate.assess import assess_settings
from fedloom.deploy.gate.attempted import Attempt, SentTensor, Step
from fedloom.deploy.gate.confined import confined
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines.flower import codec
from fedloom.engines.flower.codec import Reply


@dataclass(frozen=True)
class OwnRows:
    """A program whose every client has this site's rows."""

    program: Program
    rows: ClientData

    def client(self, cid: int) -> ClientData:
        """The site's."""
        return self.rows


def attempt(config: SiteConfig, settings: Settings) -> Attempt:
    """The answers of this site up to its first round of training, as if it were alone; none where
    its policy refuses the settings."""
    torch.set_num_threads(1)
    if refused := assess_settings(config, settings).refusals:
        return Attempt(refusals=refused)
    site = SiteData(config, settings)
    experiment = site.experiment()
    cid = settings.sites.index(config.name) if config.name in settings.sites else 0
    first_round = [plan for plan in experiment.program.schedule(1) if plan.kind != "adapt"]
    data = OwnRows(experiment.program, site.divided.client(0))
    steps = []
    for played in play(data, first_round, [cid]):
        scores = evaluate(played.visit, Ask(("received",), experiment.splits))
        up = Up(played.up.state, played.up.n, played.up.metrics, scores)
        kept = digest(played.kept) if any(played.kept.values()) else ""
        records = codec.write_reply(Reply(cid, up, kept))
        steps.append(_step(played, up, records))
    return Attempt(hello=site.hello(), steps=tuple(steps))


def _step(played: PlayedVisit, up: Up, records: RecordDict) -> Step:
    arrays = records.array_records
    return Step(
        name=str(played.visit.down.plan),
        tensors=tuple(_tensors(up.state)),
        rows=up.n,
        metrics=dict(up.metrics),
        scores=tuple(
            f"{s.model} model, {s.moment}, on {s.rows} {s.split} rows: "
            + ", ".join(f"{name} {value:.6g}" for name, value in s.metrics.items())
            for s in up.scores
        ),
        bytes=sum(len(array.data) for tree in arrays.values() for array in tree.values()),
    )


def _tensors(state: State) -> list[SentTensor]:
    return [
        SentTensor(
            name=f"{slice_}/{key}",
            shape=tuple(value.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            bytes=value.nbytes,
            smallest=float(value.min()) if value.numel() else None,
            largest=float(value.max()) if value.numel() else None,
        )
        for slice_, tree in state.items()
        for key, value in tree.items()
    ]


def main() -> None:
    """`... attempt SITE.TOML CONFIGURATION.json [--app FILE] --result FILE`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("site", type=Path)
    parser.add_argument("configuration", type=Path)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--app", type=Path, help="an app whose code may run")
    words = parser.parse_args()
    with confined(words.site), tempfile.TemporaryDirectory(prefix="fedloom-") as scratch:
        if words.app is not None:
            App(words.app.read_bytes()).unpack(Path(scratch))
            sys.path.insert(0, scratch)
        settings = Settings.read(json.loads(words.configuration.read_text(encoding="utf-8")))
        done = attempt(SiteConfig.read(words.site), settings)
        words.result.write_text(done.model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
