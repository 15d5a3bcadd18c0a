"""The server of a deployment: wait for sites, start or continue the run, have models saved."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.serverapp import Grid

from fedloom.core.round import Round, send
from fedloom.deploy.project.public_keys import PublicKeys
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.server.run_record import RunRecord
from fedloom.deploy.server.site_registry import SiteRegistry
from fedloom.deploy.settings import Settings
from fedloom.engines import Job
from fedloom.engines.flower import Flower, Line, Roster, Traffic
from fedloom.engines.flower.bounds import Bounds
from fedloom.errors import BadInput
from fedloom.launch.start import go_on, start
from fedloom.record import RoundRecord, Summary
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths
from fedloom.runs.result import Result
from fedloom.runs.stored import difference
from fedloom.runs.watcher import RunView, Watcher

log = logging.getLogger("fedloom")


def serve(
    grid: Grid,
    settings: Settings,
    schema: Schema,
    keys: PublicKeys | None = None,
    poll: float = 0.5,
    project: Path | None = None,
) -> Result:
    """Train, or go on from the checkpoint of an earlier server; `run.out` is the server's folder.

    In it, `run` is the run's folder and `sites.json` says who is which client. `keys` are those
    that are let in; None: without authentication. The audit log is in the folder of the `project`.
    """
    if settings.run.out is None:
        raise BadInput("a deployment needs out = a folder on the server for checkpoints")
    folder = Path(settings.run.out)
    registry = SiteRegistry(folder / "sites.json", settings, schema)
    line, traffic = Line(grid, settings.deadline, poll), Traffic()
    record = None if project is None else RunRecord(project, grid.run, registry, settings, traffic)
    if record is not None:
        record.submitted()
    roster = Roster(
        line,
        registry.admit,
        None if keys is None else keys.name_of,
        *([] if record is None else [record.turned_away]),
    )
    bounds = Bounds(settings.most_rows, settings.most_rows_ratio, settings.most_norm)
    least, patience, kept = settings.run.min_clients, settings.patience, settings.keep_rounds
    counted = None if record is None else traffic
    engine = Flower(roster, least, patience, bounds, checkpoints_kept=kept, traffic=counted)
    engine.present(registry.places)
    run = settings.run.changed(out=str(folder / "run"))
    experiment = Experiment.build(run, data=registry.remote_data())
    registry.write()
    watchers: list[Watcher] = [Log(registry), *([] if record is None else [record])]
    if RunPaths(folder / "run").config.exists():
        if other := difference(experiment.config):
            raise BadInput(f"{folder} holds {other}; give it another experiment and out")
        result = go_on(experiment, engine, watchers)
    else:
        result = start(experiment, engine, watchers)
    failed = _save_models(result, engine)
    for cid, why in failed.items():
        log.warning("%s could not save its model: %s", registry.name(cid), why)
    if record is not None:
        record.models_saved(failed)
    return result


def _save_models(result: Result, engine: Flower) -> dict[int, str]:
    """Have every connected site save its model; the shared part is in the run folder."""
    experiment = result.experiment
    r = Round(experiment.program, experiment.plans[-1], result.server)

    def job(cid: int) -> Job:
        own = result.clients.get(cid)
        return Job(cid, send(r, cid, own), own)

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
        metric = run.experiment.program.task.primary
        scores = ", ".join(f"{s.at} {s.spread(metric).mean:.3f}" for s in record.scores)
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
        total = sum(record.rows.values())
        for cid, rows in record.rows.items():
            if len(record.rows) > 2 and rows > total / 2:
                share = 100 * rows / total
                log.warning("%s has %.0f %% of the rows", self.registry.name(cid), share)

    def ended(self, run: RunView, summary: Summary) -> None:
        """The result."""
        log.info(
            "done: %s %.4f, state %s", summary.metric, summary.value, summary.state_sha256[:12]
        )
