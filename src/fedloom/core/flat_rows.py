"""Flat rows of several inputs, or of unlike length, taken apart and put together (`Field`)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Generator, Tensor

from fedloom.core.fields import LENGTHS, Fields, placed, width


def arguments(fields: Fields, rows: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
    """What a network is called with for flat rows [n, width], by position and by name.

    >>> from fedloom.core.fields import Field
    >>> table, notes = Field("table", "table", (2,)), Field("notes", "text", (3,), 0, vocabulary=9)
    >>> row = torch.tensor([[0.5, 1.5, 7.0, 8.0, 0.0, 2.0]])
    >>> arguments((table, notes), row)[1]["notes"], arguments((table, notes), row)[1].keys()
    (tensor([[7, 8, 0]]), dict_keys(['table', 'notes', 'notes_lengths']))
    """
    values = inputs_of(fields, rows)
    by_name = {name: value for name, value in values.items() if not name[0].isdigit()}
    return [value for name, value in values.items() if name not in by_name], by_name


def inputs_of(fields: Fields, rows: Tensor) -> dict[str, Tensor]:
    """The inputs of flat rows [n, width] and their lengths, in the order of the fields."""
    values: dict[str, Tensor] = {}
    for field, place, length_at in placed(fields):
        value = rows[:, place].reshape(-1, *field.shape)
        values[field.name] = value.long() if field.kind == "text" else value
        if length_at is not None:
            values[field.name + LENGTHS] = rows[:, length_at].long()
    return values


def flat_rows(values: Iterable[Tensor]) -> Tensor:
    """The reverse of `arguments`: flat rows of values and lengths in the order of the fields."""
    parts = [value.flatten(1) if value.ndim > 1 else value[:, None] for value in values]
    return torch.cat([part.float() for part in parts], dim=1)


def without_padding(fields: Fields, rows: Tensor) -> Tensor:
    """Flat rows with zeros where a row is shorter than the longest."""
    if all(field.time is None for field in fields):
        return rows
    parts: list[Tensor] = []
    for field, place, length_at in placed(fields):
        numbers = rows[:, place]
        if length_at is None or field.time is None:
            parts.append(numbers)
            continue
        length = rows[:, length_at : length_at + 1]
        along_time = [-1 if axis == field.time else 1 for axis in range(len(field.shape))]
        steps = torch.arange(field.longest, device=rows.device).view(along_time)
        inside = steps < length.view(-1, *[1] * len(field.shape))
        value = numbers.reshape(-1, *field.shape)
        parts += [torch.where(inside, value, torch.zeros_like(value)).flatten(1), length]
    return torch.cat(parts, 1)


def made_up_rows(fields: Fields, n: int, gen: Generator) -> Tensor:
    """Random rows: numbers, token ids and lengths as they may be."""
    parts: list[Tensor] = []
    for field in fields:
        size = (n, field.numbers)
        if field.kind == "text":
            parts.append(torch.randint(field.vocabulary, size, generator=gen).float())
        else:
            parts.append(torch.randn(size, generator=gen))
        if field.time is not None:
            parts.append(torch.randint(1, field.longest + 1, (n, 1), generator=gen).float())
    return without_padding(fields, torch.cat(parts, 1))


def empty_rows(fields: Fields, n: int) -> Tensor:
    """Rows of zeros, each as long as may be."""
    rows = torch.zeros(n, width(fields))
    for field, _, length_at in placed(fields):
        if length_at is not None:
            rows[:, length_at] = field.longest
    return rows
