"""A whole deployment on this machine's loopback: certificates, link, nodes, a run, models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedloom.core.metrics import metric
from fedloom.data import federate, load
from fedloom.deploy.consent.decision import Desk
from fedloom.deploy.gate.assess import assess
from fedloom.deploy.gate.form import Assessment
from fedloom.deploy.processes.children import ChildFailed, free_ports
from fedloom.deploy.processes.federation import DeployedFederation, Run, app_of, is_connected
from fedloom.deploy.project.folder import Project
from fedloom.deploy.project.new import write_project
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.policy import Policy
from fedloom.policy.table import commented_table, stated_table
from fedloom.record import RoundRecord
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import read_records
from fedloom.serving.model import PersonalModel, named_in

UNLIKE = "dirichlet(alpha=0.3)"
"""How the digits are divided: sites differ in how many rows they have, and of what."""


@dataclass(frozen=True)
class Outcome:
    """What a site ended up with."""

    site: str
    rows: int
    value: float
    """Of the personal model it saved, on its own test rows."""
    model: Path
    metric: str
    """What the value is."""


@dataclass(frozen=True)
class Rehearsed:
    """A rehearsal that ended well."""

    outcomes: list[Outcome]
    shared: Path
    """The shared part, on the server."""
    seconds: list[float]
    """Of each round."""


class Rehearsal:
    """One rehearsal, bounded in time, with progress on a console."""

    def __init__(self, console: Console, timeout: float) -> None:
        self._end = time.monotonic() + timeout
        self._timeout = timeout
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )

    def perform(self, project: Project) -> Rehearsed:
        """Start everything, train, and try the models; no process is left, whatever happens."""
        rounds = project.settings().run.rounds
        self._approve(project)
        with self._progress, DeployedFederation(project) as federation:
            line = self._progress.add_task("SuperLink", total=None)
            federation.start_link(self._left())
            self._progress.update(line, total=len(federation.nodes))
            for node in federation.nodes.values():
                node.start()
            for name, node in federation.nodes.items():
                self._progress.update(line, description=f"SuperNode of {name}")
                node.ready(lambda node=node: is_connected(node), self._left())  # type: ignore[misc]
                self._progress.advance(line)
            self._progress.update(line, description="SuperNodes")
            run = federation.submit()
            self._follow(federation, run, rounds)
            run.wait(self._left())
        records = read_records(RunPaths(run.out / "run").metrics, RoundRecord)
        outcomes = [_outcome(project, name) for name in federation.nodes]
        return Rehearsed(outcomes, newest_shared(run.out), [record.seconds for record in records])

    def _approve(self, project: Project) -> None:
        line = self._progress.add_task("approval", total=len(project.settings().sites))
        for _ in approved_at_sites(project, by="fedloom deploy local"):
            self._progress.advance(line)

    def _follow(self, federation: DeployedFederation, run: Run, rounds: int) -> None:
        """Show the rounds as the server's journal has them, until the run is over."""
        line = self._progress.add_task("rounds", total=rounds)
        file = RunPaths(run.out / "run").metrics
        while run.child.alive:
            records = read_records(file, RoundRecord)
            newest = records[-1].headline if records else None
            status = (
                ""
                if newest is None
                else f" ({newest.metric} {metric(newest.metric).shown(newest.value, 1)})"
            )
            self._progress.update(line, completed=len(records), description=f"rounds{status}")
            for child in (federation.link, *federation.nodes.values()):
                if not child.alive:
                    raise ChildFailed(f"{child.name} ended with code {child.code}:\n{child.tail()}")
            if self._left() <= 1.0:
                raise ChildFailed(
                    f"not done in {self._timeout:g} s; the run so far:\n{run.child.tail()}"
                )
            time.sleep(0.5)
        self._progress.update(line, completed=rounds)

    def _left(self) -> float:
        return max(1.0, self._end - time.monotonic())


def approved_at_sites(project: Project, by: str) -> Iterator[str]:
    """Approve a project's run as the operator of every site would, under the same rules but without
    asking; yields the names of sites."""
    app = app_of(project)
    for name in project.settings().sites:
        Desk(project.site(name)).approve_beforehand(app, project.config, by=by, how=_assess)
        yield name


def _assess(file: Path, digest: str, with_app: bool) -> Assessment:
    """In this process: the federation is the user's own, and its code was imported here."""
    with tempfile.TemporaryDirectory(prefix="fedloom-") as scratch:
        return assess(file, digest, with_app, Path(scratch))


def digits_project(
    folder: Path, nodes: int, tls: bool, run: Mapping[str, Any], policy: Policy | None = None
) -> Project:
    """A project on free ports of the loopback whose sites hold unlike parts of the digits; `run`
    has keys of the run's configuration, and `policy` is the rules of every site."""
    sites = [f"site-{i + 1}" for i in range(nodes)]
    link, *ports = free_ports(nodes + 1)
    source = load("digits")
    run = {**run, "class_names": source.class_names, "min_clients": nodes}
    schema = Schema(
        kind=source.kind,
        shape=source.shape,
        class_names=source.class_names,
        vocabulary=source.vocabulary,
        columns=(),
    )
    project = write_project(folder, sites, port=link, ports=ports, tls=tls, run=run, schema=schema)
    x, y = np.asarray(source.x), np.asarray(source.y)
    for name, rows in zip(sites, federate(source, UNLIKE, nodes).partition.clients, strict=True):
        file = project.site(name)
        np.savez(file.parent / "data.npz", x=x[rows.all], y=y[rows.all])
        if policy is not None:
            file.write_text(file.read_text().replace(commented_table(), stated_table(policy)))
    return project


def newest_shared(out: Path) -> Path:
    """The newest checkpoint of what all sites share."""
    files = sorted(RunPaths(out / "run").checkpoints.glob("step-*/server.safetensors"))
    if not files:
        raise ChildFailed(f"the server left no checkpoint in {out}")
    return files[-1]


def _outcome(project: Project, name: str) -> Outcome:
    config, settings = SiteConfig.read(project.site(name)), project.settings()
    site = SiteData(config, settings)
    rows = site.divided.partition.clients[0]
    x, y = np.asarray(site.source.x)[rows.test], np.asarray(site.source.y)[rows.test]
    folder = config.state / settings.experiment / "model"
    own = [spec for network in settings.run.model.split("|") for spec in named_in(network.strip())]
    personal = PersonalModel.load(folder, [*settings.run.imports, *own])
    task = personal.program.task
    value = task.measure(personal.predict(x), torch.from_numpy(y))[task.primary]
    return Outcome(name, len(rows.all), value, folder, task.primary)


def outcome_table(done: Rehearsed, root: Path) -> Table:
    """The sites' models, readable; paths are relative to the project's folder."""
    table = Table(title="Every site its own model")
    table.add_column("site")
    table.add_column("rows", justify="right")
    of = metric(done.outcomes[0].metric)
    table.add_column(of.title, justify="right")
    table.add_column("personal model", overflow="fold")
    for o in done.outcomes:
        path = Text(str(o.model.relative_to(root)))
        table.add_row(Text(o.site), str(o.rows), f"{of.factor * o.value:.1f}", path)
    return table
