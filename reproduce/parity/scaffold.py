"""SCAFFOLD against Lee-Gihun/FedNTD: the server's model, every upload, and control variates.

SCAFFOLD's own authors have published no program; FedNTD's compare with this one.
"""

from __future__ import annotations

from typing import Any

import torch

from fedloom.core.tree import Tree
from reproduce.parity.driving import ONE_ABSENT, SKEWED, uploads
from reproduce.parity.gihun_fedntd import COMMIT, LOGGING, REPOSITORY, drive
from reproduce.parity.harness import Deviation, Parity, Recorded, two_layers

METHOD = "fedavg({}, lr=0.1, epochs=2, batch_size=5) + control_variates"


def flat(tree: Tree) -> torch.Tensor:
    """One vector in the order of the model's parameters, as their variates are."""
    return torch.cat([v.flatten() for v in tree.values()])


def ours(recorded: Recorded) -> list[Tree]:
    """Beside the models the server's c and every client's c_i."""
    rounds = uploads(recorded)
    for tree, r in zip(rounds, recorded.rounds, strict=True):
        tree["server/c"] = flat(r.server["control_variates"])
        for cid, state in r.kept.items():
            tree[f"client {cid}/c"] = flat(state["control_variates"])
    return rounds


def variates(server: Any) -> Tree:
    """Their c and c_i."""
    own = {f"client {cid}/c": c.clone() for cid, c in enumerate(server.local_c)}
    return {"server/c": server.c.clone(), **own}


def theirs(recorded: Recorded) -> list[Tree]:
    """Their server's run."""
    return drive(
        recorded, "scaffold", variates, momentum=0.0, weight_decay=0.0, adaptive_divison=True
    )


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("weighting=samples"),
    wrong=(METHOD.format("weighting=uniform"), METHOD.format("weighting=samples, momentum=0.5")),
    data=SKEWED,
    net=two_layers,
    ours=ours,
    theirs=theirs,
    cohorts=ONE_ABSENT,
    patches=(LOGGING,),
    deviations=(
        Deviation(
            what="weights of the clients",
            paper="the same for every participant",
            code="by samples",
            flag="fedavg(weighting=samples) + control_variates",
        ),
        Deviation(
            what="control variates under momentum",
            paper="no momentum",
            code="the path is divided by the number of steps that momentum makes of K",
            flag="momentum 0, where both are the same",
        ),
    ),
)
