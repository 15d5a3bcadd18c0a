"""Where secure aggregation keeps what it needs, beside the slices of methods and terms."""

from __future__ import annotations

from typing import Literal

import torch

from fedloom.core.tree import State

SECURE = "secure_aggregation"
"""The slice, in messages and in what clients and the server keep; no part can have this name. It
also owns the messages around a round, whose plans are special ones."""
SECRET = "secret"
"""Key of a client's secret in its slice, which never leaves it."""
BEGUN = "begun"
"""Key that says that the client has answered a step of the method too."""

Step = Literal["keys", "shares", "unmask"]
"""What is asked around a round: a public key, once; shares of the round's secrets; and, when the
masked uploads are there, shares of those secrets that the sum still hides behind."""


def of_method(own: State | None) -> State | None:
    """What a client keeps for its method; None: the method never asked it for anything.

    >>> of_method({SECURE: {SECRET: torch.zeros(1)}}) is None
    True
    """
    if own is None or SECURE not in own:
        return own
    rest = {name: tree for name, tree in own.items() if name != SECURE}
    return rest if BEGUN in own[SECURE] else None


def keep_secret(own: State | None, kept: State) -> State:
    """What a client keeps after a step of its method: its secret too."""
    if own is None or SECURE not in own:
        return kept
    return {**kept, SECURE: {**own[SECURE], BEGUN: torch.ones(1, dtype=torch.uint8)}}
