"""The server of a deployment: wait for sites, run or go on, have every site save its model."""

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
    books = SiteRegistry(folder / "sites.json", settings)
    roster = Roster(Line(grid, settings.deadline, poll), books.admit)
    engine = Flower(roster, settings.run.min_clients, settings.patience)
    engine.present(books.places)  # the first site tells what the data looks like
    run = settings.run.changed(out=str(folder / "run"))
    experiment = Experiment.build(run, data=books.seats())
    books.settle()
    if RunPaths(folder / "run").config.exists():
        if other := difference(experiment.config):
            raise BadInput(f"{folder} holds {other}; give it another experiment and out")
        result = go_on(experiment, engine, [Log(books)])
    else:
        result = start(experiment, engine, [Log(books)])
    for cid, why in _save_models(result, engine).items():
        log.warning("%s could not save its model: %s", books.name(cid), why)
    return result


def _save_models(result: Result, engine: Flower) -> dict[int, str]:
    """Every site that is there keeps what it ends up with; the shared part is in the run folder."""
    experiment = result.experiment
    r = Round(experiment.program, experiment.plans[-1], result.server)

    def job(cid: int) -> Job:
        return Job(cid, send(r, cid), result.clients.get(cid))

    return engine.save(engine.present(experiment.program.clients), job)


class Log(Watcher):
    """Tells the server's log how the run goes."""

    def __init__(self, books: SiteRegistry) -> None:
        self.books = books

    def begun(self, run: RunView) -> None:
        """How much is left."""
        log.info("%d of %d steps are done", run.done, len(run.experiment.plans))

    def step(self, run: RunView, record: RoundRecord) -> None:
        """A line for a round."""
        names = ", ".join(f"{self.books.name(cid)} ({why})" for cid, why in record.absent.items())
        scores = ", ".join(f"{score.at} {score.spread().mean:.3f}" for score in record.scores)
        log.info(
            "round %d (%s): %d sites, loss %s%s%s, %.1f s",
            record.round,
            record.kind,
            len(record.cohort) - len(record.absent),
            "-" if record.loss is None else f"{record.loss:.4f}",
            f", {scores}" if scores else "",
            f", absent: {names}" if names else "",
            record.seconds,
        )

    def ended(self, run: RunView, summary: Summary) -> None:
        """The result."""
        log.info("done: accuracy %.4f, state %s", summary.accuracy, summary.state_sha256[:12])
