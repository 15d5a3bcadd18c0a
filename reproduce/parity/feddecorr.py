"""FedDecorr against bytedance/FedDecorr: the server's model and every upload."""

from __future__ import annotations

from argparse import Namespace
from typing import Any
from unittest import mock

from torch import Tensor

from fedloom.core.tree import Tree
from reproduce.parity.driving import (
    ONE_ABSENT,
    Classifier,
    all_used,
    loaders,
    uploads,
    without_a_gpu,
)
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    empty_module,
    federation,
    two_layers,
    under,
)

METHOD = (
    "fedavg(lr=0.05, epochs=2, batch_size=8, momentum=0.5, weight_decay=0.00001) + feddecorr({})"
)


class Model(Classifier):
    """Logits, and features where they are wanted."""

    def forward(self, x: Tensor, return_features: bool = False) -> Any:
        z = self.body(x)
        return (self.head(z), z) if return_features else self.head(z)


def theirs(recorded: Recorded) -> list[Tree]:
    """Their class of federated averaging with its option `feddecorr`."""
    empty_module("utils", compute_accuracy=lambda *_: (0.0, 0.0))
    from approach.fedavg import FedAvg

    members, of_clients = recorded.parity.data, loaders(recorded)
    args = Namespace(n_comm_round=len(recorded.rounds), epochs=2, lr=0.05, rho=0.5)
    args.weight_decay, args.print_interval, args.save_interval = 0.00001, 100, 100
    program = FedAvg(
        args,
        FedAvg.extra_parser(["--feddecorr", "--feddecorr_coef", "0.1"]),
        logger=mock.MagicMock(),
        party_list_rounds=[r.cohort for r in recorded.rounds],
        party2nets={cid: Model(recorded) for cid in range(len(members))},
        global_net=Model(recorded),
        party2loaders=dict(enumerate(of_clients)),
        global_train_dl=None,
        test_dl=Batches(members[0].test),
    )
    seen: list[Tree] = []
    aggregate = program.global_aggregation

    def aggregating(nets: dict[int, Model]) -> None:
        aggregate(nets)
        tree = under("server", program.global_net.state_dict())
        for cid, net in nets.items():
            tree |= under(f"client {cid}", net.state_dict())
        seen.append(tree)

    with mock.patch.object(program, "global_aggregation", aggregating):
        program.run_fed()
    all_used(of_clients)
    return seen


PARITY = Parity(
    repository="bytedance/FedDecorr",
    commit="973e4af2d416e8dacda1fb19a328e440f9e815af",
    method=METHOD.format("beta=0.1, published=true"),
    wrong=(METHOD.format("beta=0.1"), METHOD.format("beta=0.2, published=true")),
    data=federation((14, 16, 21), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=two_layers,
    ours=uploads,
    theirs=theirs,
    cohorts=ONE_ABSENT,
    patches=(without_a_gpu,),
    deviations=(
        Deviation(
            what="the correlation matrix",
            paper="products divided by n before they are squared, the diagonal included",
            code="divided by n after the squares, which is n times as much, without the diagonal",
            flag="published=true",
        ),
    ),
)
