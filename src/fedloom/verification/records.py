"""What a run wrote down, read back and compared with itself; nothing is computed again here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from fedloom.core.digest import RECEIPT, digest
from fedloom.core.message import Plan
from fedloom.core.round import initial_server
from fedloom.data import Partition
from fedloom.errors import CheckpointError, RunFolderError
from fedloom.files import jsonable
from fedloom.methods import describe
from fedloom.record import RoundRecord, StepDigests, Summary, dump
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.choice import choose, newcomers
from fedloom.runs.config import RunConfig
from fedloom.runs.digests import first_link, kept_after, kept_digest, link_of, record_digest
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths, current_versions
from fedloom.runs.journal import read_lines, read_record, read_records
from fedloom.runs.store import ClientStates
from fedloom.runs.stored import read_config
from fedloom.verification.findings import Tally

DECIDES_BYTES = ("fedloom", "torch", "numpy", "platform", "cpu")
"""Of `versions.json`: what may honestly lead to other bytes."""


@dataclass(frozen=True)
class RunRecords:
    """The files of a run folder, read and never written."""

    paths: RunPaths
    config: RunConfig
    journal: list[bytes]
    """Lines, as they are."""
    steps: list[RoundRecord]
    digests: list[StepDigests]
    summary: Summary | None
    """None: the run goes on, or was stopped."""

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Of a run folder; one without digests is refused."""
        paths, config = RunPaths(path), read_config(path)
        digests = read_records(paths.digests, StepDigests)
        if not digests:
            begun = "was recorded without digests" if read_lines(paths.metrics) else "has no round"
            raise RunFolderError(
                f"the run in {path} {begun}, so there is nothing to verify; run it again with this"
                " version, and compare the summaries' state_sha256"
            )
        summary = read_record(paths.summary, Summary) if paths.summary.exists() else None
        journal = read_lines(paths.metrics)
        steps = read_records(paths.metrics, RoundRecord)
        if summary is None:  # it may be going on: the journal's line comes first
            journal, steps = journal[: len(digests)], steps[: len(digests)]
        return cls(paths, config, journal, steps, digests, summary)

    @property
    def answered(self) -> list[list[int]]:
        """Who answered in each step."""
        return [[entry.client for entry in line.clients] for line in self.digests]

    @property
    def data_is_elsewhere(self) -> bool:
        """Whether this is the server's folder of a deployment, which has no rows."""
        if not self.paths.partition.is_file():
            return False
        partition = Partition.load(self.paths.partition)
        return not len(partition.packed.rows)

    def where(self, step: int) -> str:
        """A step in words."""
        if step >= len(self.steps):
            return f"step {step}"
        record = self.steps[step]
        return (
            f"round {record.round}"
            if record.kind == "train"
            else f"{record.kind} round {record.owner}"
        )

    def server_before(self, step: int) -> str:
        """Digest of the server's state before a step, or after the last."""
        if step < len(self.digests):
            return self.digests[step].server_before
        return self.digests[-1].server_after

    def other_versions(self) -> dict[str, tuple[str, str]]:
        """What the run was computed with and what is here, where it may matter and they differ."""
        was: Mapping[str, object] = json.loads(self.paths.versions.read_text(encoding="utf-8"))
        now = current_versions()
        return {
            name: (str(was[name]), str(now[name]))
            for name in DECIDES_BYTES
            if name in was and was[name] != now[name]
        }


def check_links(run: RunRecords, experiment: Experiment | None, tally: Tally) -> None:
    """Every line against the one before it, and against the journal."""
    link, server = run.digests[0].previous, run.digests[0].server_before
    if experiment is not None:
        link, server = first_link(experiment), digest(initial_server(experiment.program))
    kept: dict[int, str] = {}
    for step, line in enumerate(run.digests):
        first = step == 0
        begun = "the settings, the data or the first weights are not those that were recorded"
        tally.compare(
            "links",
            run.where(step),
            {
                begun: first and (line.previous, line.server_before) != (link, server),
                "the chain is broken before it, a line of digests.jsonl was changed, added or"
                " taken out": not first and (line.previous != link or line.step != step),
                "its line in digests.jsonl was changed": link_of(line) != line.link,
                **_wrong_journal(run, step),
                "the server's state before it is not the one after the step before": not first
                and line.server_before != server,
                "a client's state before it is not the one that the client kept": any(
                    entry.before != kept.get(entry.client, "") for entry in line.clients
                ),
            },
        )
        link, server = line.link, line.server_after
        kept |= {entry.client: entry.after for entry in line.clients}
    extra = len(run.journal) > len(run.digests)
    if extra:
        what = {"metrics.jsonl has lines after the last link": True}
        tally.compare("links", run.where(len(run.digests)), what)


def _wrong_journal(run: RunRecords, step: int) -> dict[str, bool]:
    if step >= len(run.journal):
        return {"metrics.jsonl lacks its line": True}
    record, line = run.steps[step], run.digests[step]
    answered = sorted(set(record.cohort) - set(record.absent))
    return {
        "its line in metrics.jsonl is not the one that was recorded": (
            record_digest(json.loads(run.journal[step])) != line.record
        ),
        "its answers are not those of its cohort": run.answered[step] != answered,
    }


def check_result(
    run: RunRecords, experiment: Experiment | None, plans: Sequence[Plan], tally: Tally
) -> None:
    """The summary against settings and journal: all that it says must follow from them."""
    summary = run.summary
    if summary is None:
        return
    wrong = {
        "its digest is not the last link of the chain": summary.digest != run.digests[-1].link,
        "its state_sha256 is not that of the last states": summary.state_sha256
        != _whole_state(run),
        "the run has fewer steps than its settings ask for, and nothing that ended it early": (
            len(run.steps) < len(plans) and summary.stopped is None
        ),
    }
    for name, value in _stated_elsewhere(run, experiment).items():
        wrong[f"its {name} is not that of the run"] = getattr(summary, name) != value
    if experiment is not None:
        protocol, steps = experiment.protocol, run.steps
        wrong["its result does not follow from metrics.jsonl"] = _plain(
            [dump(summary.result), summary.newcomers and dump(summary.newcomers)]
        ) != _plain(
            [
                dump(choose(protocol, steps)),
                (joined := newcomers(protocol, steps)) and dump(joined),
            ]
        )
    tally.compare("result", run.paths.summary.name, wrong)


def _stated_elsewhere(run: RunRecords, experiment: Experiment | None) -> dict[str, object]:
    """What a summary repeats of the settings and the journal."""
    stated: dict[str, object] = {
        "protocol": run.config.protocol,
        "seed": run.config.seed,
        "rounds": len({record.round for record in run.steps if record.kind == "train"}),
        "bytes_up": sum(record.bytes_up for record in run.steps),
        "bytes_down": sum(record.bytes_down for record in run.steps),
    }
    if experiment is not None:
        stated["method"] = describe(experiment.program.method)
        stated["clients"] = experiment.program.clients
        stated["partition_sha256"] = experiment.data.partition.fingerprint
    return stated


def check_checkpoints(run: RunRecords, tally: Tally) -> list[int]:
    """Every kept checkpoint against the digests; returns the steps that can be begun at."""
    checkpoints = Checkpoints(run.paths.checkpoints)
    usable = []
    for step in dict.fromkeys(reversed(checkpoints.steps())):
        where = f"checkpoint of step {step}"
        if step > len(run.digests):
            if run.summary is not None:
                tally.compare("checkpoints", where, {"the run has no such step": True})
            continue
        clients = ClientStates(int(run.config.memory * 2**20))
        try:
            snapshot = checkpoints.load(step, clients)
        except CheckpointError as error:
            tally.compare("checkpoints", where, {str(error): True})
            continue
        recorded = kept_after(run.digests[:step])
        states = {cid: kept_digest(state) for cid, state in clients.items()}
        good = tally.compare(
            "checkpoints",
            where,
            {
                "the server's state is not the one that was recorded": (
                    digest(snapshot.server) != run.server_before(step)
                ),
                "a client's state is not the one that was recorded": (
                    {cid: sha for cid, sha in states.items() if sha} != recorded
                ),
            },
        )
        if good and not any(RECEIPT in state for state in (snapshot.server, *clients.values())):
            usable.append(step)
    return usable


def _whole_state(run: RunRecords) -> str:
    """`state_sha256`, from the digests alone."""
    sha = sha256(run.digests[-1].server_after.encode())
    for cid, kept in sorted(kept_after(run.digests).items()):
        sha.update(f"client {cid} {kept}\n".encode())
    return sha.hexdigest()


def _plain(value: object) -> str:
    return json.dumps(jsonable(value), sort_keys=True)
