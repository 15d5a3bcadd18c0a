"""A network for several inputs and for rows of unlike length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fedloom.core.fields import LENGTHS, Field, Fields
from fedloom.core.net import Net
from fedloom.errors import BadInput
from fedloom.models import models

Norm = Literal["none", "batch"]


class _Image(nn.Module):
    """[n, C, H, W] -> [n, width]: two convolutions, and the mean over what they see."""

    def __init__(self, field: Field, width: int, norm: Norm) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(field.shape[0], width // 2, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


class _Table(nn.Sequential):
    """[n, d] -> [n, width]."""

    def __init__(self, field: Field, width: int, norm: Norm) -> None:
        super().__init__(*_dense(field.shape[0], width, norm))


def _dense(inputs: int, outputs: int, norm: Norm) -> Iterator[nn.Module]:
    yield nn.Linear(inputs, outputs)
    if norm == "batch":
        yield nn.BatchNorm1d(outputs)
    yield nn.ReLU()


class _Series(nn.Module):
    """Signals [n, C, T], [n, T, C] or [n, T] -> [n, width]: two convolutions along time, and the
    mean over the positions that a row has. What stands behind a row's end changes nothing."""

    def __init__(self, field: Field, width: int, norm: Norm) -> None:
        super().__init__()
        self.channels_last = field.channel_axis == 1
        self.first = nn.Conv1d(field.channels, width, 5, padding=2)
        self.second = nn.Conv1d(width, width, 5, padding=2)

    def forward(self, series: Tensor, lengths: Tensor | None = None) -> Tensor:
        if series.ndim == 2:
            series = series[:, None]
        elif self.channels_last:
            series = series.transpose(1, 2)
        inside = _inside(series.shape[-1], lengths, series)[:, None]
        features = torch.relu(self.first(series)) * inside
        features = torch.relu(self.second(features)) * inside
        return features.sum(-1) / inside.sum(-1)


class _Text(nn.Module):
    """Token ids [n, T] -> [n, width]: the mean of the words' vectors."""

    def __init__(self, field: Field, width: int, norm: Norm) -> None:
        super().__init__()
        self.table = nn.Embedding(field.vocabulary, width)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        vectors: Tensor = self.table(tokens)
        inside = _inside(tokens.shape[1], lengths, vectors)[..., None]
        return (vectors * inside).sum(1) / inside.sum(1)


def _inside(positions: int, lengths: Tensor | None, like: Tensor) -> Tensor:
    """1 where a row has a position, 0 behind its end; [n, T]."""
    steps = torch.arange(positions, device=like.device)
    if lengths is None:
        return torch.ones_like(steps, dtype=like.dtype)[None]
    return (steps < lengths[:, None]).to(like.dtype)


_ENCODERS = {"image": _Image, "table": _Table, "signal": _Series, "text": _Text}


class _Fusion(nn.Module):
    """An encoder for every input, side by side, and a linear layer that reads them all."""

    def __init__(self, fields: Fields, width: int, norm: Norm) -> None:
        super().__init__()
        self.fields = fields
        encoders = (_ENCODERS[field.kind](field, width, norm) for field in fields)
        self.encoders = nn.ModuleList(encoders)
        self.joined = nn.Sequential(*_dense(width * len(fields), width, norm))

    def forward(self, *by_position: Tensor, **by_name: Tensor) -> Tensor:
        features, rest = [], list(by_position)
        for field, encoder in zip(self.fields, self.encoders, strict=True):
            if field.name in by_name:
                names = (field.name, field.name + LENGTHS)
                values = [by_name[name] for name in names if name in by_name]
            else:
                values = [rest.pop(0) for _ in range(1 if field.time is None else 2)]
            features.append(encoder(*values))
        representation: Tensor = self.joined(torch.cat(features, dim=1))
        return representation


@models
def fusion(
    shape: tuple[int, ...],
    classes: int,
    fields: Fields = (),
    width: int = 64,
    norm: Norm = "none",
) -> Net:
    """For data with several inputs, or rows of unlike length: one small encoder for each input
    (two convolutions for images and signals, a linear layer for tables, word vectors for text),
    their outputs side by side, a linear layer, the head.

    Positions behind a row's end are left out of every mean, so a row's prediction does not depend
    on how far it was filled up.

    Args:
        fields: the inputs, set by the data.
        width: features of each encoder, and of the representation.
        norm: `batch` puts BatchNorm behind the linear layers.

    >>> series = Field("0", "signal", (30, 6), time=0)
    >>> net = fusion((181,), 4, fields=(series,))
    >>> net.shape_of(net.feature)
    torch.Size([64])
    """
    if not fields:
        raise BadInput(
            f"fusion takes several inputs or rows of unlike length, and these are single inputs of"
            f" shape {shape}; use auto, which follows the data"
        )
    if norm not in get_args(Norm):
        raise BadInput(f"fusion has norm=none or norm=batch, not {norm!r}")
    net = Net(shape, body=_Fusion(fields, width, norm), head=nn.Linear(width, classes))
    net.fields = fields
    return net
