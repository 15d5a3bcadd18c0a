"""How a run's uploads are masked: `secure_aggregation="pairwise(clip=8.0, bits=22)"`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import ClassVar

from fedloom.core.aggregation import MEAN, Aggregation
from fedloom.core.compression import NONE, Compression
from fedloom.core.method import Method
from fedloom.errors import BadInput
from fedloom.expression import parse_one, written
from fedloom.registry import Registry

secure_aggregations = Registry("secure aggregation")
"""Kinds by name."""

LEAST = 1e-6
"""Smallest `clip`: with less, everything that a network sends would be clipped to nothing."""
FEWEST = 3
"""Clients of a round. A sum over one is its upload, and of two, each can subtract its own."""
MOST_BITS = 30
MODULI = (32, 40, 48, 56, 64)


@secure_aggregations
@dataclass(frozen=True)
class Pairwise:
    """Masks between every two clients of a round, and one of each client's own.

    A number becomes the nearest multiple of the step `clip / 2**(bits - 1)`; one beyond `clip` is
    clipped, and counted. In a method's slice beside the model, which holds totals over rows
    (prototypes' sums, counts, precisions), the bound is `totals`, with the same step. Sums are
    taken modulo 2 to the power of `modulus`, whose bytes every number takes in an upload.

    A `threshold` share of a round's clients must stay to its end; the others may go at any time.
    """

    name: ClassVar[str] = "pairwise"
    clip: float = 8.0
    bits: int = 22
    totals: float = 1e6
    modulus: int = 48
    threshold: float = 0.6

    def __post_init__(self) -> None:
        for fits, what in (
            (LEAST <= self.clip < inf, f"clip is a number of {LEAST:g} or more, not {self.clip}"),
            (2 <= self.bits <= MOST_BITS, f"bits is from 2 to {MOST_BITS}, not {self.bits}"),
            (self.clip <= self.totals < inf, f"totals is clip or more, not {self.totals}"),
            (self.modulus in MODULI, f"modulus is one of {MODULI}, not {self.modulus}"),
            (
                0.5 < self.threshold <= 1,
                f"threshold is above 0.5, so that no two halves of a round can be unmasked apart,"
                f" and at most 1, not {self.threshold}",
            ),
        ):
            if not fits:
                raise BadInput(f"{self.name}: {what}")

    @property
    def step(self) -> float:
        """Between two numbers that can be sent."""
        return self.clip / float(2 ** (self.bits - 1))

    def levels(self, totals: bool) -> int:
        """The largest multiple of the step that is sent, of one of a method's totals or another
        number."""
        return ceil(self.totals / self.step) if totals else int(2 ** (self.bits - 1))

    def needed(self, members: int) -> int:
        """How many of so many clients must stay to the end of a round."""
        return max(FEWEST, ceil(self.threshold * members))

    def most_weight(self, members: int, totals: bool) -> int:
        """The largest weight of one client with which no sum over so many can overflow."""
        return int(2 ** (self.modulus - 1) - 1) // (members * self.levels(totals))

    def wider(self, of_model: bool, of_totals: bool) -> Pairwise:
        """The same with twice the range, and the same step, for numbers of these two kinds."""
        clip, bits = (2 * self.clip, self.bits + 1) if of_model else (self.clip, self.bits)
        totals = max(clip, 2 * self.totals if of_totals else self.totals)
        return replace(self, clip=clip, bits=min(bits, MOST_BITS), totals=totals)

    def check_weight(self, weight: float, members: int, totals: bool, where: str) -> int:
        """The weight as a whole number, if sums of such weights are sure to fit."""
        if weight < 0 or weight != round(weight):
            raise BadInput(
                f"{where}: a weight of {weight} is no whole number, and secure aggregation adds"
                " whole numbers; use another weighting, or leave out secure_aggregation"
            )
        if weight > (most := self.most_weight(members, totals)):
            raise BadInput(
                f"{where}: a weight of {weight:g} is more than the {most} for which sums over"
                f" {members} clients fit into {self.modulus} bits; raise modulus of"
                f" {self.name}(...), or lower {'totals' if totals else 'bits'}"
            )
        return int(weight)

    def check_cohort(self, members: int) -> None:
        """Refuse rounds of too few clients, and of so many that sums overflow."""
        if members < FEWEST:
            raise BadInput(
                f"secure_aggregation: a round has {members} clients, and a sum over fewer than"
                f" {FEWEST} tells single uploads; raise participation or clients"
            )
        self.check_weight(1.0, members, False, "secure_aggregation")

    def __str__(self) -> str:
        return written(self, self.name)


def parse_secure_aggregation(text: str) -> Pairwise:
    """From an expression.

    >>> parse_secure_aggregation("pairwise(clip=4.0)").step * 2**21
    4.0
    """
    setting: Pairwise = secure_aggregations.build(parse_one(text))
    return setting


def check_hidden(method: Method, aggregation: Aggregation, compression: Compression) -> None:
    """Refuse what needs single uploads, by name."""
    for part in method.parts:
        if part.gathers_model or (part.gathers and not part.in_the_clear):
            raise BadInput(
                f"{part.name} reads single uploads, which secure_aggregation hides from the server;"
                " choose another method, or leave out secure_aggregation"
            )
    if aggregation != MEAN:
        raise BadInput(
            f"aggregation = {str(aggregation)!r} compares single uploads, which secure_aggregation"
            " hides from the server; leave out one of the two"
        )
    if compression != NONE:
        raise BadInput(
            f"compression = {str(compression)!r} is undone by the server upload by upload, and"
            " secure_aggregation hides those; leave out one of the two"
        )
