"""Per-FedAvg, its first-order variant, against CharlieDinh/pFedMe: w of server and clients.

The method's own authors have published no program; pFedMe's compare with this one.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor

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
from reproduce.parity.driving import uploads
from reproduce.parity.harness import (
    Deviation,
    Parity,
    Played,
    Recorded,
    federation,
    two_layers,
    under,
)

METHOD = "perfedavg(alpha=0.05, {}, lr=0.1, epochs=1, batch_size=5)"


def pairs_of_batches(r: Played, cid: int, rows: int) -> list[Tensor]:
    """D and D' of every step in turn: D' is recorded, and D is what the client's generator for
    second batches gives."""
    drawn = r.plan.gen(cid, "perfedavg")
    order = []
    for batch in r.epochs(cid)[0]:
        order += [torch.randperm(rows, generator=drawn)[: len(batch)], batch]
    return order


def theirs(recorded: Recorded) -> list[Tree]:
    """Their server's own loop, with its evaluations and files left out."""
    from FLAlgorithms.servers import serverperavg

    give_rows(serverperavg, recorded)
    members = recorded.parity.data
    server: Any = serverperavg.PerAvg(
        device="cpu",
        dataset="none",
        algorithm="PerAvg",
        model=logarithms(recorded),
        batch_size=5,
        learning_rate=0.05,
        beta=0.1,
        lamda=0,
        num_glob_iters=len(recorded.rounds),
        local_epochs=0,
        optimizer="SGD",
        num_users=len(members),
        times=0,
    )
    for name in ("evaluate_one_step", "save_results", "save_model"):
        setattr(server, name, lambda: None)
    seen: list[Tree] = []
    send, aggregate = server.send_parameters, server.aggregate_parameters

    def sending() -> None:
        for cid, user in enumerate(server.users):
            rows = members[cid].train
            order = pairs_of_batches(recorded.rounds[len(seen)], cid, len(rows))
            batches(user, order, rows)
            user.local_epochs = len(order) // 2  # their number of local steps
        send()

    def aggregating() -> None:
        named: Tree = {}
        for cid, user in enumerate(server.users):
            named |= under(f"client {cid}", tree(list(user.model.parameters()), recorded))
        aggregate()
        named |= under("server", tree(list(server.model.parameters()), recorded))
        seen.append(named)

    with (
        mock.patch.object(server, "send_parameters", sending),
        mock.patch.object(server, "aggregate_parameters", aggregating),
    ):
        server.train()
    return seen


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("variant=first_order, weighting=samples"),
    wrong=(
        METHOD.format("variant=hessian_free, weighting=samples"),
        METHOD.format("variant=first_order, weighting=uniform"),
    ),
    data=federation((14, 11, 17), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=two_layers,
    ours=uploads,
    theirs=theirs,
    patches=(PACKAGES,),
    deviations=(
        Deviation(
            what="the Hessian",
            paper="(I - alpha H) before the outer gradient",
            code="left out",
            flag="variant=first_order",
        ),
        Deviation(
            what="weights of the clients",
            paper="the same for every participant",
            code="by samples",
            flag="weighting=samples",
        ),
        Deviation(
            what="the step before a test",
            paper="one gradient step of rate alpha on training rows",
            code="a step of rate alpha and one of rate beta, on test rows",
            flag="not compared",
        ),
    ),
)
