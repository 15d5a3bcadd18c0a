"""pFedMe against CharlieDinh/pFedMe: w of the server and of every client, and theta."""

from __future__ import annotations

from typing import Any

from fedloom.core.tree import Tree
from reproduce.parity.charlie_pfedme import (
    BY_SAMPLES,
    COMMIT,
    PACKAGES,
    REPOSITORY,
    run,
    server_of,
    tree,
)
from reproduce.parity.driving import SKEWED
from reproduce.parity.harness import Deviation, Parity, Recorded, two_layers, under

METHOD = (
    "pfedme(lam=12.0, steps=3, inner_lr=0.03, server_lr=1.5, {}, lr=0.05, epochs=1, batch_size=5)"
)


def ours(recorded: Recorded) -> list[Tree]:
    """The server's w, every upload w_i and every theta_i."""
    rounds = []
    for r in recorded.rounds:
        named = under("server", r.server["model"])
        for cid in r.cohort:
            named |= under(f"client {cid}/w", r.up[cid].state["model"])
            named |= under(f"client {cid}/theta", r.kept[cid]["pfedme"])
        rounds.append(named)
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their server's own loop."""
    from FLAlgorithms.servers import serverpFedMe

    settings = {"learning_rate": 0.05, "beta": 1.5, "lamda": 12.0}
    settings |= {"K": 3, "personal_learning_rate": 0.03}
    server = server_of(serverpFedMe.pFedMe, serverpFedMe, recorded, **settings)
    theta: list[Tree] = [{} for _ in server.users]
    for user in server.users:
        user.optimizer.param_groups[0]["mu"] = 0.0
        keep_theta(user, theta, recorded)

    def of_client(cid: int, user: Any) -> Tree:
        return under("w", tree(user.local_model, recorded)) | under("theta", theta[cid])

    return run(
        server,
        recorded,
        order=lambda r, cid: r.epochs(cid)[0],
        aggregation="persionalized_aggregate_parameters",
        of_client=of_client,
    )


def keep_theta(user: Any, theta: list[Tree], recorded: Recorded) -> None:
    """theta is in the model until their training writes w over it."""
    update = user.update_parameters

    def updating(new: Any) -> None:
        theta[int(user.id)] = tree(user.model.parameters(), recorded)
        update(new)

    user.update_parameters = updating


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("warm_start=true, weighting=samples"),
    wrong=(
        METHOD.format("warm_start=false, weighting=samples"),
        METHOD.format("warm_start=true, weighting=uniform"),
        METHOD.format("warm_start=true, weighting=samples, decay=0.9"),
    ),
    data=SKEWED,
    net=two_layers,
    ours=ours,
    theirs=theirs,
    patches=(PACKAGES,),
    deviations=(
        Deviation(
            what="where the steps of theta begin",
            paper="open",
            code="at the theta of the batch before, within a round",
            flag="warm_start=true",
        ),
        BY_SAMPLES,
        Deviation(
            what="weight decay of theta",
            paper="none",
            code="0.001 in every step of theta",
            flag="the program is driven with 0",
        ),
        Deviation(
            what="the model that is tested",
            paper="theta of the last step",
            code="w_i: the list that should hold theta holds the model's own parameters, which w_i"
            " has overwritten by then",
            flag="theta is taken from their model before that",
        ),
    ),
)
