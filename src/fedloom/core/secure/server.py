"""The server's side: what is left of the masks in a sum, from shares of those who stayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedloom.core.secure.numbers import Numbers
from fedloom.core.secure.secrets import PairMasks, RoundSecrets, points
from fedloom.core.secure.shamir import factors, secret_of
from fedloom.errors import BadInput


@dataclass(frozen=True)
class Member:
    """What the server knows of one client of a round."""

    nonce: bytes
    public: bytes
    """Of the key for this round."""
    commitment: bytes


def secrets_from(
    revealed: Mapping[int, Mapping[int, bytes]], members: Sequence[int]
) -> dict[int, bytes]:
    """Member -> its secret, from the shares that each of those who stayed revealed of all."""
    holders = sorted(revealed)
    at = dict(zip(holders, points(holders), strict=True))
    at_zero = factors(at.values())
    return {
        member: secret_of({at[holder]: revealed[holder][member] for holder in holders}, at_zero)
        for member in members
    }


def masks_left(
    members: Mapping[int, Member],
    answered: Sequence[int],
    secrets: Mapping[int, bytes],
    count: int,
) -> Numbers:
    """All masks in the sum of the uploads of those who answered: each one's own, and those that
    they have in common with members who sent no upload."""
    nonces = {cid: member.nonce for cid, member in members.items()}
    total = np.zeros(count, np.uint64)
    for cid in answered:
        known = RoundSecrets(own=secrets[cid], pairs=b"")
        if known.commitment != members[cid].commitment:
            raise BadInput(f"the shares of the secret of client {cid} are not those that it made")
        total += known.own_mask(count)
    for gone in members.keys() - set(answered):
        pairs = PairMasks(secrets[gone], gone, nonces)
        if pairs.public != members[gone].public:
            raise BadInput(f"the shares of the key of client {gone} are not those that it made")
        for cid in answered:
            # The other one's mask is this one with the other sign.
            total -= pairs.with_(cid, members[cid].public, count)
    return total
