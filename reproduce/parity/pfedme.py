"""pFedMe against CharlieDinh/pFedMe: w of the server and of every client, and theta."""

from __future__ import annotations

from typing import Any
from unittest import mock

from fedloom.core.tree import Tree
from reproduce.parity.charlie_pfedme import (
    COMMIT,
    PACKAGES,
    REPOSITORY,
    batches,
    give_rows,
    logarithms,
    tree,
)
from reproduce.parity.harness import (
    Deviation,
    Parity,
    Recorded,
    federation,
    two_layers,
    under,
)

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
    """Their server's own loop, with its evaluations and files left out."""
    from FLAlgorithms.servers import serverpFedMe

    give_rows(serverpFedMe, recorded)
    members = recorded.parity.data
    server: Any = serverpFedMe.pFedMe(
        device="cpu",
        dataset="none",
        algorithm="pFedMe",
        model=logarithms(recorded),
        batch_size=5,
        learning_rate=0.05,
        beta=1.5,
        lamda=12.0,
        num_glob_iters=len(recorded.rounds),
        local_epochs=0,
        optimizer="pFedMe",
        num_users=len(members),
        K=3,
        personal_learning_rate=0.03,
        times=0,
    )
    for name in ("evaluate", "evaluate_personalized_model", "save_results", "save_model"):
        setattr(server, name, lambda: None)
    theta: list[Tree] = [{} for _ in members]
    for user in server.users:
        user.optimizer.param_groups[0]["mu"] = 0.0
        keep_theta(user, theta, recorded)

    seen: list[Tree] = []
    send, aggregate = server.send_parameters, server.persionalized_aggregate_parameters

    def sending() -> None:
        for cid, user in enumerate(server.users):
            (epoch,) = recorded.rounds[len(seen)].epochs(cid)
            batches(user, epoch, members[cid].train)
            user.local_epochs = len(epoch)  # their number of local steps
        send()

    def aggregating() -> None:
        named: Tree = {}
        for cid, user in enumerate(server.users):
            named |= under(f"client {cid}/w", tree(user.local_model, recorded))
            named |= under(f"client {cid}/theta", theta[cid])
        aggregate()
        named |= under("server", tree(list(server.model.parameters()), recorded))
        seen.append(named)

    with (
        mock.patch.object(server, "send_parameters", sending),
        mock.patch.object(server, "persionalized_aggregate_parameters", aggregating),
    ):
        server.train()
    return seen


def keep_theta(user: Any, theta: list[Tree], recorded: Recorded) -> None:
    """theta is in the model until their training writes w over it."""
    update = user.update_parameters

    def updating(new: Any) -> None:
        theta[int(user.id)] = tree(list(user.model.parameters()), recorded)
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
    data=federation((14, 11, 17), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
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
        Deviation(
            what="weights of the clients",
            paper="the same for every participant",
            code="by samples",
            flag="weighting=samples",
        ),
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
