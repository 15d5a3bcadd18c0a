"""A convolutional network for windows of sensor signals."""

from __future__ import annotations

from torch import nn

from fedloom.core.net import Net
from fedloom.errors import BadInput
from fedloom.models import models
from fedloom.models.layers import width_of

_LEAST = 28  # two convolutions of 9 with pooling leave one step


@models
def har_cnn(shape: tuple[int, ...], classes: int, published: bool = False) -> Net:
    """DBE's HAR-CNN for human activity recognition: windows [sensors, time], feature of 512.

    Two convolutions of length 9 (32, 64) with pooling, layers of 1024 and 512, the head. Windows
    of shape [sensors, 1, time] are taken as well.

    Deviations: the paper inserts DBE before the last layer. In the published code the split is
    after the convolutions, all three full layers being the head (feature of 1664 for windows of
    128): `published=true`.

    >>> net = har_cnn((9, 1, 128), 6)
    >>> net.shape_of(net.feature)
    torch.Size([512])
    """
    if len(shape) != 2 and not (len(shape) == 3 and shape[1] == 1):
        raise BadInput(f"har_cnn takes windows [sensors, time], not inputs of shape {shape}")
    if shape[-1] < _LEAST:
        raise BadInput(
            f"har_cnn needs windows of at least {_LEAST} steps, these have {shape[-1]}; use mlp"
        )
    convolutions = nn.Sequential(
        nn.Flatten(2),  # [n, sensors, 1, time] -> [n, sensors, time]
        *(nn.Conv1d(shape[0], 32, 9), nn.MaxPool1d(2), nn.ReLU()),
        *(nn.Conv1d(32, 64, 9), nn.MaxPool1d(2), nn.ReLU()),
        nn.Flatten(),
    )
    width = width_of(convolutions, shape)
    full = nn.Sequential(nn.Linear(width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
    last = nn.Linear(512, classes)
    if published:
        return Net(shape, body=convolutions, head=full.append(last))
    return Net(shape, body=convolutions.extend(full), head=last)
