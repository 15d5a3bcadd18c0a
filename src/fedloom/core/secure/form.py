"""What a client sends around a round: names, shapes and types, for whoever checks answers."""

from __future__ import annotations

import torch

from fedloom.core.secure.keys import PUBLIC_BYTES, TOKEN_BYTES
from fedloom.core.secure.secrets import NONCE_BYTES
from fedloom.core.secure.shamir import SHARE_BYTES
from fedloom.core.secure.slices import SECURE, Step
from fedloom.core.tree import State

STEPS: tuple[Step, ...] = ("keys", "shares", "unmask")


def answer_form(owner: str, members: int) -> State:
    """An answer to a plan of this owner, `secure_aggregation.keys` and so on, with zeros in it;
    `members` are the clients that the message lists."""

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.uint8)

    forms = {
        "keys": {"public": zeros(PUBLIC_BYTES)},
        "shares": {
            "nonce": zeros(NONCE_BYTES),
            "public": zeros(PUBLIC_BYTES),
            "commitment": zeros(32),
            "sealed": zeros(members, 2, TOKEN_BYTES),
        },
        "unmask": {"shares": zeros(members, SHARE_BYTES)},
    }
    return {SECURE: forms[owner.removeprefix(f"{SECURE}.")]}
