"""ResNet-18, with torchvision's tensor names so that its weights can be loaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn

from fedloom.core.net import Net
from fedloom.errors import BadInput
from fedloom.models import models
from fedloom.models.layers import HeConv2d, Stages, chain, require_image

Norm = Callable[[int], nn.Module]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the identity, or a 1x1 convolution where the shape changes."""

    def __init__(self, width_in: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = HeConv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = HeConv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.relu = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride != 1 or width_in != width:
            shortcut = HeConv2d(width_in, width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, norm(width))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        z = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(z)) + shortcut)
        return out


@models
def resnet18(
    shape: tuple[int, ...],
    classes: int,
    norm: Literal["batch", "group"] = "batch",
    groups: int = 32,
    stem: Literal["imagenet", "cifar"] = "imagenet",
    stages: Stages = "body",
) -> Net:
    """ResNet-18 (He et al. 2016): feature of 512.

    DBE trains it from scratch on Tiny-ImageNet and DualFed starts from ImageNet, both with the
    7x7 stem and BatchNorm. A file with torchvision's (or timm's) ImageNet weights is a run's
    `start`, with `start_without='fc.* head.*'`.

    Args:
        norm: `batch`, or `group` for GroupNorm, which has no running statistics to average.
        groups: groups of GroupNorm (32: Wu and He 2018); it must divide 64.
        stem: `imagenet` (7x7, stride 2, pooling) or `cifar` (3x3, no pooling) for small images.
        stages: `fine` makes `stem`, `layer1` to `layer4` and `pool` stages of their own, so that
            DBE can be inserted between any two of them (its Table 7).

    >>> net = resnet18((3, 64, 64), 200, stages="fine")
    >>> [net.shape_of(s).numel() for s in net.reads]  # Table 7's sizes, and the classes
    [16384, 16384, 8192, 4096, 2048, 512, 200]
    """
    require_image("resnet18", shape, least=1, instead="mlp")
    trunk = _trunk(shape[0], _norm(norm, groups), stem)
    head = nn.Linear(512, classes)
    if stages == "fine":
        entry = nn.Sequential(OrderedDict((k, trunk.pop(k)) for k in list(trunk)[:4]))
        pool = nn.Sequential(OrderedDict((k, trunk.pop(k)) for k in ("avgpool", "flatten")))
        trunk = OrderedDict([("stem", entry), *trunk.items(), ("pool", pool)])
    return chain(shape, trunk, head, stages)


def _norm(norm: str, groups: int) -> Norm:
    if norm == "batch":
        return nn.BatchNorm2d
    if norm != "group":
        raise BadInput(f"resnet18 has norm=batch or norm=group, not {norm!r}")
    if groups < 1 or 64 % groups:
        raise BadInput(f"groups={groups} does not divide resnet18's 64 channels; use 2, 8 or 32")
    return partial(nn.GroupNorm, groups)


def _trunk(channels: int, norm: Norm, stem: str) -> OrderedDict[str, nn.Module]:
    trunk: OrderedDict[str, nn.Module] = OrderedDict()
    if stem == "imagenet":
        trunk["conv1"] = HeConv2d(channels, 64, 7, 2, padding=3, bias=False)
    elif stem == "cifar":
        trunk["conv1"] = HeConv2d(channels, 64, 3, padding=1, bias=False)
    else:
        raise BadInput(f"resnet18 has stem=imagenet or stem=cifar, not {stem!r}")
    trunk["bn1"] = norm(64)
    trunk["maxpool"] = nn.MaxPool2d(3, 2, padding=1) if stem == "imagenet" else nn.Identity()
    trunk["relu"] = nn.ReLU()
    width_in = 64
    for i, width in enumerate((64, 128, 256, 512), start=1):
        first = BasicBlock(width_in, width, 1 if i == 1 else 2, norm)
        trunk[f"layer{i}"] = nn.Sequential(first, BasicBlock(width, width, 1, norm))
        width_in = width
    trunk["avgpool"] = nn.AdaptiveAvgPool2d(1)
    trunk["flatten"] = nn.Flatten()
    return trunk
