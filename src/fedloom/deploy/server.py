"""The server of a deployment: wait for sites, start or continue the run, have models saved."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.serverapp import Grid

from fedloom.core.round import Round, send
from fedloom.deploy.settings import Settings
from fedloom.deploy.site_registry import SiteRegistry
from fedloom.engines import Job
from fedloom.engines.flower import Flower, Line, Roster
from fedloom.errors import BadInput
from fedloom.launch.start import go_on, start
from fedloom.record import RoundRecord, Summary
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths
from fedloom.runs.result import Result
from fedloom.runs.stored import difference
from fedloom.runs.watcher import RunView, Watcher

log = logging.getLogger("fedloom")


def serve(grid: Grid, settings: Settings, poll: float = 0.5) -> Result:
    """Train, or go on from the checkpoint of an earlier server; `run.out` is the server's folder.

    In it, `run` is the run's folder and `sites.json` says who is which client.
    """
    if settings.run.out is None:
        raise BadInput("a deployment needs out = a folder on the server for checkpoints")
    folder = Path(settings.run.out)
    registry = SiteRegistry(folder / "sites.json", settings)
    roster = Roster(Line(grid, settings.deadline, poll), registry.admit)
    engine = Flower(roster, settings.run.min_clients, settings.patience)
    engine.present(registry.places)  # the first site's introduction has the format of the data
    run = settings.run.changed(out=str(folder / "run"))
    experiment = Experiment.build(run, data=registry.remote_data())
    registry.write()
    if RunPaths(folder / "run").config.exists():
        if other := difference(experiment.config):
            raise BadInput(f"{folder} holds {other}; give it another experiment and out")
        result = go_on(experiment, engine, [Log(registry)])
    else:
        result = start(experiment, engine, [Log(registry)])
    for cid, why in _save_models(result, engine).items():
        log.warning("%s could not save its model: %s", registry.name(cid), why)
    return result


def _save_models(result: Result, engine: Flower) -> dict[int, str]:
    """Have every connected site save its model; the shared part is in the run folder."""
    experiment = result.experiment
    r = Round(experiment.program, experiment.plans[-1], result.server)

    def job(cid: int) -> Job:
        return Job(cid, send(r, cid), result.clients.get(cid))

    return engine.save(engine.present(experiment.program.clients), job)


class Log(Watcher):
    """Writes the progress of the run to the server's log."""

    def __init__(self, registry: SiteRegistry) -> None:
        self.registry = registry

    def begun(self, run: RunView) -> None:
        """How much is left."""
        log.info("%d of %d steps are done", run.done, len(run.experiment.plans))

    def step(self, run: RunView, record: RoundRecord) -> None:
        """A line for a round."""
        absent = [f"{self.registry.name(cid)} ({why})" for cid, why in record.absent.items()]
        scores = ", ".join(f"{score.at} {score.spread().mean:.3f}" for score in record.scores)
        log.info(
            "round %d (%s): %d sites, loss %s%s%s, %.1f s",
            record.round,
            record.kind,
            len(record.cohort) - len(record.absent),
            "-" if record.loss is None else f"{record.loss:.4f}",
            f", {scores}" if scores else "",
            f", absent: {', '.join(absent)}" if absent else "",
            record.seconds,
        )

    def ended(self, run: RunView, summary: Summary) -> None:
        """The result."""
        log.info("done: accuracy %.4f, state %s", summary.accuracy, summary.state_sha256[:12])
