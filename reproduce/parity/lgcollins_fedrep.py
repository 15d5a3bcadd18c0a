"""The program of FedRep's authors, lgcollins/FedRep, which also runs FedPer and LG-FedAvg."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from fedloom.core.tree import Tree
from reproduce.parity.driving import (
    ONE_ABSENT,
    SKEWED,
    AllRoundsSeen,
    Classifier,
    Rows,
    all_used,
    loaders,
    matching,
    models_and_tuned,
    run_script,
    without_bias,
)
from reproduce.parity.harness import Batches, Deviation, Parity, Recorded, empty_module, under

REPOSITORY = "lgcollins/FedRep"
COMMIT = "d82e62982e107bb3322541604f059c0ff28bd289"
TRAINING = "lr=0.1, batch_size=5, momentum=0.5, weight_decay=0.0001"
BIASES = Deviation(
    what="weight decay of biases",
    paper="not mentioned",
    code="0.0001 on weights, none on biases",
    flag="weight_decay=0.0001 and a network without biases",
)
WEIGHTS = Deviation(
    what="weights of the clients",
    paper="by samples",
    code="the same on images, by samples on FEMNIST and Sent140",
    flag="weighting=uniform",
)
LATECOMERS = Deviation(
    what="a client that first takes part in a later round",
    paper="its personal part is as it was drawn at the start",
    code="its personal part begins at the mean of the others', because the copies of clients that"
    " have not trained yet share memory with the server's model",
    flag="all clients take part in the first round; with two of three there, the third differs by"
    " 0.1",
)


def compared(
    method: str,
    wrong: tuple[str, ...],
    algorithm: str,
    local_epochs: int,
    deviations: tuple[Deviation, ...],
) -> Parity:
    """A comparison with one of the program's algorithms."""

    def theirs(recorded: Recorded) -> list[Tree]:
        # The server's mean of the personal parts, which nobody receives, is left out.
        return matching(drive(recorded, algorithm, local_epochs), models_and_tuned(recorded))

    return Parity(
        repository=REPOSITORY,
        commit=COMMIT,
        method=method,
        wrong=wrong,
        data=SKEWED,
        net=without_bias,
        ours=models_and_tuned,
        theirs=theirs,
        cohorts=ONE_ABSENT,
        deviations=(*deviations, BIASES, LATECOMERS),
    )


def drive(recorded: Recorded, algorithm: str, local_epochs: int) -> list[Tree]:
    """Their main script on our rows, batches and weights: the server's model and every client's
    after each round. Its last turn trains the personal part alone for ten epochs; it is cut off
    where our method does not fine-tune."""
    rows, of_clients = Rows(recorded), loaders(recorded)
    seen: list[Tree] = []
    cohorts = [r.cohort for r in recorded.rounds]
    turns = len(cohorts)
    if recorded.program.adapt:
        turns += 1
        for cid, of_client in enumerate(of_clients):
            of_client.queue += recorded.adapted.epochs(cid)

    def loader(dataset: Any, batch_size: int, shuffle: bool) -> Batches:
        if len(seen) == turns:
            raise AllRoundsSeen
        return of_clients[rows.of_client[dataset.idxs[0]]]

    def test(net: Any, *_: object, w_locals: dict[int, Tree], **__: object) -> tuple[float, float]:
        tree = under("server", net.state_dict())
        for cid, own in w_locals.items():
            tree |= under(f"client {cid}", own)
        seen.append(tree)
        return 0.0, 0.0

    def model(_: object) -> Classifier:
        net = Classifier(recorded)
        body = [k for k in net.state_dict() if k.startswith("body")]
        # Their list of layers, of which the first three (FedRep) or the last two (LG) are shared.
        net.weight_keys = [body, [], [], ["head.weight"]]
        return net

    indices = np.arange(len(rows))
    users = {cid: indices[np.equal(rows.of_client, cid)] for cid in range(len(of_clients))}
    empty_module(
        "utils.train_utils",
        get_data=lambda _: (rows, rows, users, users),
        get_model=model,
        read_data=None,
    )
    empty_module("models.test", test_img_local_all=test, test_img_local=None)
    from models import Update

    Update.DataLoader = loader
    arguments = {
        "alg": algorithm,
        "dataset": "mnist",
        "num_users": len(of_clients),
        "frac": 1.0,
        "epochs": len(cohorts),
        "local_ep": local_epochs,
        "local_bs": 5,
        "lr": 0.1,
        "gpu": -1,
    }
    with mock.patch("numpy.random.choice", side_effect=[*cohorts, range(len(of_clients))]):
        run_script("main_fedrep", arguments)
    all_used(of_clients)
    return seen
