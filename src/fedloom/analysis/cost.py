"""What a run costs: megabytes to a target, parameters by what becomes of them, time per round."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedloom.analysis.tables import Numbers, same_length, table, vector
from fedloom.core.net import Net
from fedloom.errors import BadInput, UnknownName

Unit = Literal["MB", "MiB"]
BYTES: Mapping[str, int] = {"MB": 10**6, "MiB": 2**20}

# ------------------------------------------------------------------ megabytes


@dataclass(frozen=True)
class Sent:
    """Traffic up to a round; up is what leaves clients."""

    up: float
    down: float
    rounds: int
    """Messages counted: rounds, and special rounds before them."""
    unit: Unit

    @property
    def total(self) -> float:
        """Both directions."""
        return self.up + self.down


def sent_to_target(
    reached: int | None,
    up: ArrayLike,
    down: ArrayLike,
    *,
    rounds: ArrayLike | None = None,
    participants: ArrayLike = 1,
    unit: Unit = "MB",
    first_broadcast: bool = True,
) -> Sent | None:
    """Traffic to the round that reached a target (`rounds_to_target`), None if none did.

    `up`, `down` and `rounds` are `bytes_up`, `bytes_down` and `round` of all of a journal's
    records: what tensors were really sent, buffers and extras included, summed over the cohort.
    `participants`, a number or one for each record, divides: the length of `cohort` for a client
    that takes part in every round, the number of clients for the average client. Without
    `first_broadcast` what the first record sent down is not counted.

    >>> sent_to_target(2, [4e6, 4e6, 4e6], [8e6, 4e6, 4e6], participants=4)
    Sent(up=2.0, down=3.0, rounds=2, unit='MB')
    """
    if unit not in BYTES:
        raise UnknownName("unit", unit, BYTES)
    if reached is None:
        return None
    rows = {"up": vector(up, "up"), "down": vector(down, "down")}
    at = np.arange(1.0, len(rows["up"]) + 1) if rounds is None else vector(rounds, "rounds")
    share = np.asarray(participants, dtype=np.float64)
    share = np.full(at.shape, share) if share.ndim == 0 else vector(share, "participants")
    same_length(**rows, rounds=at, participants=share)
    if reached > at.max():
        raise BadInput(f"round {reached} was reached, but traffic ends with round {at.max():.0f}")
    if (share < 1).any():
        raise BadInput("participants must be 1 or more in every round")
    counted = at <= reached
    sent = {k: np.where(counted, v / share, 0.0) / BYTES[unit] for k, v in rows.items()}
    down_from = 0 if first_broadcast else 1
    return Sent(
        up=float(sent["up"].sum()),
        down=float(sent["down"][down_from:].sum()),
        rounds=int(counted.sum()),
        unit=unit,
    )


_ENCODER, _PROJECTOR, _NORMS, _FEATURES = 11_176_512, 264_448, 11_136, 512
_WHOLE = ("fedavg", "fedprox", "fedrod", "dualfed")
_HEADLESS = ("fedper", "fedrep", "spherefed", "fedetf")


def dualfed_parameters(method: str, classes: int) -> int:
    """Parameters that Table 8 of DualFed charges per message; its statistics are not counted.

    DualFed itself is charged for its projector, which it keeps.

    >>> dualfed_parameters("fedavg", 7), dualfed_parameters("fedper", 7)
    (11444551, 11440960)
    """
    classifier = (_FEATURES + 1) * classes
    if method in _HEADLESS:
        return _ENCODER + _PROJECTOR
    if method == "fedbn":
        return _ENCODER + _PROJECTOR + classifier - _NORMS
    if method not in _WHOLE:
        raise UnknownName("method of DualFed's Table 8", method, [*_WHOLE, *_HEADLESS, "fedbn"])
    return _ENCODER + _PROJECTOR + classifier


def dualfed_table8(rounds: int | None, parameters: int, bytes_per_number: int = 4) -> float | None:
    """MiB to the target as DualFed's Table 8 counts: one client, both directions.

    >>> round(dualfed_table8(22, dualfed_parameters("fedavg", 7)), 2)
    1920.93
    """
    if rounds is None:
        return None
    return rounds * 2 * bytes_per_number * parameters / BYTES["MiB"]


# ------------------------------------------------------------------ parameters


@dataclass(frozen=True)
class Sizes:
    """How many numbers a model holds, each counted once."""

    shared: int
    """Trained, and sent: the "parameters transmitted" of a paper (one client, one way)."""
    personal: int
    """Trained, and kept."""
    frozen: int
    buffers: int
    """BatchNorm's mean, variance and counter, sent or not."""

    @property
    def trained(self) -> int:
        """Shared and personal."""
        return self.shared + self.personal


def sizes(net: Net, shared: Collection[str]) -> Sizes:
    """Numbers by what becomes of them; `shared` are the keys that leave (`program.shared(cid)`).

    What a method sends beside its model (prototypes, control variates) is in the journal's bytes.

    >>> from torch import nn
    >>> net = Net((64,), body=nn.BatchNorm1d(64), head=nn.Linear(64, 2))
    >>> sizes(net, net.match("body.*"))
    Sizes(shared=128, personal=130, frozen=0, buffers=129)
    """
    buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}
    counts = {"shared": 0, "personal": 0, "frozen": 0, "buffers": 0}
    for key in net.keys:
        if key in net.params:
            group = "shared" if key in shared else "personal"
        else:
            group = "buffers" if key in buffers else "frozen"
        counts[group] += net.initial[key].numel()
    return Sizes(**counts)


# ------------------------------------------------------------------ time


@dataclass(frozen=True)
class Pace:
    """Seconds per round."""

    mean: float
    median: float
    rounds: int
    """Rounds these are over."""

    def seconds_for(self, rounds: int) -> float:
        """Rounds to a target times the mean, as DBE's Tables 6 and 8 count."""
        return rounds * self.mean


def pace(seconds: ArrayLike, *, warm_up: int = 1) -> Pace:
    """Mean and median without the first rounds, which also load and allocate.

    Takes a journal's `seconds` (all of a round) or one of its `activities`, so that local
    training is not mixed with evaluation. Nothing left after the warm-up: NaN.

    >>> pace([5, 1, 2])
    Pace(mean=1.5, median=1.5, rounds=2)
    """
    if warm_up < 0:
        raise BadInput(f"warm_up must be 0 or more rounds, not {warm_up}")
    counted = vector(seconds, "seconds")[warm_up:]
    if counted.size == 0:
        return Pace(float("nan"), float("nan"), 0)
    return Pace(float(counted.mean()), float(np.median(counted)), len(counted))


@dataclass(frozen=True)
class ClientPace:
    """Seconds per round over clients."""

    sequential: Pace
    """One client after the other: the sum."""
    parallel: Pace
    """All at once: the slowest."""


def client_pace(seconds: ArrayLike, *, warm_up: int = 1) -> ClientPace:
    """Rows are rounds, columns clients, NaN did not take part.

    >>> client_pace([[9, 9], [1, 3], [2, None]]).sequential
    Pace(mean=3.0, median=3.0, rounds=2)
    """
    spent: Numbers = np.nan_to_num(table(seconds, "seconds", gaps=True), nan=0.0)
    return ClientPace(
        pace(spent.sum(axis=1), warm_up=warm_up), pace(spent.max(axis=1), warm_up=warm_up)
    )
