"""What trials may see: training and validation rows of the clients, and no test row at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedloom.core.protocol import Protocol
from fedloom.data import FederatedData
from fedloom.data.partition.assignment import ClientRows
from fedloom.data.partition.draw import empty, rng
from fedloom.errors import BadInput

SHARE = 0.2
"""Of a client's training rows, held out where the split leaves no validation rows."""


def without_tests(data: FederatedData, seed: int) -> tuple[FederatedData, str]:
    """The data that trials train and are scored on, and a sentence on its validation rows.

    Test rows are taken out of it, those that all clients share too, so that no choice can depend
    on them.
    """
    clients = list(data.partition.clients)
    if any(len(client.val) for client in clients):
        remark = "scored on the split's validation rows"
        kept = [ClientRows(client.train, client.val) for client in clients]
    else:
        remark = (
            f"the split leaves no validation rows, so trials hold {SHARE:.0%} of every client's"
            " training rows out and are scored on these"
        )
        kept = [_held_out(client, seed, cid) for cid, client in enumerate(clients)]
        if not any(len(client.val) for client in kept):
            raise BadInput(
                "no client has enough training rows to hold some out for validation; choose a split"
                " with validation rows, for instance 'merged(train=0.6, val=0.2)'"
            )
    partition = replace(data.partition, clients=tuple(kept), shared={})
    return replace(data, partition=partition), remark


def _held_out(client: ClientRows, seed: int, cid: int) -> ClientRows:
    """A share of the training rows, rounded, but never the only row."""
    shuffled = rng(seed, "held out for tuning", cid).permutation(client.train)
    size = min(max(1, round(SHARE * len(shuffled))), len(shuffled) - 1)
    val, train = (np.sort(rows) for rows in (shuffled[:size], shuffled[size:]))
    return ClientRows(train, val if size else empty())


def on_validation_rows(protocol: Protocol) -> Protocol:
    """The protocol with validation rows in the place of test rows.

    Its model, moment and average stay. Newcomers stay unseen, so the members are scored in their
    place. Everybody in a last round would keep a trial from being given more rounds.
    """
    return replace(
        protocol,
        split="val",
        on="clients",
        clients="all" if protocol.clients == "new" else protocol.clients,
        also=(),
        full_last_round=False,
    )
