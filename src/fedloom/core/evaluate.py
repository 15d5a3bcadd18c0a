"""Which model, when, on whom, on which rows: the evaluation protocol as an object.

`evaluate` scores one client and never changes a state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.core.data import ClientData, Split
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.core.site import SCAN_ROWS, Site, Visit
from fedloom.core.stopwatch import timed
from fedloom.core.tree import State, place, place_state
from fedloom.errors import BadInput

Moment = Literal["received", "trained", "adapted", "final"]
Score = dict[str, float]
"""Metrics of one client on one split; `n` is the number of rows."""
FINAL = "final/"
"""Prefix of the slices that keep a client's adapted model after the last round."""


@dataclass(frozen=True)
class Protocol:
    """How a run is judged.

    `moment`: the model as *received*, after local training (*trained*), after the method's
    fine-tuning (*adapted*), or *final*: what a client ends up with, which is adapted once at the
    end for methods that adapt and as received for the others. `also`: moments to log beside it.
    `select`: which round is the result; choices that look at test rows say so in their name.
    """

    model: Literal["personal", "global"] = "personal"
    moment: Moment = "final"
    clients: Literal["all", "cohort", "new"] = "all"
    split: Literal["test", "val"] = "test"
    on: Literal["clients", "shared"] = "clients"
    select: Literal[
        "last", "best_val", "best_test", "best_test_per_client", "mean_of_five_best_test"
    ] = "last"
    average: Literal["uniform", "samples"] = "uniform"
    also: tuple[Moment, ...] = ()
    full_last_round: bool = False

    def moment_of(self, method: Method) -> Moment:
        """`final` is `received` for a global model and for a method that does not adapt."""
        settled = self.model == "global" or not method.adapt  # nobody adapts a global model
        return "received" if self.moment == "final" and settled else self.moment

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits to score: the reported one, and validation where it selects."""
        return tuple(dict.fromkeys((self.split, *(["val"] if self.select == "best_val" else []))))

    def check(self, program: Program) -> None:
        """Refuse what this method cannot answer."""
        if self.model == "global" and (why := program.global_model_missing()):
            raise BadInput(
                f"{program.method.name} has no global model ({why}); use a protocol with"
                " model='personal'"
            )
        if self.on == "shared" and self.model != "global":
            raise BadInput("shared test sets are scored with the global model; set model='global'")


PROTOCOLS: Mapping[str, Protocol] = {
    "fedloom": Protocol(also=("trained",)),
    # Only who took part, on the model just trained: no round visits all of many clients.
    "cohort": Protocol(moment="trained", clients="cohort"),
    # Before local training, all clients, samples pooled, best round on test, fine-tuning methods
    # after fine-tuning.
    "dbe": Protocol(select="best_test", average="samples"),
    # The aggregated model on shared test domains, mean of the five best evaluations.
    "fedbr": Protocol(
        model="global", moment="received", on="shared", select="mean_of_five_best_test"
    ),
    # After aggregation, every client's own best round.
    "dualfed": Protocol(moment="received", select="best_test_per_client"),
    # All clients after the final head-only epochs.
    "fedcr": Protocol(),
    # After local training; everybody takes part in the last round.
    "fedpac": Protocol(moment="trained", full_last_round=True),
}


@dataclass(frozen=True)
class Ask:
    """What to measure at one client."""

    moments: tuple[Moment, ...]
    splits: tuple[str, ...] = ("test",)
    model: Literal["personal", "global"] = "personal"


def evaluate(visit: Visit, ask: Ask) -> dict[str, Score]:
    """Scores by "moment/split". Trains on copies where the moment needs it; keeps nothing."""
    scores: dict[str, Score] = {}
    for moment in ask.moments:
        with timed("evaluation"), rng_scope(*visit.down.plan.key, visit.cid, "evaluate", moment):
            state = model_at(visit, moment, ask.model)
            scores |= score_client(visit.program, visit.cid, visit.data, state, moment, ask)
    return scores


def score_client(
    program: Program, cid: int, data: ClientData, state: State, moment: Moment, ask: Ask
) -> dict[str, Score]:
    """Scores of one personal state on the splits the client has."""
    rows = {name: data.split(name) for name in ask.splits}
    return {
        f"{moment}/{name}": score_rows(program, program.net(cid), split, state, ask.model)
        for name, split in rows.items()
        if split is not None and len(split) > 0
    }


@torch.no_grad()
def score_rows(
    program: Program, net: Net, split: Split, state: State, model: str = "personal"
) -> Score:
    """Metrics of a state on rows; a global model predicts as plain averaging does."""
    method, personal = program.method, model == "personal"
    predictor = type(method) if personal else Method
    device = next(iter(state[METHOD].values())).device
    found: dict[str, list[Tensor]] = defaultdict(list)
    for rows in torch.split(torch.arange(len(split)), SCAN_ROWS):
        x = place(split.x(rows), device)
        found[""].append(predictor.predict(method, net, state, x).cpu())
        for name, probs in (method.views(net, state, x) if personal else {}).items():
            found[f"_{name}"].append(probs.cpu())
    metrics = {
        f"{key}{name}": value
        for name, parts in found.items()
        for key, value in program.task.metrics(torch.cat(parts), split.y).items()
    }
    return {**metrics, "n": float(len(split))}


def global_state(program: Program, server: State) -> State:
    """The global model: what is shared, and the initial values of the rest."""
    return {METHOD: {**program.nets[0].tree(), **server.get(METHOD, {})}}


def model_at(visit: Visit, moment: Moment, model: str = "personal") -> State:
    """The model of a moment, trained on copies where it needs training."""
    method = visit.program.method
    if model == "global":
        return place_state(global_state(visit.program, visit.down.state), visit.device)
    if moment == "final":
        if not (final := kept_final(visit.own or {})):
            raise BadInput(f"client {visit.cid} has no final model; it has not been adapted yet")
        return place_state(final, visit.device)
    site = Site(visit)
    if moment == "trained" or (moment == "adapted" and site.newcomer and not method.adapt):
        method.local(site)
    elif moment == "adapted":
        adapt(site)
    return method.personalize(site)


def kept_final(own: State) -> State:
    """The adapted model a client keeps, if it has one."""
    return {k.removeprefix(FINAL): t for k, t in own.items() if k.startswith(FINAL)}


def adapt(site: Site) -> Site:
    """The method's fine-tuning, with plain gradient steps."""
    for phase in site.method.adapt:
        site.fit(phase, plain=True)
    return site


def summarize(values: Sequence[float], n: Sequence[float]) -> dict[str, float]:
    """Mean over clients, sample-weighted mean, standard deviation, mean of the worst tenth.

    >>> summarize([1.0, 0.5], [3, 1])["weighted"]
    0.875
    """
    v, w = torch.tensor(values, dtype=torch.float64), torch.tensor(n, dtype=torch.float64)
    worst = v.sort().values[: max(1, len(values) // 10)]
    return {
        "mean": float(v.mean()),
        "weighted": float((v * w).sum() / w.sum()),
        "std": float(v.std(unbiased=False)),
        "worst_decile": float(worst.mean()),
    }
