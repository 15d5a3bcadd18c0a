"""The program of FedETF's authors, ZexiLee/ICCV-2023-FedETF, which also runs Fed-RoD."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from reproduce.parity.driving import absent
from reproduce.parity.harness import Batches, Deviation, Recorded, module_of

REPOSITORY = "ZexiLee/ICCV-2023-FedETF"
COMMIT = "092ace3471d0489c432fcde811ed7b7081042720"
PACKAGES = absent(
    "pyhessian", "six", "torchvision", "torchvision.datasets", "torchvision.transforms"
)
ABSENT_CLASSES = Deviation(
    what="classes that a client lacks",
    paper="N_c = 0 takes a class out of the balanced softmax",
    code="counted as one sample",
    flag="clients that hold all classes, where both are the same",
)
DIM = 4


class Model(nn.Module):
    """A network as theirs are built: normalised projections, logits of a linear head, features."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        from models_dict.proto_classifiers import Proto_Classifier

        net = recorded.program.nets[0]
        self.body = module_of(net, "body").body
        self.linear_proto = nn.Linear(5, DIM)
        self.proto_classifier = Proto_Classifier(DIM, 4)
        self.scaling_train = nn.Parameter(torch.tensor(1.0))
        self.linear_head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.body(x)
        u = nn.functional.normalize(self.linear_proto(z), dim=1)
        return u, self.linear_head(z), z


def node(recorded: Recorded, model: Model, cid: int | None) -> Any:
    """What their functions read of a client or, without an id, of the server."""
    decay = recorded.program.method.opt.weight_decay
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay)
    made = SimpleNamespace(model=model, optimizer=optimizer)
    if cid is not None:
        rows = recorded.parity.data[cid].train
        made.local_data = Batches(rows)
        made.sample_per_class = torch.bincount(rows.y, minlength=4)
    return made


def arguments(method: str) -> Namespace:
    """Their settings; averaging is by samples."""
    settings = Namespace(client_method=method, server_method="fedavg", E=2, lr=0.1, momentum=0.0)
    settings.local_wd_rate = 0.001
    return settings


def run(recorded: Recorded, method: str, clients: dict[int, Any], server: Any) -> Any:
    """Their updates of clients and server, round by round."""
    from client_funct import Client_update
    from server_funct import Server_update

    sizes = [len(m.train) for m in recorded.parity.data]
    shares = [n / sum(sizes) for n in sizes]
    for r in recorded.rounds:
        for cid in r.cohort:
            clients[cid].local_data.queue = r.epochs(cid)
        Client_update(arguments(method), clients, server, r.cohort)
        Server_update(arguments(method), server, clients, r.cohort, shares)
        yield r
