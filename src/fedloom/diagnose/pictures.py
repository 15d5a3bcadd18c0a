"""What pictures of the representation share: the rows they show, and points short enough for a
page."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from fedloom.analysis.tsne import FEWEST_ROWS, pick_rows
from fedloom.diagnose.measure import Measure, Options, Outcome, Skipped
from fedloom.diagnose.per_client import SIDES, Side
from fedloom.diagnose.snapshots import ClientView, Snapshots
from fedloom.drawing.figures import rounded
from fedloom.record import Number

Result = TypeVar("Result")
Point = tuple[Number, Number]

MOST_ROWS = 600
"""Of all clients together in one snapshot."""
MOST_ROWS_OF_A_CLIENT = 100
MOST_POINTS = 3000
"""Of one picture in the report, which must stay a small file."""
DECIMALS = 4


@dataclass(frozen=True, eq=False)
class ClientFeatures:
    """The rows of one client in one snapshot."""

    client: int
    side: Side
    features: Tensor
    labels: Tensor


class Picture(Measure[Result]):
    """Collects some of every client's own test rows, the same before and after."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._layers: dict[str, list[ClientFeatures]] = {}
        self._most = min(MOST_ROWS_OF_A_CLIENT, max(1, MOST_ROWS // len(snapshots.ids)))

    def see(self, client: ClientView) -> None:
        if client.test is None:
            return
        rows = pick_rows(client.test.y, self._most)
        y = client.test.y[rows]
        for layer in client.representations:
            for side in SIDES:
                z = client.model(side).features(client.test)[layer][rows]
                shown = ClientFeatures(client.cid, side, z, y)
                self._layers.setdefault(layer, []).append(shown)

    def outcomes(self) -> Iterator[Outcome[Result]]:
        for layer, shown in self._layers.items():
            if reason := _not_drawable(shown):
                yield Outcome("both", layer, "local-test", Skipped(reason))
            else:
                result, settings = self.drawn(shown)
                yield Outcome("both", layer, "local-test", result, settings)

    @abstractmethod
    def drawn(self, shown: list[ClientFeatures]) -> tuple[Result, dict[str, Any]]:
        """The picture of one layer, and its settings."""


def _not_drawable(shown: list[ClientFeatures]) -> str:
    """Why there is no picture, if there is none."""
    widths = {one.features.shape[1] for one in shown}
    if len(widths) > 1:
        return "clients have different networks, whose features have no common plane"
    if widths == {1}:
        return "features of one dimension make no plane"
    few = sum(len(one.labels) for one in shown) < FEWEST_ROWS
    return f"a picture needs {FEWEST_ROWS} test rows or more" if few else ""


def points_of(plane: Tensor) -> tuple[Point, ...]:
    """Rows [n, 2] as points for a file.

    >>> import torch
    >>> points_of(torch.tensor([[0.25, 1 / 3]]))
    ((0.25, 0.3333),)
    """
    return tuple((round(x, DECIMALS), round(y, DECIMALS)) for x, y in plane.tolist())


def coordinates(pair: Sequence[float]) -> list[float | None]:
    """A point, or the two half axes of an ellipse, for a page."""
    return [rounded(value, 3) for value in pair]
