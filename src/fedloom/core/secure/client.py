"""A client's side: its key, its shares, its masked upload, and what it gives away for the sum."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

import numpy as np
import torch

from fedloom.core.message import Up
from fedloom.core.revelations import ROWS_UNTOLD
from fedloom.core.round import Round, weight_of
from fedloom.core.secure.keys import (
    SECRET_BYTES,
    KeyPair,
    derived,
    fingerprint,
    opened,
    sealed,
)
from fedloom.core.secure.numbers import Numbers, as_bytes, as_tensor
from fedloom.core.secure.secrets import (
    NONCE_BYTES,
    TAG_BYTES,
    Attempt,
    PairMasks,
    RoundSecrets,
    points,
    share_tag,
)
from fedloom.core.secure.setting import FEWEST
from fedloom.core.secure.shamir import shares
from fedloom.core.secure.slices import BEGUN, SECRET, SECURE
from fedloom.core.secure.upload import Encoded, clear_part, hidden_part
from fedloom.core.site import Visit
from fedloom.core.tree import State, Tree
from fedloom.errors import BadInput

log = logging.getLogger("fedloom")


def answer(visit: Visit) -> tuple[Up, State]:
    """To one of the messages around a round."""
    step = visit.down.plan.owner.removeprefix(f"{SECURE}.")
    if step == "keys":
        own = _with_secret(visit)
        public = KeyPair(as_bytes(own[SECURE][SECRET])).public
        return Up({SECURE: {"public": as_tensor(public)}}, ROWS_UNTOLD), own
    asked = {"shares": _shares, "unmask": _revealed}[step]
    return Up({SECURE: asked(visit, _Message.of(visit))}, ROWS_UNTOLD), visit.own or {}


def masked(visit: Visit, upload: State, rows: int) -> State:
    """An upload as it leaves: every number masked, but for what a part declares to say nothing."""
    program = visit.program
    assert program.secure is not None
    message = _Message.of(visit) if program.masks else None
    members = 1 if message is None else len(message.members)
    clear = clear_part(program, upload)
    encoded = Encoded(program.secure, clear)
    r = Round(program, visit.down.plan, {}, [visit.cid])  # weights follow from the client alone
    for name, tree in hidden_part(upload, clear).items():
        where, totals = f"{visit.place}, {name}", name == program.method.name
        weight = weight_of(r, name, visit.cid, Up({name: tree}, rows))
        whole = program.secure.check_weight(weight, members, totals, where)
        encoded.take(name, tree, whole, totals, where)
    if message is None:  # played with made-up rows: only the form counts
        return encoded.masked(np.zeros(encoded.count, np.uint64))
    return encoded.masked(_mask(visit, message, encoded.count))


class _Message(NamedTuple):
    """What the server tells of a round, read and checked."""

    members: list[int]
    publics: list[bytes]
    attempt: Attempt
    tree: Tree

    @classmethod
    def of(cls, visit: Visit) -> _Message:
        tree, place = visit.down.state.get(SECURE, {}), visit.place
        if not tree:
            raise BadInput(f"{place}: the server sent no keys, so nothing can be masked")
        members, publics = tree["members"].tolist(), [as_bytes(row) for row in tree["publics"]]
        if members != sorted(set(members)) or visit.cid not in members:
            raise BadInput(f"{place}: the members of the round are not these: {members}")
        if len(members) < FEWEST or len(set(publics)) != len(members):
            raise BadInput(
                f"{place}: the sum is over {len(set(publics))} different clients, and fewer than"
                f" {FEWEST}, or one that counts twice, would tell single uploads"
            )
        plan, of = visit.down.plan, as_bytes(tree["of"]).decode()
        return cls(members, publics, Attempt(plan.seed, plan.t, of, int(tree["attempt"])), tree)

    def nonces(self) -> dict[int, bytes]:
        return dict(zip(self.members, map(as_bytes, self.tree["nonces"]), strict=True))


def _with_secret(visit: Visit) -> State:
    """What the client keeps, with a secret that it makes where it has none."""
    own = dict(visit.own or {})
    if SECRET not in own.get(SECURE, {}):
        own[SECURE] = {SECRET: as_tensor(_random(visit, SECRET_BYTES, "secret"))}
        if visit.own is not None:
            own[SECURE][BEGUN] = torch.ones(1, dtype=torch.uint8)
    return own


def _secret(visit: Visit) -> bytes:
    slice_ = (visit.own or {}).get(SECURE, {})
    if SECRET not in slice_:
        raise BadInput(f"{visit.place}: its key is gone; it takes part again with a new one")
    return as_bytes(slice_[SECRET])


def _random(visit: Visit, count: int, *purpose: object) -> bytes:
    """Of the operating system; in a simulation of the run's seed, so that it can be repeated."""
    if visit.program.system_secrets:
        return os.urandom(count)
    seed = repr(("simulated secrets", visit.program.seed)).encode()
    return derived(seed, visit.cid, *map(repr, purpose))[:count]


def _shares(visit: Visit, message: _Message) -> Tree:
    """A number and a key for this round, and for each member its share of the two secrets."""
    assert visit.program.secure is not None
    secret, members = _secret(visit), message.members
    keys = KeyPair(secret)
    if keys.public != message.publics[members.index(visit.cid)]:
        raise BadInput(f"{visit.place}: the server has another public key of it")
    if visit.program.system_secrets:
        named = zip(members, map(fingerprint, message.publics), strict=True)
        listed = ", ".join(f"client {cid} {digits}" for cid, digits in named)
        log.info("secure aggregation, %s, keys: %s", message.attempt.of, listed)
    nonce = _random(visit, NONCE_BYTES, "nonce", message.attempt)
    secrets = RoundSecrets.of(secret, nonce, message.attempt)
    needed, at = visit.program.secure.needed(len(members)), points(members)
    held = {
        kind: shares(of, needed, at, derived(secret, "shares", kind, nonce, *message.attempt))
        for kind, of in (("own", secrets.own), ("pairs", secrets.pairs))
    }
    tokens = []
    for place, (member, public) in enumerate(zip(members, message.publics, strict=True)):
        key = keys.agreed(public)
        for kind, of_kind in held.items():
            tag = share_tag(kind, visit.cid, member, nonce)
            tokens.append(as_tensor(sealed(key, tag + of_kind[place])))
    return {
        "nonce": as_tensor(nonce),
        "public": as_tensor(KeyPair(secrets.pairs).public),
        "commitment": as_tensor(secrets.commitment),
        "sealed": torch.stack(tokens).reshape(len(members), len(held), -1),
    }


def _mask(visit: Visit, message: _Message, count: int) -> Numbers:
    """All that the client adds to its numbers."""
    nonces = message.nonces()
    secrets = RoundSecrets.of(_secret(visit), nonces[visit.cid], message.attempt)
    pairs = PairMasks(secrets.pairs, visit.cid, nonces)
    if pairs.public != message.publics[message.members.index(visit.cid)]:
        raise BadInput(f"{visit.place}: the server has another key of it for this round")
    total = secrets.own_mask(count)
    for other, public in zip(message.members, message.publics, strict=True):
        if other != visit.cid:
            total = total + pairs.with_(other, public, count)
    return total


def _revealed(visit: Visit, message: _Message) -> Tree:
    """Its shares of what the sum still hides behind: of each member one secret, never both."""
    assert visit.program.secure is not None
    keys, nonces = KeyPair(_secret(visit)), message.nonces()
    answered = message.tree["answered"].bool().tolist()
    asked = int(message.tree["asked"])
    if sum(answered) < visit.program.secure.needed(asked):
        raise BadInput(
            f"{visit.place}: {sum(answered)} of {asked} clients are too few to be added up"
        )
    held = []
    for at, (member, public) in enumerate(zip(message.members, message.publics, strict=True)):
        tag = share_tag("own" if answered[at] else "pairs", member, visit.cid, nonces[member])
        text = opened(keys.agreed(public), as_bytes(message.tree["sealed"][at]))
        if text[:TAG_BYTES] != tag:
            raise BadInput(f"{visit.place}: a share of client {member} is for something else")
        held.append(as_tensor(text[TAG_BYTES:]))
    return {"shares": torch.stack(held)}
