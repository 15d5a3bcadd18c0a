"""The form of what may leave, found by playing clients with made-up rows of the site's shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedloom.core.dry_run import MadeUpData, PlayedVisit, in_short, play
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.score import SplitName
from fedloom.core.secure.form import STEPS, answer_form
from fedloom.core.secure.slices import SECURE
from fedloom.core.tree import State
from fedloom.deploy.gate.form import Form, TensorForm, Upload, step_name
from fedloom.engines.flower import codec
from fedloom.engines.flower.codec import Reply
from fedloom.engines.flower.expected_upload import MOST_ROWS, score_names
from fedloom.engines.record_names import STATE
from fedloom.runs.experiment import Experiment

PLAYED_ROUNDS = 3
"""A client is new in the first, comes again in the second, and in the third as one who came
again. A step that looks different only later is not known, and refused."""
MOST_COHORTS = 50
"""Numbers of participants that are played, the largest ones."""


def form_of(experiment: Experiment) -> Form:
    """What an honest client of this run sends, whoever else takes part in a round."""
    data, config = experiment.data, experiment.config
    cohorts = range(experiment.program.clients, max(1, config.min_clients) - 1, -1)
    tokens = data.kind == "text"
    rounds, splits = config.rounds, experiment.splits
    return derive_form(experiment.program, data.classes, tokens, rounds, splits, cohorts)


def derive_form(
    program: Program,
    classes: int,
    tokens: bool,
    rounds: int,
    splits: tuple[SplitName, ...],
    cohorts: Sequence[int],
) -> Form:
    """The same, of a program and the kind of its data; `cohorts` are numbers of participants, of
    which what a client sends may depend."""
    steps = Counter(f"{plan.kind} {plan.owner}" for plan in program.schedule(rounds))
    program = in_short(program)
    rows = max(2, min(MOST_ROWS, program.method.opt.batch))
    data = MadeUpData(program, classes, rows, classes, tokens)
    networks = len(program.nets)
    uploads: dict[str, list[Upload]] = {}
    scores: dict[str, tuple[str, ...]] = {}
    for number, size in enumerate(cohorts[:MOST_COHORTS]):
        schedule = program.schedule(min(PLAYED_ROUNDS if number == 0 else 1, rounds))
        plans = [plan for plan in schedule if plan.kind != "adapt"]
        # Two clients of every network: some methods send more about one who is not alone.
        players = range(min(size, 2 * networks))
        for played in play(data, plans, range(size), players):
            plan, cid = played.visit.down.plan, played.visit.cid
            known = uploads.setdefault(step_name(cid % networks, plan.kind, plan.owner), [])
            if (upload := _upload(played)) not in known:
                known.append(upload)
            if number == 0 and plan.kind == "train" and plan.t == 1:
                scores |= score_names(played)
    if program.secure is not None:
        steps |= _around_rounds(uploads, steps, networks, cohorts)
    return Form(
        networks=networks,
        uploads={name: tuple(known) for name, known in uploads.items()},
        steps=dict(steps),
        scores=scores,
        splits=splits,
        hides_rows=program.secure is not None,
    )


def _around_rounds(
    uploads: dict[str, list[Upload]], rounds: Counter[str], networks: int, cohorts: Sequence[int]
) -> Counter[str]:
    """What secure aggregation asks before and after every round with an upload; returns how
    often."""
    times = sum(count for step, count in rounds.items() if not step.startswith("adapt"))
    steps = Counter[str]()
    for step in STEPS:
        owner = f"{SECURE}.{step}"
        steps[f"special {owner}"] = times
        forms = [_form(answer_form(owner, size)) for size in cohorts]
        for network in range(networks):
            uploads[step_name(network, "special", owner)] = forms[:1] if step == "keys" else forms
    return steps


def _upload(played: PlayedVisit) -> Upload:
    return _form(played.up.state)


def _form(state: State) -> Upload:
    records = codec.write_reply(Reply(0, Up(state, 0), ""))
    return {
        name.removeprefix(STATE): {
            key: TensorForm(dtype=array.dtype, shape=array.shape) for key, array in tree.items()
        }
        for name, tree in records.array_records.items()
    }
