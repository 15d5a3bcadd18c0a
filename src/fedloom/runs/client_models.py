"""From what a run left to the model of one client: the one that the run's protocol judges.

The protocol says which model counts (a client's own or the common one) and when (as received,
after local training, after fine-tuning, or as kept at the end). It is made again from the states
under the same random streams, so it is the very model that was scored after the last round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedloom.core.data import data_of
from fedloom.core.digest import RECEIPT, digest
from fedloom.core.evaluate import model_at
from fedloom.core.message import Down, Plan
from fedloom.core.net import METHOD
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.core.round import Round, send
from fedloom.core.score import GLOBAL, PERSONAL, Moment
from fedloom.core.site import CPU, Site, Visit
from fedloom.core.threads import one_thread
from fedloom.core.tree import State, plain_state
from fedloom.data import FederatedData
from fedloom.data.local import input_columns
from fedloom.errors import BadInput, CheckpointError, UnknownName
from fedloom.record import Chosen, Group, RoundRecord
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.choice import curve_at, result_at
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths, current_versions
from fedloom.runs.states import States
from fedloom.runs.store import ClientStates
from fedloom.serving.card import Card
from fedloom.serving.model import PersonalModel, slices_of
from fedloom.serving.preprocessing import raw_dtype

if TYPE_CHECKING:
    from fedloom.runs.result import Result


def client_id(experiment: Experiment, name: int | str) -> int:
    """A client's number from its number or its name."""
    names = experiment.data.client_names
    if isinstance(name, str) and name in names:
        return names.index(name)
    try:
        cid = int(name)
    except ValueError:
        raise UnknownName("client", str(name), names) from None
    if not 0 <= cid < len(names):
        raise BadInput(f"there is no client {cid}; ids go from 0 to {len(names) - 1}")
    return cid


def model_of(run: Result, name: int | str) -> PersonalModel:
    """The model of a client that the run's result is about; of a client that never trained, the
    one it joins with."""
    experiment = run.experiment
    if not isinstance(experiment.data, FederatedData):
        raise BadInput(
            "the clients' models of this run are at their sites; there, open the folder"
            " state/EXPERIMENT/model"
        )
    cid = client_id(experiment, name)
    with one_thread():
        judged = _Judged.of(run, cid)
    state = plain_state(judged.state)
    data, metrics, rows = experiment.data, dict[str, dict[str, float | None]](), dict[str, int]()
    for score in judged.record.scores:
        if (score.at.moment, score.at.model, score.at.group) == judged.key and cid in score.clients:
            place = score.clients.index(cid)
            rows[score.at.split] = score.rows[place]
            metrics[score.at.split] = finite({k: v[place] for k, v in score.metrics.items()})
    card = card_of(
        experiment,
        data,
        state,
        cid=cid,
        holder=cid,
        name=data.client_names[cid],
        model=judged.model,
        moment=judged.moment,
        number=judged.round,
        columns=columns_of(experiment),
        metrics=metrics,
        rows=rows,
    )
    spent = run.summary.privacy
    card = card.model_copy(
        update={
            "chosen_rounds": _other_rounds(run.summary.result, judged.round),
            "epsilon": None if spent is None else spent.epsilon,
        }
    )
    model = PersonalModel.of(experiment.program, state, card, data.source.words)
    model.warn()
    return measured_again(model, data, cid) if model.draws else model


def states_at_chosen_round(run: Result) -> tuple[RoundRecord, States] | None:
    """The training round that a run's result is of, where that is one before the last, and what
    server and clients held after it, where a checkpoint has it."""
    chosen, folder = run.summary.result, run.experiment.config.out
    rounds = [record for record in run.records if record.kind == "train"]
    judged = [record for record in rounds if record.round in chosen.rounds]
    if chosen.select == "last" or len(judged) != 1 or judged == rounds[-1:] or folder is None:
        return None
    clients = ClientStates(int(run.experiment.config.memory * 2**20))
    try:
        snapshot = Checkpoints(RunPaths(folder).checkpoints).load(judged[0].step + 1, clients)
    except CheckpointError:
        return None
    return judged[0], States(snapshot.server, clients)


def _other_rounds(result: Chosen, number: int) -> list[int]:
    """The rounds that a run's result is of, where they are not this one."""
    rounds = sorted(set(result.rounds))
    return [] if result.select == "last" or rounds == [number] else rounds


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as a card has them: None for what is not a number."""
    return {name: value if isfinite(value) else None for name, value in metrics.items()}


def measured_again(model: PersonalModel, data: FederatedData, holder: int) -> PersonalModel:
    """The same, its card with what the model scores by the draws that it keeps; its rows are those
    of client `holder` of `data`."""
    card, measured = model.card, dict[str, dict[str, float | None]]()
    client = data.client(holder)
    for split in card.metrics:
        rows, labels = getattr(data.partition.clients[holder], split), client.split(split)
        if labels is not None and len(labels) == card.rows_scored[split]:
            predictions = model.predict(np.asarray(data.source.x)[rows], encoded=True)
            measured[split] = finite(model.program.task.scores(predictions, labels.y))
    return model.described(metrics_of_fixed_draws=measured)


@dataclass(frozen=True)
class _Judged:
    """The model of a client that counts, which one it is, and the step that may have scored it."""

    state: State
    model: Literal["personal", "global"]
    moment: Moment
    round: int
    group: Group
    record: RoundRecord

    @property
    def key(self) -> tuple[Moment, str, Group]:
        return (self.moment, GLOBAL if self.model == "global" else PERSONAL, self.group)

    @classmethod
    def of(cls, run: Result, cid: int) -> _Judged:
        experiment, program = run.experiment, run.experiment.program
        at, newcomer = result_at(experiment.protocol), cid >= program.clients
        if at.group == "newcomers" and not newcomer:
            at = curve_at(experiment.protocol)
        model: Literal["personal", "global"] = "global" if at.model == GLOBAL else "personal"
        moment: Moment = "received" if model == "global" else at.moment
        if newcomer and model == "personal":
            moment = "adapted"
        if moment == "final" and all(r.kind != "adapt" for r in run.records):
            moment = "received"  # it ended early, and is judged by its curve
        _check_kept(run, cid, moment)
        records = [r for r in run.records if newcomer or moment == "final" or r.kind != "adapt"]
        if moment == "trained":
            records = [r for r in records if r.kind == "train"]
        last, states = last_record(records), States(run.server, run.clients)
        if not newcomer and moment in ("received", "adapted") and run.at_chosen_round is not None:
            last, states = run.at_chosen_round
        group: Group = "newcomers" if newcomer else at.group if model == "personal" else "clients"
        plan = plan_of(program, last)
        if moment == "trained":
            state = _trained(run, cid, plan, last)
        else:
            state = _at(experiment, states, cid, plan, moment, model)
        return cls(state, model, moment, last.round, group, last)


def last_record(records: Sequence[RoundRecord]) -> RoundRecord:
    """The last step of those that count."""
    if not records:
        raise BadInput("the run has no finished round, so no client has a model; let it go on")
    return records[-1]


def plan_of(program: Program, record: RoundRecord) -> Plan:
    """The plan of a step, as far as random streams depend on it."""
    return Plan(record.round, record.kind, record.owner, "all", program.seed, program.clients)


def _check_kept(run: Result, cid: int, moment: Moment) -> None:
    if RECEIPT in run.clients.get(cid, {}):
        raise BadInput(
            "this run's clients kept their states to themselves (engine flower), so their models"
            " are not here; run it with another engine"
        )
    if moment == "trained" and run.before_last_round is None:
        raise BadInput(
            "this run is judged by models after local training, and the states they were trained"
            " from are not kept; run it again with this version, or judge it by another protocol"
        )


def _at(
    experiment: Experiment,
    states: States,
    cid: int,
    plan: Plan,
    moment: Moment,
    model: Literal["personal", "global"],
) -> State:
    program, r = experiment.program, Round(experiment.program, plan, states.server)
    common = model == "global"
    down = Down(plan, {METHOD: states.server[METHOD]}) if common else send(r, cid)
    visit = Visit(program, cid, data_of(experiment.data, cid), down, states.clients.get(cid), CPU)
    with rng_scope(*plan.key, cid, "evaluate", moment):
        return model_at(visit, moment, model)


def _trained(run: Result, cid: int, plan: Plan, record: RoundRecord) -> State:
    """After the last round's local training, done once more from the states it began with."""
    experiment, before = run.experiment, run.before_last_round
    assert before is not None
    if cid not in record.cohort or cid in record.absent:
        return _at(experiment, before, cid, plan, "trained", "personal")
    r = Round(experiment.program, plan, before.server, list(record.cohort))
    data = data_of(experiment.data, cid)
    visit = Visit(experiment.program, cid, data, send(r, cid), before.clients.get(cid), CPU)
    method = experiment.program.method
    with rng_scope(*plan.key, cid):
        site = Site(visit)
        method.local(site)
        with rng_scope(*plan.key, cid, "evaluate", "trained"):
            return method.personalize(site)


def card_of(
    experiment: Experiment,
    data: FederatedData,
    state: State,
    *,
    cid: int,
    holder: int,
    name: str,
    model: Literal["personal", "global"] = "personal",
    moment: Moment,
    number: int,
    columns: Sequence[str] = (),
    metrics: Mapping[str, Mapping[str, float | None]] | None = None,
    rows: Mapping[str, int] | None = None,
) -> Card:
    """The card of client `cid`'s model, whose rows are those of client `holder` of `data`: at a
    site, which has no other clients' data, the first."""
    config, program, source = experiment.config, experiment.program, data.source
    net, shared, scaling = program.net(cid), program.shared(cid), data.scaling(holder)
    images = source.images  # behind an encoder: these are what a user has
    return Card(
        client=cid,
        name=name,
        model=model,
        moment=moment,
        round=number,
        method=config.method,
        network=config.model,
        imports=list(config.imports),
        clients=program.clients,
        seed=config.seed,
        protocol=config.protocol,
        data=source.name,
        data_sha256=source.fingerprint,
        partition=config.partition,
        partition_sha256=data.partition.fingerprint,
        training_rows=data.size(holder),
        kind="image" if images else source.kind,
        shape=list(images or source.shape),
        fields=list(source.fields),
        dtype="uint8" if images else raw_dtype(source),
        vocabulary=source.vocabulary,
        mean=list(scaling.mean),
        std=list(scaling.std),
        columns=list(columns),
        encoder=config.encoder,
        encoded=list(source.shape) if images else [],
        task=str(program.task),
        predicts=program.task.targets,
        outputs=data.classes,
        class_names=list(source.class_names),
        metrics={split: dict(of_split) for split, of_split in (metrics or {}).items()},
        rows_scored=dict(rows or {}),
        shared=[key for key in net.keys if key in shared],
        personal=[key for key in net.keys if key not in shared],
        privacy=config.privacy or "",
        secure_aggregation=config.secure_aggregation or "",
        slices=slices_of(state),
        draws=0,
        state_sha256=digest(state),
        versions=current_versions(),
    )


def columns_of(experiment: Experiment) -> Sequence[str]:
    """The names of a table's inputs, or the one of its texts, where the run's data is a file that
    is still there."""
    config, kind, shape = experiment.config, experiment.data.kind, experiment.data.shape
    if kind not in ("table", "text"):
        return ()
    if config.inputs is not None:
        names: Sequence[str] = [name.strip() for name in config.inputs.split(",")]
    else:
        path = experiment.data_path or Path(config.data).expanduser()
        if not path.exists():
            return ()
        other = {config.client, config.domain}
        names = [name for name in input_columns(path, config.label) if name not in other]
    return names if len(names) == (1 if kind == "text" else shape[0]) else ()
