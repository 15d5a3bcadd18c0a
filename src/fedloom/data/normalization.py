"""How inputs are normalised: which way, and by which mean and deviation.

A source says which way is wanted; the numbers follow when its rows are divided, because mean and
deviation are those of training rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from fedloom.core.fields import Field, Fields, placed

Normalize = Literal["half", "channel", "site", "none"]
"""half: mean and deviation 0.5. channel: those of each channel (each column of a table) over the
training rows of all clients. site: every client by its own training rows. none: as they are."""

_CHUNK = 2048  # rows read at a time from a memory map
_CONSTANT = 1e-7  # of its mean: a deviation that 32 bits cannot hold


@dataclass(frozen=True)
class Scaling:
    """Mean and deviation, one for all channels or one per channel (per column of a table); of
    several inputs those of each after another, where token ids have none.

    They are of `x / 255` where `x` are pixels of one byte, of `x` where they are not.

    >>> Scaling.over(np.array([[0.0], [2.0], [100.0]], dtype=np.float32), np.array([0, 1]))
    Scaling(mean=(1.0,), std=(1.0,))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def over(cls, x: np.ndarray, rows: np.ndarray, fields: Fields = ()) -> Self:
        """Mean and deviation of each channel over these rows; of flat rows that of each input."""
        if fields:
            each = [_of_field(x, rows, *one) for one in placed(fields)]
            return cls(
                tuple(m for mean, _ in each for m in mean), tuple(s for _, std in each for s in std)
            )
        # Pixels of one byte become numbers from 0 to 1 first.
        unit, axes = 255.0 if x.dtype == np.uint8 else 1.0, (0, *range(2, x.ndim))
        numbers = len(rows) * int(np.prod(x.shape[2:]))

        def average(power: int, centre: np.ndarray) -> np.ndarray:
            total = np.zeros(x.shape[1])
            for start in range(0, len(rows), _CHUNK):
                part = x[rows[start : start + _CHUNK]].astype(np.float64) / unit - centre
                total += (part**power).sum(axis=axes)
            return total / numbers

        per_channel = (-1, *[1] * (x.ndim - 2))
        mean = average(1, np.zeros(1))
        std = np.sqrt(average(2, mean.reshape(per_channel)))
        return cls(*_plain(mean, std))


def _plain(mean: np.ndarray, std: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A column that is constant, as far as rounding lets one tell, is only centred."""
    std[std <= _CONSTANT * np.abs(mean)] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _of_field(
    x: np.ndarray, rows: np.ndarray, field: Field, place: slice, length_at: int | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of one input of flat rows, over the positions that a row
    really has; of token ids none."""
    if field.kind == "text":
        return (), ()
    unit = 255.0 if field.pixels else 1.0

    def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Numbers [m, channels, ...], and which of them [m, 1, ...] are not filled up."""
        for start in range(0, len(rows), _CHUNK):
            some = x[rows[start : start + _CHUNK]].astype(np.float64)
            numbers = some[:, place].reshape(len(some), *field.shape) / unit
            if field.channel_axis is None:
                numbers = numbers[:, None]
            elif field.channel_axis == 1:
                numbers = numbers.swapaxes(1, 2)
            inside = np.ones((len(some), *[1] * (numbers.ndim - 1)), bool)
            if length_at is not None:
                inside = (np.arange(field.longest) < some[:, length_at, None])[:, None]
            yield numbers, np.broadcast_to(inside, (len(some), 1, *numbers.shape[2:]))

    def average(of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        total, count = np.zeros(field.channels), 0
        for numbers, inside in parts():
            axes = (0, *range(2, numbers.ndim))
            total += np.where(inside, of(numbers), 0.0).sum(axis=axes)
            count += int(inside.sum())
        return total / count

    mean = average(lambda numbers: numbers)
    return _plain(
        mean,
        np.sqrt(
            average(lambda numbers: (numbers - mean.reshape(-1, *[1] * (numbers.ndim - 2))) ** 2)
        ),
    )


def per_number(scaling: Scaling, fields: Fields) -> tuple[np.ndarray, np.ndarray]:
    """`scale` and `offset` of every number of a flat row; ids and lengths stay as they are."""
    one_for_all = len(scaling.mean) == 1
    unit, channel, start = list[float](), list[int](), 0
    for field in fields:
        numbers = np.zeros(field.shape, int)
        if field.channel_axis is not None:
            along = [-1 if axis == field.channel_axis else 1 for axis in range(numbers.ndim)]
            numbers = numbers + np.arange(field.shape[field.channel_axis]).reshape(along)
        if field.kind == "text":
            channel += [-1] * field.width
        else:
            channel += [0 if one_for_all else start + c for c in numbers.ravel().tolist()]
            channel += [-1] * (field.width - field.numbers)
        unit += [255.0 if field.pixels else 1.0] * field.width
        start += field.channels
    # The last of each is for what is not normalised.
    mean = np.array([*scaling.mean, 0.0], np.float32)
    std = np.array([*scaling.std, 1.0], np.float32)
    return 1 / (np.array(unit, np.float32) * std[channel]), -mean[channel] / std[channel]


HALF, AS_IS = Scaling((0.5,), (0.5,)), Scaling((0.0,), (1.0,))
