"""Per-FedAvg, its first-order variant, against CharlieDinh/pFedMe: w of server and clients.

The method's own authors have published no program; pFedMe's compare with this one.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
from reproduce.parity.driving import SKEWED, uploads
from reproduce.parity.harness import Deviation, Parity, Played, Recorded, two_layers

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
    """Their server's own loop."""
    from FLAlgorithms.servers import serverperavg

    sizes = [len(member.train) for member in recorded.parity.data]
    settings = {"learning_rate": 0.05, "beta": 0.1, "lamda": 0}
    return run(
        server_of(serverperavg.PerAvg, serverperavg, recorded, **settings),
        recorded,
        order=lambda r, cid: pairs_of_batches(r, cid, sizes[cid]),
        aggregation="aggregate_parameters",
        of_client=lambda cid, user: tree(user.model.parameters(), recorded),
        batches_of_a_step=2,
    )


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("variant=first_order, weighting=samples"),
    wrong=(
        METHOD.format("variant=hessian_free, weighting=samples"),
        METHOD.format("variant=first_order, weighting=uniform"),
    ),
    data=SKEWED,
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
        BY_SAMPLES,
        Deviation(
            what="the step before a test",
            paper="one gradient step of rate alpha on training rows",
            code="a step of rate alpha and one of rate beta, on test rows",
            flag="not compared",
        ),
    ),
)
