"""The program of pFedMe's authors, CharlieDinh/pFedMe, which also runs Per-FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import Classifier, absent
from reproduce.parity.harness import Deviation, Played, Recorded, under

REPOSITORY = "CharlieDinh/pFedMe"
COMMIT = "caf24b1f954d4381bd9b4d104ee7eff389e1489b"
PACKAGES = absent("h5py", "torchvision", "torchvision.transforms")
BY_SAMPLES = Deviation(
    what="weights of the clients",
    paper="the same for every participant",
    code="by samples",
    flag="weighting=samples",
)
Pairs = list[tuple[Tensor, Tensor]]


def server_of(kind: Any, module: Any, recorded: Recorded, **settings: object) -> Any:
    """One of their servers on our rows and model, with evaluations and files left out."""
    members = recorded.parity.data

    def pairs(rows: Any) -> Pairs:
        return [(rows.inputs[i], rows.y[i]) for i in range(len(rows))]

    def read_user_data(index: int, *_: object) -> tuple[str, Pairs, Pairs]:
        return str(index), pairs(members[index].train), pairs(members[index].test)

    module.read_data = lambda _: [range(len(members))]
    module.read_user_data = read_user_data
    # Their loss reads logarithms of probabilities.
    model = nn.Sequential(Classifier(recorded), nn.LogSoftmax(-1)), "DNN"
    server = kind(
        device="cpu",
        dataset="none",
        algorithm="",
        model=model,
        batch_size=5,
        num_glob_iters=len(recorded.rounds),
        local_epochs=0,
        optimizer="",
        num_users=len(members),
        times=0,
        **settings,
    )
    measuring = ("evaluate", "evaluate_one_step", "evaluate_personalized_model")
    for name in (*measuring, "save_results", "save_model"):
        setattr(server, name, lambda: None)
    return server


def run(
    server: Any,
    recorded: Recorded,
    order: Callable[[Played, int], list[Tensor]],
    aggregation: str,
    of_client: Callable[[int, Any], Tree],
    batches_of_a_step: int = 1,
) -> list[Tree]:
    """Their server's own loop: its model after every round, and what `of_client` names.

    `order` tells a client's batches of a round; `aggregation` is the name of their method after
    which a round is over.
    """
    seen: list[Tree] = []
    send, aggregate = server.send_parameters, getattr(server, aggregation)

    def sending() -> None:
        for cid, user in enumerate(server.users):
            rows = recorded.parity.data[cid].train
            batches = order(recorded.rounds[len(seen)], cid)
            user.iter_trainloader = iter([(rows.inputs[b], rows.y[b]) for b in batches])
            user.local_epochs = len(batches) // batches_of_a_step  # their number of local steps
        send()

    def aggregating() -> None:
        named: Tree = {}
        for cid, user in enumerate(server.users):
            named |= under(f"client {cid}", of_client(cid, user))
        aggregate()
        named |= under("server", tree(server.model.parameters(), recorded))
        seen.append(named)

    server.send_parameters = sending
    setattr(server, aggregation, aggregating)
    server.train()
    return seen


def tree(params: Iterable[Tensor], recorded: Recorded) -> Tree:
    """Their parameters, which have an order and no names, under our keys."""
    keys = [k for k, _ in Classifier(recorded).named_parameters()]
    return {k: p.detach().clone() for k, p in zip(keys, params, strict=True)}
