"""What a client of one round knows alone, and the masks that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from fedloom.core.secure.keys import KeyPair, derived, mask
from fedloom.core.secure.numbers import Numbers

NONCE_BYTES = 16
TAG_BYTES = 8


class Attempt(NamedTuple):
    """One time that a round is asked for; it is asked again where too few answer. Part of every
    secret of it, so that no two attempts have a mask in common."""

    seed: int
    t: int
    of: str
    """Kind and owner of the round's plan."""
    number: int


@dataclass(frozen=True)
class RoundSecrets:
    """Of one client in one attempt.

    The server may get to know one of the two, never both: `own` of a client whose upload counts,
    `pairs` of one whose upload does not.
    """

    own: bytes
    """Of the mask that it shares with nobody."""
    pairs: bytes
    """Of the key with which it agrees on masks with others."""

    @classmethod
    def of(cls, secret: bytes, nonce: bytes, attempt: Attempt) -> RoundSecrets:
        """From the client's secret and a number that it drew for this attempt."""
        own, pairs = (derived(secret, what, nonce, *attempt) for what in ("own", "pairs"))
        return cls(own, pairs)

    @property
    def commitment(self) -> bytes:
        """By which the server sees that it put `own` together rightly."""
        return sha256(self.own).digest()

    def own_mask(self, count: int) -> Numbers:
        """What the client alone adds."""
        return mask(derived(self.own, "mask"), count)


class PairMasks:
    """The masks that one client has in common with others."""

    def __init__(self, pairs: bytes, cid: int, nonces: Mapping[int, bytes]) -> None:
        """`nonces` are of all members of the round."""
        self._keys, self._cid, self._nonces = KeyPair(pairs), cid, nonces
        self.public = self._keys.public

    def with_(self, other: int, public: bytes, count: int) -> Numbers:
        """What the client adds for one other: of two, one adds it and one takes it away."""
        first, second = sorted((self._cid, other))
        agreed = self._keys.agreed(public)
        key = derived(agreed, "mask", self._nonces[first], self._nonces[second])
        numbers = mask(key, count)
        return numbers if self._cid == first else np.negative(numbers)


def share_tag(kind: str, owner: int, holder: int, nonce: bytes) -> bytes:
    """Stands before a share when it is sealed, so that it can be taken for no other."""
    return sha256(repr((kind, owner, holder, nonce)).encode()).digest()[:TAG_BYTES]


def points(members: Sequence[int]) -> list[int]:
    """Where each member's share lies; not at 0, where the secret is."""
    return [cid + 1 for cid in members]
