"""The papers' small convolutional networks for images, and a smaller one for quick experiments.

The largest of four ReLUs is the ReLU of the largest: pooled first, a quarter of the numbers are
left for it, and not one bit of outputs and gradients is another.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import nn

from fedloom.core.net import Net
from fedloom.models import models
from fedloom.models.gaussian import stochastic
from fedloom.models.layers import Stages, chain, require_image, width_of


@models
def cnn4(shape: tuple[int, ...], classes: int, stages: Stages = "body") -> Net:
    """DBE's 4-layer CNN: two 5x5 convolutions (32, 64) with pooling, a layer of 512, the head.

    `stages=fine` makes `conv1`, `conv2` and `fc` stages of their own, so that DBE can be inserted
    between any two layers (Table 1); nothing is called `body` then, `net.feature` is `fc`.

    >>> net = cnn4((3, 64, 64), 200, stages="fine")
    >>> [net.shape_of(stage).numel() for stage in ("conv1", "conv2", "fc")]
    [28800, 10816, 512]
    """
    require_image("cnn4", shape, least=16, instead="mlp or groupnorm_cnn")
    conv1 = _conv(shape[0], 32)
    conv2 = _conv(32, 64).append(nn.Flatten())
    width = width_of(nn.Sequential(conv1, conv2), shape)
    fc = nn.Sequential(nn.Linear(width, 512), nn.ReLU())
    parts = {"conv1": conv1, "conv2": conv2, "fc": fc}
    return chain(shape, parts, nn.Linear(512, classes), stages)


@models
def cnn_fedpac(shape: tuple[int, ...], classes: int) -> Net:
    """FedPAC's CNNs, with LeakyReLU and a feature of 128.

    Grey images (EMNIST, Fashion-MNIST): 5x5 convolutions 16 and 32. Others (CIFAR-10, CINIC-10):
    a third convolution, 3x3 with 64 filters. Only the first convolution is without padding.
    """
    grey = shape[0] == 1
    require_image("cnn_fedpac", shape, least=12 if grey else 16, instead="mlp or groupnorm_cnn")
    trunk = nn.Sequential(
        *_conv(shape[0], 16, act=nn.LeakyReLU), *_conv(16, 32, padding=1, act=nn.LeakyReLU)
    )
    if not grey:
        trunk.extend(_conv(32, 64, kernel=3, padding=1, act=nn.LeakyReLU))
    trunk.append(nn.Flatten())
    trunk.extend([nn.Linear(width_of(trunk, shape), 128), nn.LeakyReLU()])
    return Net(shape, body=trunk, head=nn.Linear(128, classes))


@models
def cnn_fedcr(
    shape: tuple[int, ...],
    classes: int,
    gaussian: int = 0,
    samples: int = 18,
    published: bool = False,
) -> Net:
    """FedCR's CNN (Tables 5 and 6): two 5x5 convolutions of 64, two layers of 1024, the head.

    FedCR adds its Gaussian layer itself. `gaussian=V` builds it in, as stages `gauss` and
    `sample`, for other methods on the same stochastic network.

    Deviations: Table 5 gives 1600 inputs of the first full layer for all data sets, which holds
    for 32x32; Fashion-MNIST's 28x28 make 1024. The published code has 4 and 12 filters on grey
    images instead (192 inputs): `published=true`.
    """
    require_image("cnn_fedcr", shape, least=16, instead="mlp_fedcr")
    first, second = (4, 12) if published and shape[0] == 1 else (64, 64)
    body = nn.Sequential(*_conv(shape[0], first), *_conv(first, second), nn.Flatten())
    width = width_of(body, shape)
    body.extend([nn.Linear(width, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()])
    return stochastic(shape, body, 1024, classes, gaussian, samples)


@models
def groupnorm_cnn(shape: tuple[int, ...], classes: int) -> Net:
    """FedBR's 4-layer CNN for RotatedMNIST: 3x3 convolutions with GroupNorm(8), feature of 128.

    The normalisation comes after the ReLU, and the feature is the average over all positions, so
    that images of any size will do.
    """
    require_image("groupnorm_cnn", shape, least=1, instead="mlp")
    layers: list[nn.Module] = []
    for width_in, width, stride in ((shape[0], 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1)):
        conv = nn.Conv2d(width_in, width, 3, stride, padding=1)
        layers += [conv, nn.ReLU(), nn.GroupNorm(8, width)]
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(shape, body=body, head=nn.Linear(128, classes))


@models
def small_cnn(
    shape: tuple[int, ...],
    classes: int,
    channels: tuple[int, ...] = (8, 16),
    hidden: int = 64,
    norm: Literal["none", "batch"] = "none",
) -> Net:
    """A network of seconds: 3x3 convolutions with pooling, a layer of `hidden`, the head.

    `norm=batch` puts BatchNorm before every ReLU.

    >>> net = small_cnn((1, 28, 28), 10)
    >>> net.shape_of(net.feature)
    torch.Size([64])
    """
    require_image("small_cnn", shape, least=2 ** len(channels), instead="mlp")
    layers: list[nn.Module] = []
    for width_in, width in pairwise((shape[0], *channels)):
        after = [nn.BatchNorm2d(width)] if norm == "batch" else []
        conv = nn.Conv2d(width_in, width, 3, padding=1)
        layers += [conv, *after, nn.MaxPool2d(2), nn.ReLU()]
    body = nn.Sequential(*layers, nn.Flatten())
    body.append(nn.Linear(width_of(body, shape), hidden))
    if norm == "batch":
        body.append(nn.BatchNorm1d(hidden))
    body.append(nn.ReLU())
    return Net(shape, body=body, head=nn.Linear(hidden, classes))


def _conv(
    width_in: int,
    width: int,
    *,
    kernel: int = 5,
    padding: int = 0,
    act: type[nn.ReLU] | type[nn.LeakyReLU] = nn.ReLU,
) -> nn.Sequential:
    """Convolution, 2x2 max pooling and activation, in the order that gives the bits of pooling
    last: two neighbours can be the same number behind a LeakyReLU, and then another gets the
    gradient."""
    behind = [nn.MaxPool2d(2), act()]
    if act is not nn.ReLU:
        behind.reverse()
    return nn.Sequential(nn.Conv2d(width_in, width, kernel, padding=padding), *behind)
