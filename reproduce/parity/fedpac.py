"""FedPAC against JianXu95/FedPAC: extractor, heads, centroids, statistics and head weights."""

from __future__ import annotations

from argparse import Namespace
from unittest import mock

import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree
from fedloom.ops.combination import combination_weights
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    federation,
    module_of,
    two_layers,
    under,
)

CLASSES = 4
HEAD = ("head.weight", "head.bias")
METHOD = "fedpac({}, lr=0.05, epochs=2, batch_size=5, momentum=0.5, weight_decay=0.0005)"


class Model(nn.Module):
    """Features and logits, as the author's client expects them."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self.classifier_weight_keys = list(HEAD)
        copies = module_of(recorded.program.nets[0])
        self.body, self.head = copies.body, copies.head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x)
        return z, self.head(z)


def eigenvalues_of_old_torch() -> None:
    """torch.eig, which torch 1.13 removed, from torch.linalg.eig."""

    def eig(matrix: Tensor, eigenvectors: bool = False) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eig(matrix)
        return torch.view_as_real(values), vectors.real

    torch.eig = eig


def ours(recorded: Recorded) -> list[Tree]:
    """The server's extractor and centroids; of every client its head and, where it took part, its
    statistics and the weights of the heads."""
    rounds = []
    for r in recorded.rounds:
        mine = r.server["fedpac"]
        tree = under("server", {k: v for k, v in r.server["model"].items() if "body" in k})
        tree |= {"server/centroids": mine["centroids"][0]}
        for cid in range(recorded.program.clients):
            tree |= under(f"client {cid}", {k: mine[k][cid] for k in mine if "head" in k})
        uploads = [r.up[cid].state["fedpac"] for cid in r.cohort]
        stacked = {k: torch.stack([up[k] for up in uploads]) for k in uploads[0]}
        weights = combination_weights(stacked, drop_below=recorded.program.method.drop_below)
        for cid, up, row in zip(r.cohort, uploads, weights, strict=True):
            tree |= under(f"client {cid}", {"h": up["h"], "weights": row})
            tree |= {f"client {cid}/v": up["variance"] / up["counts"].sum()}
        rounds.append(tree)
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their clients and their round function, told who takes part."""
    import running
    from methods.fedpac import LocalUpdate_FedPAC

    members = recorded.parity.data
    args = Namespace(num_classes=CLASSES, device="cpu", lr=0.05, lam=1.0, local_epoch=2)
    args.num_users, args.epochs, args.agg_g = len(members), len(recorded.rounds), 1
    loaders = [Batches(m.train) for m in members]
    clients = [
        LocalUpdate_FedPAC(i, args, loader, Batches(m.test), Model(recorded))
        for i, (m, loader) in enumerate(zip(members, loaders, strict=True))
    ]
    server = Model(recorded)
    rounds = []
    for t, r in enumerate(recorded.rounds):
        for cid in r.cohort:
            # They pass over the rows for the statistics and for the centroids before training.
            before = [loaders[cid].in_order] * 2
            loaders[cid].queue = [*before, *r.epochs(cid)]
        args.frac = len(r.cohort) / len(members)
        seen = Seen(running)
        with mock.patch("numpy.random.choice", return_value=r.cohort), seen:
            running.train_round_fedpac(args, server, clients, t)
        rounds.append(named(clients, r.cohort, seen))
    return rounds


class Seen:
    """Statistics, centroids and weights as they pass through the author's server."""

    def __init__(self, running: object) -> None:
        self.weights: list[list[float]] = []
        self.variances: list[float] = []
        self.means: list[Tensor] = []
        solve = running.get_head_agg_weight

        def solved(users: int, variances: list[float], means: list[Tensor]) -> list[list[float]]:
            self.variances, self.means = variances, means
            self.weights = solve(users, variances, means)
            return self.weights

        self._patch = mock.patch.object(running, "get_head_agg_weight", solved)

    def __enter__(self) -> Seen:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


def named(clients: list, cohort: list[int], seen: Seen) -> Tree:
    """Their tensors of one round."""
    shared = clients[0].local_model.state_dict()  # the extractor is every client's
    tree = under("server", {k: v for k, v in shared.items() if "body" in k})
    tree |= {"server/centroids": clients[0].g_protos.clone()}
    for cid, client in enumerate(clients):
        tree |= under(
            f"client {cid}", client.local_model.state_dict(), ["head.weight", "head.bias"]
        )
    for at, cid in enumerate(cohort):
        weights = torch.tensor(seen.weights[at], dtype=torch.float64)
        tree |= under(f"client {cid}", {"h": seen.means[at], "weights": weights / weights.sum()})
        tree |= {f"client {cid}/v": torch.tensor(seen.variances[at])}
    return tree


PARITY = Parity(
    repository="JianXu95/FedPAC",
    commit="5770f4ff8f11ad3be61c2a62b038245fa3f25248",
    method=METHOD.format("drop_below=0.001"),
    wrong=(
        METHOD.format("drop_below=0.0"),
        METHOD.format("drop_below=0.001, lam=0.9"),
        METHOD.format("drop_below=0.001, head_lr=0.05"),
        METHOD.format("drop_below=0.001, center=true"),
    ),
    # With these rows some weights are between 0 and 0.001.
    data=federation((22, 24, 11, 14), CLASSES, held=[(0, 1, 2), (1, 2, 3), (1, 2, 3), (0, 2)]),
    net=lambda: two_layers(classes=CLASSES),
    ours=ours,
    theirs=theirs,
    cohorts=(None, None, None, (0, 1)),
    patches=(eigenvalues_of_old_torch,),
    deviations=(
        Deviation(
            what="small head weights",
            paper="every weight of the quadratic program counts",
            code="weights below 0.001 are set to zero and the others rescaled",
            flag="drop_below=0.001",
        ),
        Deviation(
            what="zero-centred features",
            paper="an assumption of the analysis, which names it as possible in practice",
            code="not done",
            flag="center=false, the default",
        ),
        Deviation(
            what="rounding in the quadratic program",
            paper="not stated",
            code="where rounding makes an eigenvalue negative, only eigenvalues from 0.01 remain",
            flag="not compared: it does not occur with these rows, and fedloom has no such step",
        ),
        Deviation(
            what="a class that no participant holds",
            paper="not stated",
            code="the program stops with an error",
            flag="not compared: every class is held in every round",
        ),
    ),
)
